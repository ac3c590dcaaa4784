"""The database goes away and comes back: nothing is lost, nothing is written twice, and nobody is granted what is not written."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from database_fixtures import lease, locked, slot
from farm_harness import MakeApi, ManualClock, wait_until
from sqlalchemy import Executable, event, select
from sqlalchemy.exc import IntegrityError, OperationalError

from dart_server.clock import SystemClock
from dart_server.database import write_queue
from dart_server.database.models import EventRow
from dart_server.database.repository import NewEvent, Repository
from dart_server.database.transactions import TransactionWriter
from dart_server.database.write_queue import Database
from dart_server.errors import DatabaseUnavailableError, FarmConfigError
from dart_server.records import LeaseRecord, Slot
from dart_server.wire import DesktopState


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dart_server.database.engine.BUSY_MS", 20)
    monkeypatch.setattr(write_queue, "AVAILABILITY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(write_queue, "RETRY_MAX_S", 0.1)


@pytest.fixture
async def database(short_timeouts: None, database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    await database.start()
    yield database
    await database.aclose()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'farm.db'}"


@pytest.fixture
async def file_database(short_timeouts: None, file_url: str) -> AsyncIterator[Database]:
    database = Database(file_url)
    await database.start()
    yield database
    await database.aclose()


@pytest.fixture
def repository(file_database: Database) -> Repository:
    return Repository(file_database, SystemClock())


async def numbers(database: Database) -> list[int]:
    """What the events of the tests count, in the order in which they were written."""
    rows = await database.rows(select(EventRow.data).order_by(EventRow.id))
    return [row.data["n"] for row in rows]


def note(number: int) -> NewEvent:
    return NewEvent("test", data={"n": number})


async def test_writes_wait_in_order_for_a_locked_file(
    file_url: str, file_database: Database, repository: Repository
) -> None:
    with locked(file_url):
        receipts = [repository.add_event(note(number)) for number in range(1200)]
        await wait_until(lambda: file_database.unavailable_reason is not None)
        with pytest.raises(DatabaseUnavailableError) as refused:
            await repository.events(0, 10)
        assert (refused.value.status, refused.value.code.value) == (503, "database_unavailable")
        with pytest.raises(DatabaseUnavailableError):
            await repository.wait_available()
        assert not any(receipt.done() for receipt in receipts)
    await asyncio.gather(*receipts)
    assert file_database.unavailable_reason is None
    assert await numbers(file_database) == list(range(1200))


async def test_writes_wait_for_a_full_disk(file_database: Database, repository: Repository) -> None:
    await repository.add_event(note(0))
    engine = file_database._transactions._engine
    limit = {"pages": 1}

    def few_pages(connection: Any, _record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={limit['pages']}")

    event.listen(engine, "connect", few_pages)
    engine.dispose()
    receipts = [repository.add_event(NewEvent("test", data={"n": n, "much": "x" * 5000})) for n in range(1, 30)]
    await wait_until(lambda: file_database.unavailable_reason is not None)
    assert "full" in str(file_database.unavailable_reason)
    limit["pages"] = 100_000
    await asyncio.gather(*receipts)
    assert await numbers(file_database) == list(range(30))


async def test_a_commit_whose_answer_was_lost_is_not_made_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(database, SystemClock())
    await repository.add_event(note(0))
    commit = TransactionWriter.commit
    tries: list[int] = []

    def answer_lost(self: TransactionWriter, number: int, statements: Sequence[Executable], *, is_retry: bool) -> None:
        tries.append(number)
        if len(tries) == 1:
            raise OperationalError("", None, sqlite3.OperationalError("lost before"), connection_invalidated=True)
        commit(self, number, statements, is_retry=is_retry)
        if len(tries) == 2:
            raise OperationalError("", None, sqlite3.OperationalError("lost after"), connection_invalidated=True)

    monkeypatch.setattr(TransactionWriter, "commit", answer_lost)
    await repository.add_event(note(1))
    await repository.add_event(note(2))
    assert len(set(tries[:3])) == 1, "the same transaction is tried again"
    assert await numbers(database) == [0, 1, 2]


async def test_refused_writes_are_found_by_halving(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(database, SystemClock())
    await database.write(EventRow.__table__.insert().values(id=7, at=0.0, kind="taken", data={"n": -1}))
    transactions: list[int] = []
    commit = TransactionWriter.commit

    def counted(self: TransactionWriter, number: int, statements: Sequence[Executable], *, is_retry: bool) -> None:
        transactions.append(len(statements))
        commit(self, number, statements, is_retry=is_retry)

    monkeypatch.setattr(TransactionWriter, "commit", counted)
    faulty = {100, 101, 400}
    receipts = []
    for number in range(write_queue.BATCH_MAX):
        if number in faulty:
            receipts.append(database.write(EventRow.__table__.insert().values(id=7, at=0.0, kind="twice", data={})))
        else:
            values = {"id": 1000 + number, "at": 0.0, "kind": "test", "data": {"n": number}}
            receipts.append(database.write(EventRow.__table__.insert().values(values)))
    outcomes = await asyncio.gather(*receipts, return_exceptions=True)
    assert {number for number, outcome in enumerate(outcomes) if isinstance(outcome, IntegrityError)} == faulty
    assert await numbers(database) == [-1, *(number for number in range(write_queue.BATCH_MAX) if number not in faulty)]
    assert len(transactions) < 60, "not one by one"
    assert database.unavailable_reason is None
    assert await repository.events(0, 1, kind="twice") == []


async def test_what_a_refused_write_was_given_is_not_logged(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"id": 7, "at": 0.0, "kind": "test", "data": {"label": "of a tenant 5f0c"}}
    statement = EventRow.__table__.insert().values(values)
    await database.write(statement)
    with caplog.at_level(logging.ERROR), pytest.raises(IntegrityError) as refused:
        await database.wait_committed(database.write(statement))
    assert "a write to the database failed" in caplog.text
    assert "5f0c" not in caplog.text + str(refused.value)


async def test_a_grant_that_cannot_be_written_is_none_now_and_later(
    file_url: str, file_database: Database, repository: Repository
) -> None:
    with locked(file_url):
        first = slot("1")
        # The first write hangs in the database already when the grants come.
        repository.add_event(note(0))
        await wait_until(lambda: file_database.unavailable_reason is not None)
        record = lease("1", first)
        with pytest.raises(DatabaseUnavailableError):
            await repository.add_leases([(record, first)])
        assert not first.has_row
    assert await repository.active_leases() == []
    assert await repository.existing_desktops() == []
    assert await repository.events(0, 10, kind="lease_granted") == []
    await repository.add_leases([(lease("1", first), first)])
    assert [found.lease_id for found in await repository.active_leases()] == ["lease_1"]


async def test_a_grant_that_was_sent_already_is_ended_when_it_is_refused(
    file_url: str, file_database: Database, repository: Repository
) -> None:
    with locked(file_url):
        first = slot("1")
        with pytest.raises(DatabaseUnavailableError):
            await repository.add_leases([(lease("1", first), first)])
    assert await repository.active_leases() == []
    kinds = [event.kind for event in await repository.events(0, 10)]
    assert kinds == ["lease_granted", "lease_released"]


async def test_a_key_that_could_not_be_made_opens_nothing_later(file_url: str, repository: Repository) -> None:
    await repository.add_event(note(0))
    with locked(file_url), pytest.raises(DatabaseUnavailableError):
        await repository.add_key("key_1", "late", "ab", "admin")
    found = await repository.key_by_hash("ab")
    assert found is None or found.revoked_at is not None


async def test_of_heartbeats_that_wait_only_the_last_is_written(
    file_url: str, file_database: Database, repository: Repository
) -> None:
    first = slot("1")
    record = lease("1", first)
    await repository.add_lease(record, first)
    with locked(file_url):
        repository.add_event(note(0))
        await wait_until(lambda: file_database.unavailable_reason is not None)
        for second in range(500):
            record.expires_at = 1000.0 + second
            repository.extend_lease(record)
        assert file_database.pending_writes == 2
    found = await repository.lease("lease_1")
    assert found is not None
    assert found.expires_at == 1499.0


async def test_beyond_its_bound_history_is_left_out_and_that_is_told(
    file_url: str, file_database: Database, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "QUEUE_MAX", 10)
    told: list[tuple[float, int]] = []
    file_database.on_recovered = lambda away_s, left_out: told.append((away_s, left_out))
    with locked(file_url):
        repository.add_event(note(0))
        await wait_until(lambda: file_database.unavailable_reason is not None)
        for number in range(1, 31):
            repository.add_event(note(number))
        receipt = repository.save_desktop(slot("1"))
    await receipt
    assert await numbers(file_database) == list(range(11))
    assert [left_out for _, left_out in told] == [20]
    assert [living.desktop_id for living in await repository.existing_desktops()] == ["desktop_1"], "state is kept"


async def test_a_stop_does_not_wait_for_ever(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_queue, "CLOSE_TIMEOUT_S", 0.2)
    database = Database(file_url)
    await database.start()
    with locked(file_url):
        database.write()
        await wait_until(lambda: database.unavailable_reason is not None)
        async with asyncio.timeout(30):
            await database.aclose()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://dart:very-secret@127.0.0.1:1/dart", "cannot be used"),
        ("sqlite:////nonexistent/farm.db", "cannot be used"),
        ("mysql://dart:very-secret@localhost/dart", "not supported"),
        ("what is this: very-secret", "no URL"),
    ],
)
async def test_a_database_that_cannot_be_used_is_one_sentence_without_its_password(url: str, words: str) -> None:
    with pytest.raises(FarmConfigError) as refused:
        await Database(url).start()
    assert words in str(refused.value)
    assert "very-secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_an_outage_is_told_once_while_ticks_go_on_with_what_needs_no_ledger(
    make_api: MakeApi, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = await make_api(probe_interval_s=1.0)
    await api.create_lease()
    probes: list[float] = []
    monkeypatch.setattr(api.farm.pool.probes, "start_round", lambda: probes.append(clock.monotonic()))
    with locked(api.farm.settings.database_url):
        # Nobody has written: the tick's own look at the keys finds out, and has to wait for it in real time.
        async with asyncio.timeout(30):
            while api.farm.database.unavailable_reason is None or len(probes) < 8:
                await clock.advance(1.0)
                await asyncio.sleep(0.01)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in told] == [None] * len(told), "no trace"
    assert [record.getMessage()[:20] for record in told if "away" in record.getMessage()] == ["the database is away"]
    async with asyncio.timeout(30):
        while api.farm.database.unavailable_reason is not None:
            await clock.advance(2.0)
            await asyncio.sleep(0.01)


async def test_the_farm_goes_on_while_its_database_is_away(make_api: MakeApi, clock: ManualClock) -> None:
    api = await make_api()
    held = await api.create_lease()
    path = f"/v1/leases/{held['lease_id']}"
    with locked(api.farm.settings.database_url):
        api.farm.repository.add_event(note(0))
        await wait_until(lambda: api.farm.database.unavailable_reason is not None)
        assert (await api.call("POST", f"{path}/heartbeat")).status_code == 200
        refused = await api.call("POST", "/v1/leases", json={"client_request_id": "while-away-1"})
        assert (refused.status_code, refused.json()["error"]) == (503, "database_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        not_ready_reasons = await api.call("GET", "/readyz")
        assert not_ready_reasons.status_code == 503
        assert "database is away" in not_ready_reasons.json()["detail"]
        history = await api.call("GET", "/v1/events")
        assert (history.status_code, history.json()["error"]) == (503, "database_unavailable")
        unknown = await api.call("GET", "/v1/leases", headers={"authorization": "Bearer unknown"})
        assert unknown.status_code == 503, "whether a key is good cannot be told, which is not the same as no"
        assert (await api.call("GET", path)).json()["state"] == "active"
    async with asyncio.timeout(30):
        while api.farm.database.unavailable_reason is not None:
            await clock.advance(2.0)
            await asyncio.sleep(0.01)
    assert (await api.call("GET", "/readyz")).status_code == 200
    again = await api.create_lease(client_request_id="while-away-1")
    assert again["lease_id"] != held["lease_id"]
    events = (await api.call("GET", "/v1/events")).json()
    assert [event["data"]["events_dropped"] for event in events if event["kind"] == "database_recovered"] == [0]


async def test_a_grant_that_expires_before_it_is_refused_gives_its_desktop_back_once(
    make_api: MakeApi, clock: ManualClock
) -> None:
    api = await make_api(warm_desktops=1)
    former = await api.create_lease()
    await api.call("DELETE", f"/v1/leases/{former['lease_id']}")
    await wait_until(lambda: sum(slot.unused and not slot.busy for slot in api.farm.pool.slots.values()) == 1)
    body = {"client_request_id": "expires-first", "ttl_s": 1.5}
    with locked(api.farm.settings.database_url):
        claiming = asyncio.create_task(api.call("POST", "/v1/leases", json=body))
        await wait_until(lambda: bool(api.farm.leases.active))
        (pending,) = api.farm.leases.active
        clock.now += 2.0
        await api.farm.leases.expire_due()
        assert (await claiming).json()["error"] == "database_unavailable"
        assert api.farm.pool.queue.fair_queue.held(pending.owner) == 0
    async with asyncio.timeout(30):
        while api.farm.database.unavailable_reason is not None:
            await clock.advance(2.0)
    ends = await api.farm.repository.events(0, 50, lease_id=pending.lease_id)
    assert sum(event.kind in ("lease_expired", "lease_released") for event in ends) == 1


async def test_a_refused_grant_leaves_its_slot_to_the_next_lease(
    make_api: MakeApi, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api(max_desktops=1)
    repository, gate = api.farm.repository, asyncio.Event()

    async def refused(grants: Sequence[tuple[LeaseRecord, Slot]]) -> None:
        await gate.wait()
        raise DatabaseUnavailableError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(repository, "add_leases", refused)
        claiming = asyncio.create_task(
            api.call("POST", "/v1/leases", json={"client_request_id": "expires-first", "ttl_s": 1.5})
        )
        await wait_until(lambda: bool(api.farm.leases.active))
        clock.now += 2.0
        await api.farm.leases.expire_due()
    held = await api.create_lease()
    gate.set()
    assert (await claiming).json()["error"] == "database_unavailable"
    (slot_,) = api.farm.pool.slots.values()
    (lease_,) = api.farm.leases.active
    assert (slot_.lease_id, slot_.state) == (held["lease_id"], DesktopState.LEASED)
    assert api.farm.pool.queue.fair_queue.held(lease_.owner) == 1
    run = {"json": {"argv": ["ls"]}}
    assert (await api.call("POST", f"/v1/leases/{held['lease_id']}/execute", lease=held, **run)).status_code == 200
