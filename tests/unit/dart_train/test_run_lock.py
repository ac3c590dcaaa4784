"""Components that outlive a killed launcher: the next one waits for them, and says why."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_envs.clock import SYSTEM_CLOCK
from dart_train.config import RecipeError
from dart_train.run.lock import COMPONENTS_END_S, component_lock, components_ended, is_locked, run_lock
from dart_train.run.paths import RunPaths
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time

BUSY = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("busy", flush=True)
open(sys.argv[1]).read()
"""
"""A component that does not end with SIGTERM, but once its file can be read to its end."""
LAUNCHER = """
import asyncio, sys
from pathlib import Path
from dart_train.run.launcher import ComponentSpec, LocalLauncher
from dart_train.run.lock import run_lock
from dart_train.run.paths import RunPaths
async def main():
    paths = RunPaths(Path(sys.argv[1]))
    with run_lock(paths):
        argv = (sys.executable, "-c", sys.argv[2], sys.argv[3])
        part = await LocalLauncher().start(ComponentSpec("part", argv, paths.root / "part.log", lock=paths.lock))
        while "busy" not in (paths.root / "part.log").read_text():
            await asyncio.sleep(0.01)
        print(part.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    os.mkfifo(path := tmp_path / "work")
    return path


@pytest.fixture
def killed_launcher(paths: RunPaths, work: Path) -> Iterator[int]:
    """The pid of a component whose launcher was killed, and which goes on."""
    argv = [sys.executable, "-c", LAUNCHER, str(paths.root), BUSY, str(work)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        part = int(launcher.stdout.readline())
        launcher.kill()
    yield part
    if Path(f"/proc/{part}").exists():
        os.kill(part, signal.SIGKILL)


async def test_a_launcher_waits_for_the_components_of_a_killed_one(
    paths: RunPaths, work: Path, killed_launcher: int
) -> None:
    told: list[str] = []
    assert is_locked(paths)
    with run_lock(paths):
        waiting = asyncio.ensure_future(components_ended(paths, SYSTEM_CLOCK, told.append))
        await asyncio.sleep(0)
        assert told == ["waiting for the processes of a run that was killed: the trainer finishes its step"]
        assert not waiting.done()
        await asyncio.to_thread(work.write_text, "the step is done")
        await asyncio.wait_for(waiting, 20.0)
    assert not is_locked(paths)


def test_components_that_do_not_end_are_told_with_a_fix(paths: RunPaths, tmp_path: Path) -> None:
    async def wait(clock: VirtualClock) -> None:
        with run_lock(paths), component_lock(paths.lock):
            began_s = clock.monotonic()
            with pytest.raises(RecipeError, match=f"still work in {paths.root}: .* `fuser {paths.lock}` lists"):
                await components_ended(paths, clock, lambda line: None)
            assert COMPONENTS_END_S <= clock.monotonic() - began_s < COMPONENTS_END_S + 1

    run_in_virtual_time(wait)


async def test_a_launcher_does_not_wait_for_its_own_lock(paths: RunPaths) -> None:
    with run_lock(paths), component_lock(paths.lock), component_lock(paths.lock):
        assert is_locked(paths)
    with run_lock(paths):
        await components_ended(paths, SYSTEM_CLOCK, pytest.fail)
