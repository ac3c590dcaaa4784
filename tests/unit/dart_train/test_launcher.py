"""Real processes: restarts are bounded, a failure ends the wait, stopping ends whole groups, a dead launcher leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dart_train.config import load_recipe
from dart_train.run.launcher import STOP_GRACE_S, ComponentFailed, ComponentSpec, LocalLauncher
from dart_train.run.paths import RunPaths
from dart_train.run.training_components import trainer
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time

FOREVER = "import signal; signal.pause()"
DEMO = Path(__file__).parents[3] / "dart_train" / "recipes" / "demo.toml"


def spec(tmp_path: Path, code: str, *, restarts: int = 0) -> ComponentSpec:
    return ComponentSpec("part", (sys.executable, "-c", code), tmp_path / "part.log", restarts=restarts)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def wait_until_gone(pid: int, limit_s: float = 20.0) -> bool:
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s:
        if is_gone(pid):
            return True
        os.sched_yield()
    return False


async def test_a_component_that_fails_for_good_ends_the_watched_task(tmp_path: Path) -> None:
    launcher = LocalLauncher()
    await launcher.start(spec(tmp_path, "import sys; print('the reason', file=sys.stderr); sys.exit(3)"))
    stage = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(ComponentFailed, match=r"(?s)exit code 3.*the reason"):
        await launcher.watch(stage)  # type: ignore[arg-type]
    stage.cancel()
    await launcher.stop_all()


async def test_an_optional_component_that_fails_for_good_is_told_and_not_missed(tmp_path: Path) -> None:
    lost: list[str] = []
    launcher = LocalLauncher(on_loss=lost.append)
    optional = replace(spec(tmp_path, "import sys; print('no network', file=sys.stderr); sys.exit(3)"), optional=True)
    component = await launcher.start(optional)
    await launcher.watch(asyncio.ensure_future(component.wait()))
    assert lost == ["part ended with exit code 3: no network"]
    await launcher.stop_all()


async def test_restarts_are_counted_and_bounded(tmp_path: Path) -> None:
    restarts: list[tuple[str, int]] = []
    launcher = LocalLauncher(on_restart=lambda name, code: restarts.append((name, code)))
    component = await launcher.start(spec(tmp_path, "raise SystemExit(5)", restarts=2))
    with pytest.raises(ComponentFailed):
        await component.wait()
    assert restarts == [("part", 5), ("part", 5)]


async def test_a_killed_component_comes_back(tmp_path: Path) -> None:
    again = asyncio.Event()
    launcher = LocalLauncher(on_restart=lambda name, code: again.set())
    component = await launcher.start(spec(tmp_path, FOREVER, restarts=1))
    first = component.pid
    os.kill(first, signal.SIGKILL)
    await asyncio.wait_for(again.wait(), 20)
    await launcher.stop_all()
    assert component.pid != first
    assert is_gone(component.pid)


async def test_an_endless_component_that_sigterm_ends_in_order_comes_back(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('ready', flush=True); signal.pause()"
    again = asyncio.Event()
    launcher = LocalLauncher(on_restart=lambda name, code: again.set())
    component = await launcher.start(replace(spec(tmp_path, code, restarts=1), endless=True))
    while "ready" not in component_log(tmp_path):  # noqa: ASYNC110 - another process writes the file
        await asyncio.sleep(0.01)
    first = component.pid
    os.kill(first, signal.SIGTERM)
    await asyncio.wait_for(again.wait(), 20)
    await launcher.stop_all()
    assert component.pid != first


async def test_stop_ends_the_whole_group(tmp_path: Path) -> None:
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {FOREVER!r}]); print(p.pid, flush=True); {FOREVER}"
    launcher = LocalLauncher()
    component = await launcher.start(spec(tmp_path, code))
    while not (text := component_log(tmp_path)).strip():  # noqa: ASYNC110 - another process writes the file
        await asyncio.sleep(0.01)
    await launcher.stop(component)
    assert wait_until_gone(int(text))


def component_log(tmp_path: Path) -> str:
    path = tmp_path / "part.log"
    return path.read_text() if path.exists() else ""


def test_components_die_with_their_launcher(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from pathlib import Path
from dart_train.run.launcher import ComponentSpec, LocalLauncher
async def main():
    part = await LocalLauncher().start(ComponentSpec("part", (sys.executable, "-c", {FOREVER!r}), Path({str(tmp_path)!r}) / "part.log"))
    print(part.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    part = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    assert wait_until_gone(part)


def test_a_rank_of_the_trainer_dies_with_torchrun(tmp_path: Path) -> None:
    os.mkfifo(config := tmp_path / "config.json")  # the rank waits here for its configuration
    code = f"""
import signal, subprocess, sys
argv = [sys.executable, "-m", "dart_train.trainer", "--config", {str(config)!r}]
print(subprocess.Popen(argv, start_new_session=True).pid, flush=True)
signal.pause()
"""
    environment = {**os.environ, "WORLD_SIZE": "2"}
    torchrun = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert torchrun.stdout is not None
    rank = int(torchrun.stdout.readline())
    try:
        with config.open("w"):
            torchrun.kill()
            torchrun.wait()
            assert wait_until_gone(rank, limit_s=10.0)
    finally:
        torchrun.stdout.close()
        if not is_gone(rank):
            os.kill(rank, signal.SIGKILL)


class FakeTorchrun:
    """A process that ends a while after SIGTERM, when its ranks have."""

    pid = 1

    def __init__(self, clock: VirtualClock, ends_after_s: float) -> None:
        self.clock = clock
        self.ends_after_s = ends_after_s
        self.returncode: int | None = None
        self.asked, self.killed = asyncio.Event(), False

    async def wait(self) -> int:
        await self.asked.wait()
        await self.clock.sleep(self.ends_after_s)
        self.returncode = 0
        return 0

    def terminate(self) -> None:
        self.asked.set()

    def kill_group(self) -> None:
        self.killed = self.killed or self.returncode is None


@pytest.mark.parametrize(("processes", "killed"), [(1, True), (2, False)])
def test_torchrun_has_the_time_to_end_its_ranks(tmp_path: Path, processes: int, killed: bool) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.configs.mkdir(parents=True)
    part = trainer(load_recipe(DEMO, ("run.name='r'", f"train.processes={processes}")), paths)

    async def body(clock: VirtualClock) -> bool:
        torchrun = FakeTorchrun(clock, ends_after_s=30.0 + STOP_GRACE_S / 2)

        async def spawn(_: ComponentSpec) -> FakeTorchrun:
            return torchrun

        launcher = LocalLauncher(clock=clock, spawn=spawn)
        await launcher.start(part)
        await launcher.stop_all()
        return torchrun.killed

    assert run_in_virtual_time(body) is killed


async def test_a_component_that_refuses_its_configuration_is_not_started_again(tmp_path: Path) -> None:
    restarts: list[str] = []
    launcher = LocalLauncher(on_restart=lambda name, code: restarts.append(name))
    code = "import sys; print('much that happened before'); sys.exit(print('part: the reason, and the fix') or 2)"
    component = await launcher.start(spec(tmp_path, code, restarts=5))
    with pytest.raises(ComponentFailed) as failure:
        await component.wait()
    assert str(failure.value) == "part ended with exit code 2: part: the reason, and the fix"
    assert restarts == []
