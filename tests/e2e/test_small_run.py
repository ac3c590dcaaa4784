"""The whole loop, small, with every real part: live desktops, two vLLM workers, data manager, trainer.

What is proved: it runs to its report; it survives SIGKILL of a desktop and of a vLLM worker; Ctrl-C, and SIGKILL of the launcher while it
trains, leave nothing (after one `dart-farm reap`), and the same command resumes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from leaked_resources import (
    cgroups_of_desktops,
    leaked_resources,
    network_namespaces,
    networks_of_desktops,
    orphaned_shared_memory,
    other_farms,
)

pytestmark = [pytest.mark.desktop, pytest.mark.vllm, pytest.mark.timeout(1500)]

DESKTOPS = 4
RECIPE = """
[run]
name = "small"
[desktops]
count = {desktops}
[tasks]
families = ["press_nth"]
max_steps = 1
[model]
preset = "tiny"
[demos]
per_family = {demos}
[warmup]
imitated_demos_per_family = {demos}
images = {images}
[inference]
workers = 2
[rollout]
group_size = 6
max_tokens = 16
[train]
updates = 2
groups_per_batch = 1
max_minutes = 4.0
[eval]
episodes = 8
[limits]
min_free_memory_gib = 4
"""


class SmallRun:
    """`dart-train run` on the small recipe, in a directory of its own."""

    def __init__(self, folder: Path, runtime_dir: Path, *, demos: int, images: int) -> None:
        self.folder = folder
        self.runtime_dir = runtime_dir
        self.networks: set[str] = set()
        self.run_dir = folder / "runs" / "small"
        self.process: subprocess.Popen[str] | None = None
        (folder / "recipe.toml").write_text(
            RECIPE.format(desktops=DESKTOPS, demos=demos, images=images), encoding="utf-8"
        )

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dart_train.cli", "run", "recipe.toml"]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self.process

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 900.0) -> None:
        """Until something is so; meanwhile the network namespaces of the desktops are noted."""
        assert self.process is not None
        give_up_s = time.monotonic() + limit_s
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < give_up_s, "the run did not get there in time"
            self.networks |= networks_of_desktops(self.runtime_dir)
            time.sleep(0.2)  # another process's progress: there is nothing to be notified by

    def assert_nothing_left(self, shared_before: set[str]) -> None:
        assert leaked_resources(self.runtime_dir, self.run_dir) == []
        assert cgroups_of_desktops(self.runtime_dir) == set()
        assert self.networks
        # The kernel gives a namespace's number to a later one, so another farm's desktops may have those of this run.
        assert other_farms(self.runtime_dir) or not self.networks & network_namespaces()
        assert orphaned_shared_memory() <= shared_before

    def end(self) -> None:
        """Nothing of a failed test may run into the next one."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate(timeout=60)

    def stages(self) -> set[str]:
        path = self.run_dir / "state.json"
        return set(json.loads(path.read_text())["stages_s"]) if path.exists() else set()

    def query_count(self, query: str) -> int:
        """The one number that a query of the run's store gives."""
        with contextlib.closing(sqlite3.connect(f"file:{self.run_dir / 'data.db'}?mode=ro", uri=True)) as store:
            (number,) = store.execute(query).fetchone()
        return int(number)

    def lines(self, kind: str) -> list[dict[str, object]]:
        path = self.run_dir / "metrics.jsonl"
        if not path.exists():
            return []
        found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return [line for line in found if line.get("kind") == kind]


MakeRun = Callable[..., SmallRun]


@pytest.fixture
def small_run(tmp_path: Path, runtime_dir: Path) -> Iterator[MakeRun]:
    """Makes the run of a test, and ends it with the test."""
    made: list[SmallRun] = []

    def make(*, demos: int, images: int) -> SmallRun:
        made.append(SmallRun(tmp_path, runtime_dir, demos=demos, images=images))
        return made[-1]

    yield make
    for run in made:
        run.end()


def children_named(needle: str) -> list[int]:
    out = subprocess.run(["pgrep", "-f", needle], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in out.split()]


def farm_cli(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dart_server.cli", *argv], capture_output=True, text=True, check=False)


def leases_held() -> int:
    return int(json.loads(farm_cli("status", "--json").stdout).get("leases_active", 0))


def kill_a_desktop(cgroups: set[str]) -> bool:
    """SIGKILL to the first process of one desktop; False when every desktop was just being replaced."""
    for cgroup in sorted(cgroups):
        try:
            first = min(int(pid) for pid in (Path(cgroup) / "cgroup.procs").read_text().split())
            os.kill(first, signal.SIGKILL)
        except (OSError, ValueError):
            continue
        return True
    return False


def test_a_small_run_survives_kills_and_reports(runtime_dir: Path, small_run: MakeRun) -> None:
    shared_before = orphaned_shared_memory()
    run = small_run(demos=40, images=6_400)  # enough that some rollouts of a group succeed
    process = run.start()
    run.wait_for(lambda: "eval-before" in run.stages())
    workers = children_named(f"dart_agent.inference.engine.server.*{runtime_dir}")
    assert workers
    os.kill(workers[0], signal.SIGKILL)
    run.wait_for(lambda: kill_a_desktop(cgroups_of_desktops(runtime_dir)))
    output, _ = process.communicate(timeout=600)
    assert process.returncode in (0, 1), output
    result = json.loads((run.run_dir / "report" / "result.json").read_text())
    assert result["paired_evaluation"]["overall"]["episodes"] == 8
    assert result["counts"]["policy version at the end"] == 2
    assert {int(str(line["version"])) for line in run.lines("update")} == {1, 2}
    masked = run.query_count("select count(*) from trajectories where reward is null")
    repeated = run.query_count("select coalesce(sum(attempt - 1), 0) from rollouts")
    assert masked + repeated <= 1 + DESKTOPS  # what the desktop was on, and at most all that the worker was on
    assert "<svg" in (run.run_dir / "report" / "index.html").read_text(encoding="utf-8")
    run.assert_nothing_left(shared_before)


def test_ctrl_c_and_a_killed_launcher_leave_nothing_and_the_run_goes_on(runtime_dir: Path, small_run: MakeRun) -> None:
    shared_before = orphaned_shared_memory()
    run = small_run(demos=6, images=64)
    process = run.start()
    run.wait_for(lambda: len(run.lines("episode")) >= 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=150)
    assert process.returncode == 130, output
    run.assert_nothing_left(shared_before)

    process = run.start()
    run.wait_for(lambda: "eval-before" in run.stages())
    run.wait_for(lambda: run.query_count("select count(*) from trajectories where phase = 'train'") > 0)
    assert leases_held() > 0
    process.kill()
    process.communicate(timeout=60)
    reap = farm_cli("reap")
    assert reap.returncode == 0, reap.stdout + reap.stderr
    give_up_s = time.monotonic() + 30
    while leaked_resources(runtime_dir, run.run_dir) and time.monotonic() < give_up_s:
        time.sleep(0.2)  # components end by their parent-death signal, each in its own time
    run.assert_nothing_left(shared_before)
    stored = run.query_count("select count(distinct task_id) from trajectories where phase = 'demo'")
    assert stored == 6  # each demonstration once, whatever was interrupted
