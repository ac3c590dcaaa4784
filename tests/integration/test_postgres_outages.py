"""A PostgreSQL server of the test's own is stopped, killed, frozen, and started again under a database that writes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import database_urls
import pytest
from postgres_server import Cluster, find_programs, private_cluster
from sqlalchemy import select

from dart_server.clock import SystemClock
from dart_server.database import transactions, write_queue
from dart_server.database.models import EventRow
from dart_server.database.repository import NewEvent, Repository
from dart_server.database.write_queue import Database
from dart_server.errors import DatabaseUnavailableError, FarmConfigError

pytestmark = pytest.mark.postgres
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with private_cluster(find_programs()) as cluster:
        yield cluster


@pytest.fixture
def url(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(database_urls.VARIABLE, cluster.url)
    with database_urls.fresh_database("postgres", cluster.directory) as url:
        yield url


@pytest.fixture
async def database(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(write_queue, "AVAILABILITY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(write_queue, "STALL_TIMEOUT_S", 1.0)
    database = Database(url, exclusive=True)
    await database.start()
    yield database
    await database.aclose()


async def until_away(database: Database) -> None:
    async with asyncio.timeout(LIMIT_S):
        while database.unavailable_reason is None:  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.01)


async def numbers(database: Database) -> list[int]:
    rows = await database.rows(select(EventRow.data).order_by(EventRow.id))
    return [row.data["n"] for row in rows]


async def test_connections_that_are_cut_lose_nothing_and_double_nothing(url: str, database: Database) -> None:
    repository = Repository(database, SystemClock())
    cut = 0
    for number in range(300):
        receipt = repository.add_event(NewEvent("test", data={"n": number}))
        if number % 10 == 0:
            cut += await asyncio.to_thread(database_urls.end_connections, url)
        if number % 25 == 0:
            async with asyncio.timeout(LIMIT_S):
                await receipt
    async with asyncio.timeout(LIMIT_S):
        await receipt
        assert await numbers(database) == list(range(300))
    assert cut > 5
    assert database.unavailable_reason is None


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_writes_wait_for_a_server_that_is_started_again(cluster: Cluster, database: Database, how: str) -> None:
    repository = Repository(database, SystemClock())
    await repository.add_event(NewEvent("test", data={"n": 0}))
    await asyncio.to_thread(getattr(cluster, how))
    try:
        receipts = [repository.add_event(NewEvent("test", data={"n": number})) for number in range(1, 700)]
        await until_away(database)
        with pytest.raises(DatabaseUnavailableError):
            await repository.events(0, 10)
        assert not any(receipt.done() for receipt in receipts)
    finally:
        await asyncio.to_thread(cluster.start)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*receipts)
    assert await numbers(database) == list(range(700))


async def test_a_read_notices_a_server_that_was_restarted_meanwhile(cluster: Cluster, database: Database) -> None:
    repository = Repository(database, SystemClock())
    await repository.add_event(NewEvent("test", data={"n": 0}))
    await asyncio.to_thread(cluster.stop)
    await asyncio.to_thread(cluster.start)
    assert await numbers(database) == [0], "the first connection is dead, the second one is not"
    await asyncio.to_thread(cluster.stop)
    try:
        with pytest.raises(DatabaseUnavailableError):
            await repository.events(0, 10)
    finally:
        await asyncio.to_thread(cluster.start)
    async with asyncio.timeout(LIMIT_S):
        while database.unavailable_reason is not None:  # noqa: ASYNC110 - nobody writes: it must be found out all the same
            await asyncio.sleep(0.05)
    assert await numbers(database) == [0]


async def test_a_frozen_server_refuses_readers_and_keeps_writers(cluster: Cluster, database: Database) -> None:
    repository = Repository(database, SystemClock())
    await repository.add_event(NewEvent("test", data={"n": 0}))
    await asyncio.to_thread(cluster.send, signal.SIGSTOP)
    try:
        receipt = repository.add_event(NewEvent("test", data={"n": 1}))
        await until_away(database)
        with pytest.raises(DatabaseUnavailableError):
            await repository.events(0, 10)
        assert not receipt.done()
    finally:
        await asyncio.to_thread(cluster.send, signal.SIGCONT)
    async with asyncio.timeout(LIMIT_S):
        await receipt
    assert await numbers(database) == [0, 1]


async def test_a_database_is_one_farms_alone(url: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "START_S", 0.5)
    second = Database(url, exclusive=True)
    with pytest.raises(FarmConfigError, match="another farm"):
        await second.start()
    await second.aclose()
    beside = Database(url)
    await beside.start()
    await Repository(beside, SystemClock()).add_key("key_1", "made beside the farm", "ab", "lease")
    await beside.aclose()
    assert await Repository(database, SystemClock()).key_by_hash("ab") is not None
