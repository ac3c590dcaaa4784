"""Copies made ahead of need and frozen: what is asked for again and again is there when it is asked for once more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, wait_until
from test_farm_failures import abandon

from dart_server.pool import backoff
from dart_server.providers import base
from dart_server.wire import DesktopState

KEY = "a" * 64
OTHER = "b" * 64


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider(freezes=True)


async def standby_farm(make_api: MakeApi, **settings: Any) -> Api:
    return await make_api(**{"standby_desktops": 2, "max_desktops": 8, **settings})


def frozen(api: Api) -> list[str]:
    """Ids of the desktops that stand still and wait."""
    slots = api.farm.pool.slots.values()
    return [slot.desktop_id for slot in slots if slot.state is DesktopState.STANDBY and slot.frozen and not slot.busy]


async def call(api: Api, lease: dict[str, Any]) -> int:
    path = f"/v1/leases/{lease['lease_id']}/execute"
    return (await api.call("POST", path, lease=lease, json={"argv": ["ls"]})).status_code


async def reset_repeatedly(api: Api, lease: dict[str, Any], **fields: Any) -> None:
    """Reset until the farm expects the next one."""
    for _ in range(2):
        await api.reset(lease, **fields)
    await wait_until(lambda: len(frozen(api)) == 2)


async def prepared(api: Api) -> dict[str, Any]:
    """A lease whose prepared state is published under KEY and reset to twice."""
    lease = await api.create_lease()
    await api.publish(lease, KEY)
    await reset_repeatedly(api, lease, setup_key=KEY)
    return lease


async def test_a_reset_thaws_a_copy_that_waits_and_the_next_is_made(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await standby_farm(make_api)
    lease = await prepared(api)
    used = [lease["desktop_id"]]
    for _ in range(5):
        await wait_until(lambda: len(frozen(api)) == 2)
        waiting, before, restores = frozen(api), dict(lease), sum(verb == "restore" for verb, _ in provider.log)
        answer = await api.reset(lease, setup_key=KEY)
        assert answer["desktop_id"] in waiting
        assert (answer["restored"], answer["standby"], answer["setup_key"]) == (True, True, KEY)
        assert answer["fencing_token"] > before["fencing_token"]
        assert not provider.desktops[answer["desktop_id"]].frozen
        assert await call(api, lease) == 200
        assert await call(api, before) == 409, "late calls are refused"
        used.append(answer["desktop_id"])
        await wait_until(lambda: len(frozen(api)) == 2)
        assert sum(verb == "restore" for verb, _ in provider.log) == restores + 1
    assert len(set(used)) == 6, "no desktop is handed on"
    await wait_until(lambda: len(provider.desktops) == 3)
    assert all(provider.desktops[name].frozen for name in frozen(api))


async def test_a_claim_takes_a_frozen_copy(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await standby_farm(make_api)
    await prepared(api)
    waiting = frozen(api)
    lease = await api.create_lease(setup_key=KEY)
    assert lease["desktop_id"] in waiting
    assert await call(api, lease) == 200


async def test_a_claim_of_something_else_leaves_the_copies_while_there_is_room(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await standby_farm(make_api)
    await prepared(api)
    waiting = frozen(api)
    lease = await api.create_lease(shape={"font_size": 12})
    assert lease["desktop_id"] not in waiting
    assert frozen(api) == waiting


async def test_frozen_copies_make_way_for_those_who_wait(make_api: MakeApi) -> None:
    api = await standby_farm(make_api, max_desktops=4)
    await prepared(api)
    leases = [await api.create_lease() for _ in range(3)]
    assert len({lease["desktop_id"] for lease in leases}) == 3
    assert frozen(api) == []


async def test_what_was_asked_for_once_is_not_kept(make_api: MakeApi) -> None:
    api = await standby_farm(make_api)
    lease = await api.create_lease()
    await api.publish(lease, KEY)
    await api.reset(lease, setup_key=KEY)
    await api.farm.pool.tick()
    assert list(api.farm.pool.slots) == [lease["desktop_id"]]


async def test_copies_that_nobody_asks_for_any_more_go(make_api: MakeApi, clock: ManualClock) -> None:
    api = await standby_farm(make_api)
    lease = await api.create_lease(ttl_s=3600)
    await api.publish(lease, KEY)
    await reset_repeatedly(api, lease, setup_key=KEY)
    clock.now += 1500
    await api.farm.pool.tick()
    await wait_until(lambda: list(api.farm.pool.slots) == [lease["desktop_id"]])


async def test_a_lease_that_turns_to_another_task_finds_that_one_after_a_while(make_api: MakeApi) -> None:
    api = await standby_farm(make_api)
    lease = await prepared(api)
    await api.publish(lease, OTHER)
    hits = [(await api.reset(lease, setup_key=OTHER))["standby"] for _ in range(2)]
    assert hits[0] is False
    for _ in range(20):
        await wait_until(lambda: len(frozen(api)) == 2)
        hits.append((await api.reset(lease, setup_key=OTHER))["standby"])
    assert hits[-5:] == [True] * 5


async def test_a_frozen_copy_that_died_is_made_anew_at_the_reset(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await standby_farm(make_api)
    lease = await prepared(api)
    for name in frozen(api):
        await provider.kill(name, base.HealthCause.KILLED_FROM_OUTSIDE)
    answer = await api.reset(lease, setup_key=KEY)
    assert answer["setup_key"] == KEY
    assert await call(api, lease) == 200


async def test_a_frozen_copy_that_died_is_found_by_the_probe_and_replaced(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await standby_farm(make_api)
    await prepared(api)
    (dead, _) = frozen(api)
    await provider.kill(dead, base.HealthCause.KILLED_FROM_OUTSIDE)
    api.farm.pool.probes.start_round()
    await wait_until(lambda: dead not in api.farm.pool.slots and len(frozen(api)) == 2)
    assert dead not in provider.desktops


async def test_a_farm_that_was_killed_leaves_no_frozen_copies_behind(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    api = await standby_farm(make_api)
    lease = await prepared(api)
    moved = (await api.reset(lease, setup_key=KEY))["desktop_id"]
    await wait_until(lambda: len(frozen(api)) == 2)
    abandon(api.farm)
    provider.desktops[moved].frozen = True
    clock.now += 1
    api = await standby_farm(make_api)
    assert set(provider.desktops) == {moved}
    assert await call(api, lease) == 200, "one that was killed before it thawed is thawed"


async def test_copies_that_cannot_be_made_are_tried_later_and_one_at_a_time(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    api = await standby_farm(make_api)
    lease = await api.create_lease(ttl_s=3600)
    await api.publish(lease, KEY)
    await reset_repeatedly(api, lease, setup_key=KEY)
    provider.host_faults = 3
    restores = sum(verb == "restore" for verb, _ in provider.log)
    await api.reset(lease, setup_key=KEY)
    await wait_until(lambda: provider.host_faults == 0 and len(api.farm.pool.slots) == 2)
    for _ in range(5):
        await api.farm.pool.tick()
    assert sum(verb == "restore" for verb, _ in provider.log) == restores + 3, (
        "three tries at one desktop, then it rests"
    )
    assert len(frozen(api)) == 1
    clock.now += backoff.INITIAL_DELAY_S
    await api.farm.pool.tick()
    await wait_until(lambda: len(frozen(api)) == 2)


async def test_a_provider_that_does_not_freeze_keeps_copies_running(
    make_api: MakeApi, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(desktop_id: str) -> None:
        raise base.HostFault("no freezer here")

    monkeypatch.setattr(provider, "freeze", refuse)
    api = await standby_farm(make_api)
    lease = await api.create_lease()
    await api.publish(lease, KEY)
    for _ in range(2):
        await api.reset(lease, setup_key=KEY)

    def running() -> int:
        return sum(slot.unused and not slot.busy for slot in api.farm.pool.slots.values())

    await wait_until(lambda: running() == 2)
    assert frozen(api) == []
    assert (await api.reset(lease, setup_key=KEY))["standby"] is True


async def test_resets_of_many_leases_never_share_a_copy(make_api: MakeApi) -> None:
    api = await standby_farm(make_api, standby_desktops=3, max_desktops=16)
    first = await prepared_for(api)
    leases = [first, *[await api.create_lease(setup_key=KEY) for _ in range(3)]]
    for _ in range(4):
        answers = await asyncio.gather(*(api.reset(lease, setup_key=KEY) for lease in leases))
        assert len({answer["desktop_id"] for answer in answers}) == 4
        assert [await call(api, lease) for lease in leases] == [200] * 4
    held = [slot.lease_id for slot in api.farm.pool.slots.values() if slot.lease_id is not None]
    assert sorted(held) == sorted(lease["lease_id"] for lease in leases)


async def prepared_for(api: Api) -> dict[str, Any]:
    lease = await api.create_lease()
    await api.publish(lease, KEY)
    return lease
