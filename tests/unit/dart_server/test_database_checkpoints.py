"""The farm's SQLite file: its log is carried into it beside the writer, begun anew when it is long, and nobody's commit waits for that."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from farm_harness import wait_until

from dart_server.clock import SystemClock
from dart_server.database import checkpoints
from dart_server.database.checkpoints import EVERY_COMMITS, CheckpointThread
from dart_server.database.repository import NewEvent, Repository
from dart_server.database.write_queue import Database

BIG = "x" * 8000
"""Two pages of the log, at least."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a farm #1" / "farm.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    path.parent.mkdir()
    database = Database(f"sqlite:///{path}", exclusive=True)
    await database.start()
    yield database
    await database.aclose()


def events_in_the_file(path: Path) -> int:
    """Events that are in the database itself, whatever its log holds; only while nothing is being carried over."""
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        if not connection.execute("select 1 from sqlite_master where name = 'events'").fetchone():
            return 0
        return int(connection.execute("select count(*) from events").fetchone()[0])


def log_bytes(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


async def write(repository: Repository, commits: int) -> None:
    for _ in range(commits):
        await repository.add_event(NewEvent("test", data={"n": BIG}))


@pytest.fixture
def repository(database: Database) -> Repository:
    return Repository(database, SystemClock())


async def test_what_is_committed_comes_into_the_file_while_the_farm_lives(
    monkeypatch: pytest.MonkeyPatch, path: Path, repository: Repository
) -> None:
    carried: list[str] = []
    carry = CheckpointThread.checkpoint

    def told(self: CheckpointThread) -> None:
        carry(self)
        carried.append(threading.current_thread().name)

    monkeypatch.setattr(CheckpointThread, "checkpoint", told)
    await write(repository, EVERY_COMMITS)
    await wait_until(lambda: bool(carried))
    assert carried == ["dart-checkpoints"]
    assert events_in_the_file(path) >= EVERY_COMMITS - 1


async def test_no_commit_carries_the_log_over_itself(
    monkeypatch: pytest.MonkeyPatch, path: Path, repository: Repository
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_COMMITS", 10**6)
    await write(repository, 600)
    assert log_bytes(path) > 1000 * 4096, "as many as SQLite would have carried over"
    assert events_in_the_file(path) == 0


async def test_a_long_log_is_begun_anew_between_two_commits(
    monkeypatch: pytest.MonkeyPatch, path: Path, repository: Repository
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_COMMITS", 10**6)
    await write(repository, 300)
    before = log_bytes(path)
    monkeypatch.setattr(checkpoints, "LONG_PAGES", 500)
    for _ in range(3):
        CheckpointThread(path).checkpoint()
        await write(repository, 100)
    assert log_bytes(path) == before
    assert events_in_the_file(path) >= 500


async def test_somebody_who_reads_for_long_stops_neither_commits_nor_the_rest(
    monkeypatch: pytest.MonkeyPatch, path: Path, repository: Repository
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_COMMITS", 10**6)
    monkeypatch.setattr(checkpoints, "LONG_PAGES", 1)
    await write(repository, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("select count(*) from events").fetchone() == (1,)
        await write(repository, EVERY_COMMITS)
        CheckpointThread(path).checkpoint()
        assert reader.execute("select count(*) from events").fetchone() == (1,)
    CheckpointThread(path).checkpoint()
    assert events_in_the_file(path) == EVERY_COMMITS + 1


async def test_a_file_that_cannot_be_opened_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = CheckpointThread(tmp_path / "none.db")
    tried = 0
    carry = failing.checkpoint

    def counted() -> None:
        nonlocal tried
        tried += 1
        carry()

    failing.checkpoint = counted  # type: ignore[method-assign]
    failing.start()
    with caplog.at_level(logging.WARNING):
        for time in (1, 2):
            for _ in range(EVERY_COMMITS):
                failing.note_commit()
            await wait_until(lambda: tried == time)  # noqa: B023 - awaited here
        failing.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "the database's log cannot be carried into its database now: unable to open database file"
    ]
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("url", ["sqlite:///file:{path}?uri=true", "sqlite:///{path}"])
async def test_the_file_is_found_however_the_url_writes_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []
    monkeypatch.setattr(CheckpointThread, "start", lambda self: begun.append(self._path))
    database = Database(url.format(path=tmp_path / "farm.db"), exclusive=True)
    await database.start()
    await database.aclose()
    assert begun == [tmp_path / "farm.db"]


async def test_a_database_in_memory_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointThread, "start", lambda _: pytest.fail("there is no file"))
    database = Database("sqlite://", exclusive=True)
    await database.start()
    await database.aclose()


async def test_its_thread_ends_with_the_farm(path: Path) -> None:
    path.parent.mkdir()
    database = Database(f"sqlite:///{path}", exclusive=True)
    await database.start()
    assert "dart-checkpoints" in {thread.name for thread in threading.enumerate()}
    await database.aclose()
    assert "dart-checkpoints" not in {thread.name for thread in threading.enumerate()}
