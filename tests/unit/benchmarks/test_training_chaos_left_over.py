"""Whatever a run could leave on its host is seen by the benchmark `training_chaos`: each thing is planted beside a clean end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.training_chaos.left_over import left_over, unused_shared_memory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A runtime directory `r` and a run folder `run`, as a run leaves them that has cleaned up."""
    for name in ("r", "run/weights/v3", "run/acting", "run/rejected"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "r" / "farm.log").touch()
    with closing(sqlite3.connect(tmp_path / "r" / "farm.db")) as store, store:
        store.execute("create table leases (lease_id text, state text)")
        store.execute("create table snapshots (snapshot_id text, state text)")
        store.execute("insert into leases values ('lease_1', 'released')")
    return tmp_path


def look(place: Path) -> list[str]:
    return left_over(place / "r", place / "run", unused_shared_memory())


def execute(place: Path, statement: str) -> None:
    with closing(sqlite3.connect(place / "r" / "farm.db")) as store, store:
        store.execute(statement)


def test_a_clean_end_leaves_nothing(place: Path) -> None:
    assert look(place) == []


@pytest.mark.parametrize(
    "path", ["r/data-ab.sock", "run/acting/roll_1.2", "run/rejected/roll_1.json", "run/weights/.v4-x", "run/state.tmp"]
)
def test_a_file_that_is_left_is_seen(place: Path, path: str) -> None:
    (place / path).touch()
    assert look(place) == [f"{place / path} is left"]


@pytest.mark.parametrize(
    "statement",
    ["insert into leases values ('lease_2', 'active')", "insert into snapshots values ('snap_2', 'ready')"],
)
def test_what_the_farm_still_holds_is_seen(place: Path, statement: str) -> None:
    execute(place, statement)
    (found,) = look(place)
    assert "_2 is left" in found


def test_a_process_that_is_left_is_seen(place: Path) -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    process = subprocess.Popen(command, env=os.environ | {"DART_RUNTIME_DIR": str(place / "r")})
    try:
        (found,) = look(place)
        assert found.startswith(f"process {process.pid} is left")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_shared_memory_that_nobody_uses_is_seen(place: Path) -> None:
    entry = Path("/dev/shm") / f"dart-test-{os.getpid()}"
    before = unused_shared_memory()
    entry.touch()
    try:
        assert f"shared memory {entry.name} is left" in left_over(place / "r", place / "run", before)
    finally:
        entry.unlink()


def test_shared_memory_that_comes_or_goes_during_the_look_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes make and remove segments at any time, as semaphores of `multiprocessing` are within a millisecond."""
    gone, made = (Path("/dev/shm") / f"dart-test-{name}-{os.getpid()}" for name in ("gone", "made"))
    listed = Path.glob

    def look_at_processes(path: Path, pattern: str) -> list[Path]:
        gone.unlink()
        made.touch()
        return list(listed(path, pattern))

    gone.touch()
    try:
        monkeypatch.setattr(Path, "glob", look_at_processes)
        assert {gone.name, made.name}.isdisjoint(unused_shared_memory())
        assert made.exists()
    finally:
        gone.unlink(missing_ok=True)
        made.unlink(missing_ok=True)
