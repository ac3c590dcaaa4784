"""Processes that end while a run goes on are reaped: none stays a zombie among the children of `dart-train run`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dart_train.config import Recipe
from dart_train.run import farm
from dart_train.run.launcher import ComponentSpec, LocalLauncher

LIMIT_S = 60.0
PAUSE = (sys.executable, "-c", "import signal; signal.pause()")


def children() -> dict[int, str]:
    """State letter of every child of this process, by process id."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # the process has ended
            continue
        if int(parent) == os.getpid():
            found[int(entry.name)] = state
    return found


async def wait_for(condition: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_s, f"{what}: {children()}"
        await asyncio.sleep(0.05)


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short private runtime directory, and no farm of the user."""
    with tempfile.TemporaryDirectory(prefix="dart-run-") as folder:
        monkeypatch.setenv("DART_RUNTIME_DIR", folder)
        for name in ("DART_FARM_URL", "DART_PROVIDER", "DART_MAX_DESKTOPS"):
            monkeypatch.delenv(name, raising=False)
        yield Path(folder)


async def test_a_component_that_ends_while_the_run_goes_on_is_reaped(tmp_path: Path) -> None:
    before = children()
    launcher = LocalLauncher()
    await launcher.start(ComponentSpec("short", (sys.executable, "-c", "pass"), tmp_path / "short.log"))
    long = await launcher.start(ComponentSpec("long", PAUSE, tmp_path / "long.log", restarts=1))
    os.kill(first := long.pid, signal.SIGKILL)
    await wait_for(lambda: long.pid != first, "the killed component is not started again")
    await wait_for(lambda: children().keys() - before == {long.pid}, "an ended component is still there")
    await launcher.stop_all()
    assert children().keys() <= before.keys()


async def test_a_component_that_is_stopped_while_it_is_started_again_does_not_stay(tmp_path: Path) -> None:
    restarting = asyncio.Event()
    before = children()
    launcher = LocalLauncher(on_restart=lambda name, code: restarting.set())
    component = await launcher.start(ComponentSpec("long", PAUSE, tmp_path / "long.log", restarts=5))
    os.kill(component.pid, signal.SIGKILL)
    await restarting.wait()
    await asyncio.wait_for(launcher.stop(component), LIMIT_S)
    assert children().keys() <= before.keys()


async def test_an_embedded_farm_that_stops_while_the_run_goes_on_is_reaped(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DART_IDLE_SHUTDOWN_S", "3")
    recipe = Recipe.model_validate(
        {
            "run": {"name": "r"},
            "desktops": {"provider": "sim", "count": 1},
            "tasks": {"families": ["press_nth"]},
            "model": {"preset": "tiny"},
        }
    )
    before = children()
    notes: list[str] = []
    async with farm.farm_session(recipe, notes.append):
        assert children().keys() - before.keys(), "no farm was started"
        await wait_for(lambda: not children().keys() - before.keys(), "a stopped farm is still there")
