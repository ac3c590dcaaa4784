"""Where a provider restores nothing in place, a reset moves the lease to a warm desktop and the pool warms another."""

from __future__ import annotations

import asyncio

from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, wait_until
from test_farm_failures import abandon

from dart_server.providers import base
from dart_server.wire import DesktopState


async def standby_farm(make_api: MakeApi, provider: FakeProvider, warm: int = 1) -> Api:
    provider.memory_snapshot = False
    return await make_api(warm_desktops=warm, max_desktops=warm + 2)


def standby(api: Api) -> list[str]:
    """Ids of the desktops that are ready for nobody in particular."""
    slots = api.farm.pool.slots.values()
    return [slot.desktop_id for slot in slots if slot.state is DesktopState.READY and slot.unused and not slot.busy]


async def call(api: Api, lease: dict[str, object]) -> int:
    return (
        await api.call("POST", f"/v1/leases/{lease['lease_id']}/execute", lease=lease, json={"argv": ["ls"]})
    ).status_code


async def test_a_reset_moves_the_lease_to_the_standby_and_fills_it_up_again(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await standby_farm(make_api, provider)
    lease = await api.create_lease()
    used = [lease["desktop_id"]]
    for _ in range(4):
        await wait_until(lambda: len(standby(api)) == 1)
        (waiting,) = standby(api)
        before = dict(lease)
        answer = await api.reset(lease)
        assert provider.log.count(("create", waiting)) == 1, "it is taken as it is"
        assert (answer["desktop_id"], answer["restored"], answer["standby"]) == (waiting, False, True)
        assert answer["fencing_token"] > before["fencing_token"]
        assert await call(api, lease) == 200
        assert await call(api, before) == 409
        used.append(waiting)
    assert len(set(used)) == 5, "no desktop is handed on"
    view = (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()
    assert (view["desktop_id"], view["fencing_token"]) == (used[-1], lease["fencing_token"])
    await wait_until(lambda: len(standby(api)) == 1 and len(provider.desktops) == 2)


async def test_an_empty_standby_boots_in_place(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await standby_farm(make_api, provider, warm=0)
    lease = await api.create_lease()
    answer = await api.reset(lease)
    assert (answer["desktop_id"], answer["standby"]) == (lease["desktop_id"], False)
    assert [verb for verb, _ in provider.log] == ["create", "destroy", "create"]


async def test_a_reset_takes_the_standby_that_is_on_its_way(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await standby_farm(make_api, provider)
    lease = await api.create_lease()
    await wait_until(lambda: len(standby(api)) == 1)
    provider.gate = asyncio.Event()
    await api.reset(lease)
    before = dict(lease)
    await wait_until(lambda: sum(verb == "create" for verb, _ in provider.log) == 3)
    waiting = asyncio.create_task(api.reset(lease))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert await call(api, before) == 409, "late calls are refused from the beginning of a reset"
    provider.gate.set()
    answer = await waiting
    assert not answer["standby"], "it was not ready when it was asked for"
    assert ("create", answer["desktop_id"]) == [entry for entry in provider.log if entry[0] == "create"][2]
    assert await call(api, lease) == 200


async def test_a_standby_that_died_is_made_anew(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await standby_farm(make_api, provider)
    lease = await api.create_lease()
    await wait_until(lambda: len(standby(api)) == 1)
    await provider.kill(standby(api)[0], base.HealthCause.KILLED_FROM_OUTSIDE)
    await api.reset(lease)
    assert await call(api, lease) == 200


async def test_a_claim_takes_a_standby_as_it_is(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await standby_farm(make_api, provider)
    await api.create_lease()
    await wait_until(lambda: len(standby(api)) == 1)
    (waiting,) = standby(api)
    assert (await api.create_lease())["desktop_id"] == waiting
    assert ("destroy", waiting) not in provider.log


async def test_a_lease_that_moved_is_taken_over_by_the_next_farm(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    api = await standby_farm(make_api, provider)
    lease = await api.create_lease(ttl_s=100)
    await wait_until(lambda: len(standby(api)) == 1)
    moved = (await api.reset(lease))["desktop_id"]
    await wait_until(lambda: len(standby(api)) == 1)
    abandon(api.farm)
    clock.now += 1
    api = await standby_farm(make_api, provider)
    assert await call(api, lease) == 200
    assert list(api.farm.pool.slots) == [moved]
