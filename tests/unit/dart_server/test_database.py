"""The database's statements: what is written is what is read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from database_fixtures import SHAPE, lease, slot
from farm_harness import ManualClock
from sqlalchemy.exc import IntegrityError

from dart_server.database.repository import NewEvent, Repository
from dart_server.database.retention import BATCH_ROWS, DAY_S, EVENTS, EVERY_S, Retention
from dart_server.database.write_queue import Database
from dart_server.records import PoolRecord, SnapshotRecord
from dart_server.wire import DesktopState, LeaseState


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    await database.start()
    yield database
    await database.aclose()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def repository(database: Database, clock: ManualClock) -> Repository:
    return Repository(database, clock)


async def test_a_key_keeps_its_quotas_its_end_and_its_last_use(repository: Repository, clock: ManualClock) -> None:
    made = await repository.add_key(
        "key_1", "team a", "ab", "lease", expires_at=9e9, max_leases=3, max_waiting=0, weight=2.5
    )
    assert (made.expires_at, made.max_leases, made.max_waiting, made.weight) == (9e9, 3, 0, 2.5)
    assert await repository.add_key("key_2", "the same secret", "ab", "admin") == made
    await repository.add_key("key_3", "team b", "cd", "read")
    assert (await repository.key_by_hash("ab")) == made == await repository.key("key_1")
    await clock.advance(5.0)
    await repository.touch_key("key_1")
    repository.revoke_key("key_1")
    revoked_at = clock.time()
    assert await repository.key_by_hash("ab") == await repository.key("key_1")
    await clock.advance(5.0)
    repository.revoke_key("key_1")
    first, second = await repository.keys()
    assert (first.last_used_at, first.revoked_at) == (revoked_at, revoked_at), "a second revocation changes nothing"
    assert (second.key_id, second.weight, second.max_leases, second.last_used_at) == ("key_3", 1.0, None, None)


async def test_pools_are_put_replaced_and_deleted_by_name(repository: Repository) -> None:
    repository.put_pool(PoolRecord("calc", {"warm": 2}, created_at=1.0, updated_at=1.0))
    repository.put_pool(PoolRecord("basic", {"warm": 1}, created_at=2.0, updated_at=2.0))
    repository.put_pool(PoolRecord("calc", {"warm": 5}, created_at=1.0, updated_at=3.0))
    assert await repository.pool("calc") == PoolRecord("calc", {"warm": 5}, created_at=1.0, updated_at=3.0)
    assert [pool.name for pool in await repository.pools()] == ["basic", "calc"]
    await repository.delete_pool("calc")
    assert await repository.pool("calc") is None


async def test_events_are_found_by_desktop_lease_and_kind(repository: Repository) -> None:
    for number in range(3):
        repository.add_event(NewEvent("a", f"desktop_{number}", "lease_1", data={"n": number}))
    repository.add_event(NewEvent("b", "desktop_1", "lease_2"))
    found = await repository.events(0, 10)
    assert [event.kind for event in found] == ["a", "a", "a", "b"]
    assert [event.data["n"] for event in await repository.events(found[0].id, 1, lease_id="lease_1")] == [1]
    assert [event.id for event in await repository.events(0, 10, desktop_id="desktop_1")] == [found[1].id, found[3].id]
    assert [event.id for event in await repository.events(0, 10, desktop_id="desktop_1", kind="b")] == [found[3].id]
    assert await repository.events(0, 10, kind="c") == []


async def test_the_grants_of_a_claim_are_written_all_or_none(repository: Repository) -> None:
    first, second = slot("1"), slot("2")
    await repository.add_leases([(lease("1", first, claim_id="claim_1"), first), (lease("2", second), second)])
    (found,) = await repository.leases_of_claim("claim_1")
    assert (found.lease_id, found.priority, found.gang_size, found.labels) == ("lease_1", -7, 2, {"team": "ä"})
    third, fourth = slot("3"), slot("4")
    with pytest.raises(IntegrityError):
        await repository.add_leases([(lease("3", third), third), (lease("4", fourth, request="1"), fourth)])
    assert {found.lease_id for found in await repository.active_leases()} == {"lease_1", "lease_2"}
    assert {living.desktop_id for living in await repository.existing_desktops()} == {"desktop_1", "desktop_2"}
    assert len(await repository.events(0, 10, kind="lease_granted")) == 2


async def test_an_ended_lease_and_a_gone_desktop_are_not_living(repository: Repository) -> None:
    used = slot("1")
    record = lease("1", used)
    await repository.add_lease(record, used)
    record.state, record.fencing_token = LeaseState.RELEASED, 4
    repository.end_lease(record)
    used.state, used.lease_id = DesktopState.GONE, None
    repository.save_desktop(used)
    assert await repository.active_leases() == []
    assert await repository.existing_desktops() == []
    kept = await repository.lease("lease_1")
    assert kept is not None
    assert (kept.state, kept.fencing_token) == (LeaseState.RELEASED, 4)


async def test_what_ended_long_ago_is_forgotten_and_what_lives_is_not(
    repository: Repository, database: Database, clock: ManualClock
) -> None:
    kept, ended, gone = slot("kept"), slot("ended"), slot("gone")
    for name, on in (("kept", kept), ("ended", ended)):
        await repository.add_lease(lease(name, on), on)
    repository.add_setup("key_1", "a" * 64, "lease_ended", "00")
    repository.save_desktop(gone)
    gone.state = DesktopState.GONE
    repository.save_desktop(gone, NewEvent("desktop_gone", gone.desktop_id))
    record = await repository.lease("lease_ended")
    assert record is not None
    record.state = LeaseState.RELEASED
    await repository.end_lease(record)
    retention = Retention(repository, database, clock, days=1, events=0)
    await retention.tick()
    assert len(await repository.events(0, 10)) == 5, "it is too early"
    await clock.advance(DAY_S + 1)
    await retention.tick()
    (last,) = await repository.events(0, 10)
    assert last.kind == "lease_released", "the last event keeps the count"
    assert await repository.lease("lease_ended") is None
    assert [active.lease_id for active in await repository.active_leases()] == ["lease_kept"]
    assert {living.desktop_id for living in await repository.existing_desktops()} == {"desktop_kept", "desktop_ended"}
    repository.add_event(NewEvent("later"))
    assert (await repository.events(0, 10))[-1].id == last.id + 1
    again = slot("ended-again")
    await repository.add_lease(lease("ended-again", again, request="ended"), again)


async def test_forgetting_is_done_a_little_at_a_time(repository: Repository, clock: ManualClock) -> None:
    for _ in range(50):
        repository.add_event(NewEvent("old"))
    await clock.advance(100.0)
    repository.add_event(NewEvent("new"))
    before = clock.time() - 50.0
    await repository.delete_old_events(before, 20)
    assert len(await repository.events(0, 100)) == 31
    for _ in range(3):
        await repository.delete_old_events(before, 20)
    assert [event.kind for event in await repository.events(0, 100)] == ["new"]


async def test_a_history_of_a_bounded_length_takes_with_it_what_ended_before(
    repository: Repository, database: Database, clock: ManualClock
) -> None:
    for name in ("early", "late"):
        on = slot(name)
        await repository.add_lease(lease(name, on, request=f"request-{name}"), on)
        record = await repository.lease(f"lease_{name}")
        assert record is not None
        record.state = LeaseState.RELEASED
        await repository.end_lease(record)
        await clock.advance(10.0)
    retention = Retention(repository, database, clock, days=0, events=2)
    for _ in range(3):
        await retention.tick()
        await clock.advance(1.0)
    assert [event.lease_id for event in await repository.events(0, 10)] == ["lease_late", "lease_late"]
    assert await repository.lease("lease_early") is None
    assert await repository.lease("lease_late") is not None
    endless = Retention(repository, database, clock, days=0, events=0)
    await endless.tick()
    assert len(await repository.events(0, 10)) == 2


def test_no_farm_writes_faster_than_it_forgets() -> None:
    record = Path(__file__).parents[3] / "benchmarks" / "results" / "farm_load.json"
    leases_per_s, events_of_a_lease = json.loads(record.read_text())["figures"]["leases_per_s"], 5
    assert leases_per_s < BATCH_ROWS / EVERY_S
    assert leases_per_s * events_of_a_lease < EVENTS / EVERY_S


async def test_keys_that_ended_long_ago_are_forgotten_but_for_the_administrators(
    repository: Repository, clock: ManualClock
) -> None:
    now = clock.time()
    for name, scope, expires_at in (
        ("good", "lease", None),
        ("short", "lease", now + 5),
        ("long", "lease", now + 500),
        ("revoked", "read", None),
        ("admin", "admin", None),
    ):
        await repository.add_key(name, name, name, scope, expires_at=expires_at)
    for name in ("revoked", "admin"):
        repository.revoke_key(name)
    await repository.delete_old_keys(now - 1, 10)
    assert len(await repository.keys()) == 5, "it is too early"
    await clock.advance(100.0)
    await repository.delete_old_keys(clock.time() - 50, 10)
    assert {key.key_id for key in await repository.keys()} == {"good", "long", "admin"}
    again = await repository.add_key("another", "admin", "admin", "admin")
    assert again.revoked_at is not None, "the secret of the farm's own key is not good again"


async def test_a_deleted_snapshot_is_kept_while_something_stands_on_it(
    repository: Repository, clock: ManualClock
) -> None:
    records = [
        SnapshotRecord(
            snapshot_id=name, kind="user", name=None, owner="key_1", setup_key=None, shape=SHAPE,
            image_digest="sha256:00", parent=parent, bytes=1, created_at=1.0, last_used_at=1.0,
        )
        for name, parent in (("snap_base", None), ("snap_child", "snap_base"), ("snap_used", None))
    ]  # fmt: skip
    user = slot("1")
    user.snapshot_id = "snap_used"
    repository.save_desktop(user)
    for record in records:
        repository.add_snapshot(record)
        repository.finish_snapshot(record, user)
    repository.end_snapshot("snap_base", "deleted", "asked for")
    repository.end_snapshot("snap_used", "deleted", "asked for")
    await clock.advance(100.0)
    await repository.delete_old_snapshots(clock.time(), 10)
    assert set(await repository.snapshot_ancestry({"snap_child", "snap_used"})) == {
        "snap_child",
        "snap_base",
        "snap_used",
    }
    repository.end_snapshot("snap_child", "deleted", "asked for")
    user.state = DesktopState.GONE
    repository.save_desktop(user)
    await clock.advance(100.0)
    await repository.delete_old_snapshots(clock.time(), 10)
    await repository.delete_old_snapshots(clock.time(), 10)
    assert await repository.snapshot_ancestry({"snap_child", "snap_base", "snap_used"}) == {}
