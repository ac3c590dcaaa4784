"""Probes of every desktop, and desktops that are kept from use."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from database_fixtures import locked
from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, wait_until
from test_farm_failures import abandon

from dart_server.database import write_queue
from dart_server.providers.base import DesktopHealth, HealthCause
from dart_server.wire import DesktopState


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider(freezes=True)


async def warm_farm(make_api: MakeApi, **settings: Any) -> Api:
    """A farm with one desktop that waits for nobody in particular."""
    api = await make_api(**{"max_desktops": 6, **settings})
    await api.call("PUT", "/v1/pools/p", json={"warm": 1})
    await wait_until(lambda: len(waiting(api)) == 1)
    return api


def waiting(api: Api) -> list[str]:
    slots = api.farm.pool.slots.values()
    return [slot.desktop_id for slot in slots if slot.unused and not slot.busy and slot.lease_id is None]


def quarantined(api: Api) -> list[str]:
    slots = api.farm.pool.slots.values()
    return [slot.desktop_id for slot in slots if slot.state is DesktopState.QUARANTINED]


async def probes(api: Api, rounds: int) -> None:
    for _ in range(rounds):
        await api.farm.pool.probes.run_round()


async def test_one_that_is_dead_is_replaced_at_once(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await warm_farm(make_api)
    (dead,) = waiting(api)
    await provider.kill(dead, HealthCause.KILLED_FROM_OUTSIDE)
    await probes(api, 1)
    await wait_until(lambda: waiting(api) not in ([], [dead]))
    assert quarantined(api) == []


async def test_one_that_only_does_not_answer_is_quarantined_after_a_while(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    api = await warm_farm(make_api, quarantine_ttl_s=100)
    (silent,) = waiting(api)
    provider.desktops[silent].session_alive = False
    await probes(api, 2)
    assert waiting(api) == [silent], "twice may be a slow moment"
    await probes(api, 1)
    assert quarantined(api) == [silent]
    await wait_until(lambda: len(waiting(api)) == 1)
    assert provider.desktops[silent].frozen, "it stands still for whoever looks at it"
    (shown,) = [d for d in (await api.call("GET", "/v1/desktops")).json() if d["state"] == "quarantined"]
    assert (shown["desktop_id"], shown["note"]) == (silent, "session_dead")
    clock.now += 101
    await api.farm.pool.tick()
    await wait_until(lambda: silent not in api.farm.pool.slots)
    assert silent not in provider.desktops


async def test_a_good_look_in_between_begins_the_count_anew(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await warm_farm(make_api)
    (slow,) = waiting(api)
    for _ in range(3):
        provider.desktops[slow].session_alive = False
        await probes(api, 2)
        provider.desktops[slow].session_alive = True
        await probes(api, 1)
    assert waiting(api) == [slow]


async def test_the_quarantine_has_a_bound(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await warm_farm(make_api, quarantine_desktops=1)
    kept = []
    for _ in range(2):
        (silent,) = waiting(api)
        provider.desktops[silent].session_alive = False
        await probes(api, 3)
        kept.append(silent)
        await wait_until(lambda: len(waiting(api)) == 1)
    assert quarantined(api) == [kept[1]], "the latest one"
    await wait_until(lambda: kept[0] not in provider.desktops)


async def test_without_a_quarantine_a_silent_one_is_replaced(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await warm_farm(make_api, quarantine_desktops=0)
    (silent,) = waiting(api)
    provider.desktops[silent].session_alive = False
    await probes(api, 3)
    await wait_until(lambda: silent not in provider.desktops and len(waiting(api)) == 1)
    assert quarantined(api) == []


async def test_a_probe_that_hangs_keeps_no_other_waiting(
    make_api: MakeApi, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api(max_desktops=6)
    await api.call("PUT", "/v1/pools/p", json={"warm": 3})
    await wait_until(lambda: len(waiting(api)) == 3)
    hangs, fails, dead = waiting(api)
    look = provider.health

    async def health(desktop_id: str) -> DesktopHealth:
        if desktop_id == hangs:
            await asyncio.Event().wait()
        if desktop_id == fails:
            raise RuntimeError("a provider's own mistake")
        return await look(desktop_id)

    monkeypatch.setattr(provider, "health", health)
    api.farm.pool.probes.timeout_s = 1.0
    await provider.kill(dead, HealthCause.KILLED_FROM_OUTSIDE)
    api.farm.pool.probes.start_round()
    await wait_until(lambda: dead not in api.farm.pool.slots)
    api.farm.pool.probes.start_round()
    await wait_until(lambda: not api.farm.pool.probes._running)
    assert {hangs, fails} <= set(api.farm.pool.slots)


async def test_a_leased_desktop_that_died_is_written_down_before_it_is_used(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await make_api()
    lease = await api.create_lease()
    await provider.kill(lease["desktop_id"], HealthCause.KILLED_FROM_OUTSIDE)
    await probes(api, 1)
    await wait_until(lambda: lease["desktop_id"] not in provider.desktops)
    health = (await api.call("GET", f"/v1/leases/{lease['lease_id']}/health", lease=lease)).json()
    assert (health["alive"], health["cause"], health["fault_owner"]) == (False, "killed_from_outside", "host")
    await api.reset(lease)


async def test_a_leased_desktop_at_its_own_limit_is_left_to_its_lease(
    make_api: MakeApi, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api()
    lease = await api.create_lease()
    provider.desktops[lease["desktop_id"]].cause = HealthCause.OOM
    await probes(api, 5)
    assert api.farm.pool.slots[lease["desktop_id"]].state is DesktopState.LEASED


async def test_an_idle_desktop_is_quarantined_and_released_by_hand(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await warm_farm(make_api)
    (chosen,) = waiting(api)
    path = f"/v1/desktops/{chosen}"
    reply = await api.call("POST", f"{path}/quarantine", json={"reason": "its fonts look odd"})
    assert (reply.status_code, reply.json()["state"], reply.json()["note"]) == (
        200,
        "quarantined",
        "its fonts look odd",
    )
    assert (await api.call("POST", f"{path}/quarantine")).json()["note"] == "its fonts look odd", "once is enough"
    await wait_until(lambda: len(waiting(api)) == 1)
    assert (await api.call("POST", f"{path}/release")).status_code == 200
    await wait_until(lambda: chosen not in provider.desktops)
    assert (await api.call("POST", f"{path}/release")).status_code == 404
    assert (await api.call("POST", f"{path}/quarantine")).status_code == 404


async def test_a_lease_goes_on_without_the_desktop_that_was_taken_from_it(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await make_api(max_desktops=3)
    lease = await api.create_lease()
    taken, before = lease["desktop_id"], dict(lease)
    assert (await api.call("POST", f"/v1/desktops/{taken}/quarantine")).status_code == 200
    path = f"/v1/leases/{lease['lease_id']}"
    run = {"json": {"argv": ["ls"]}}
    assert (await api.call("POST", f"{path}/execute", lease=before, **run)).status_code == 409
    shown = (await api.call("GET", path)).json()
    lease |= {"fencing_token": shown["fencing_token"]}
    failed = (await api.call("POST", f"{path}/execute", lease=lease, **run)).json()
    assert (failed["error"], failed["desktop"]["cause"]) == ("desktop_failed", "quarantined")
    await api.reset(lease)
    assert (await api.call("POST", f"{path}/execute", lease=lease, **run)).status_code == 200
    assert taken in provider.desktops
    assert provider.desktops[taken].frozen


def dead_leases(api: Api) -> list[str]:
    """Leases that slots are held for although they are not active."""
    active = {lease.lease_id for lease in api.farm.leases.active}
    return [slot.lease_id for slot in api.farm.pool.slots.values() if slot.lease_id not in (None, *active)]


async def test_a_leased_desktop_is_quarantined_while_the_database_goes_away(
    make_api: MakeApi, clock: ManualClock, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_server.database.engine.BUSY_MS", 20)
    monkeypatch.setattr(write_queue, "AVAILABILITY_TIMEOUT_S", 0.2)
    api = await make_api(max_desktops=3)
    lease, other = await api.create_lease(), await api.create_lease()
    path = f"/v1/desktops/{lease['desktop_id']}/quarantine"
    with locked(api.farm.settings.database_url):
        refused = await api.call("POST", path)
        assert (refused.status_code, refused.json()["error"]) == (503, "database_unavailable")
        assert provider.desktops[lease["desktop_id"]].frozen
        refused = await api.call("POST", f"/v1/desktops/{other['desktop_id']}/quarantine")
        assert (refused.status_code, quarantined(api)) == (503, [lease["desktop_id"]]), "nothing has changed"
    async with asyncio.timeout(30):
        while api.farm.database.unavailable_reason is not None:
            await clock.advance(2.0)
    assert (await api.call("POST", path)).json()["state"] == "quarantined"
    view = (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()
    assert (view["state"], view["desktop_id"] != lease["desktop_id"]) == ("active", True)
    assert (await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")).status_code == 204
    assert dead_leases(api) == []
    assert quarantined(api) == [lease["desktop_id"]]


async def test_a_lease_that_ends_while_its_desktop_is_quarantined_leaves_that_one_alone(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api(max_desktops=2, quarantine_ttl_s=100)
    lease = await api.create_lease()
    taken = lease["desktop_id"]
    begun, gate = hold_freezes(provider, monkeypatch)
    setting_aside = asyncio.create_task(api.call("POST", f"/v1/desktops/{taken}/quarantine"))
    await begun.wait()
    assert (await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")).status_code == 204
    gate.set()
    assert (await setting_aside).json()["state"] == "quarantined"
    assert dead_leases(api) == []
    again = await api.create_lease(ttl_s=1000)
    assert again["desktop_id"] != taken
    clock.now += 101
    await api.farm.pool.tick()
    await wait_until(lambda: taken not in provider.desktops)
    assert provider.desktops.keys() == {again["desktop_id"]}
    reply = await api.call("POST", f"/v1/leases/{again['lease_id']}/execute", lease=again, json={"argv": ["ls"]})
    assert reply.status_code == 200


async def test_a_farm_killed_in_the_quarantine_of_a_leased_desktop_comes_back_with_lease_and_quarantine(
    make_api: MakeApi, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api(max_desktops=3)
    lease = await api.create_lease()
    begun, _ = hold_freezes(provider, monkeypatch)
    setting_aside = asyncio.create_task(api.call("POST", f"/v1/desktops/{lease['desktop_id']}/quarantine"))
    await begun.wait()
    await api.farm.repository.flush_if_available()
    abandon(api.farm)
    setting_aside.cancel()
    await asyncio.wait({setting_aside})
    monkeypatch.undo()
    second = await make_api(max_desktops=3)
    view = (await second.call("GET", f"/v1/leases/{lease['lease_id']}")).json()
    assert (view["state"], quarantined(second)) == ("active", [lease["desktop_id"]])
    lease["fencing_token"] = view["fencing_token"]
    await second.reset(lease)
    reply = await second.call("POST", f"/v1/leases/{lease['lease_id']}/execute", lease=lease, json={"argv": ["ls"]})
    assert reply.status_code == 200


async def test_the_end_of_a_quarantine_removes_only_what_is_quarantined(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    api = await make_api(quarantine_ttl_s=100)
    lease = await api.create_lease(ttl_s=1000)
    api.farm.pool.quarantine._expires_at_s[lease["desktop_id"]] = clock.monotonic()
    await api.farm.pool.tick()
    assert api.farm.pool.slots[lease["desktop_id"]].state is DesktopState.LEASED


def hold_freezes(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Freezes set the first event and wait for the second."""
    begun, gate, freeze = asyncio.Event(), asyncio.Event(), provider.freeze

    async def held(desktop_id: str) -> None:
        begun.set()
        await gate.wait()
        await freeze(desktop_id)

    monkeypatch.setattr(provider, "freeze", held)
    return begun, gate


async def test_releasing_a_leased_desktop_ends_its_lease(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=2)
    lease = await api.create_lease()
    assert (await api.call("POST", f"/v1/desktops/{lease['desktop_id']}/release")).status_code == 200
    assert (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()["state"] == "released"


async def test_a_quarantine_outlives_its_farm(make_api: MakeApi, provider: FakeProvider, clock: ManualClock) -> None:
    api = await warm_farm(make_api, quarantine_ttl_s=100)
    (chosen,) = waiting(api)
    await api.call("POST", f"/v1/desktops/{chosen}/quarantine", json={"reason": "odd"})
    abandon(api.farm)
    clock.now += 1
    api = await make_api(max_desktops=6, quarantine_ttl_s=100)
    assert quarantined(api) == [chosen]
    assert provider.desktops[chosen].frozen
    assert api.farm.pool.slots[chosen].note == "odd"
    clock.now += 101
    await api.farm.pool.tick()
    await wait_until(lambda: chosen not in provider.desktops)
