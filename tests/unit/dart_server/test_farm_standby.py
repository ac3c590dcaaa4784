"""Where a provider restores nothing in place, a reset moves the lease to a warm desktop and the pool warms another."""

from __future__ import annotations

import asyncio

import httpx
import pytest
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


def leased_slots(api: Api) -> dict[str, str | None]:
    """Every slot that belongs to a lease, by its id."""
    return {slot.desktop_id: slot.lease_id for slot in api.farm.pool.slots.values() if slot.lease_id is not None}


async def waiting_reset(api: Api, provider: FakeProvider) -> tuple[dict[str, object], asyncio.Task[httpx.Response]]:
    """A lease, and a reset of it that waits for the standby that `provider.gate` holds back."""
    lease = await api.create_lease()
    await wait_until(lambda: len(standby(api)) == 1)
    provider.gate = asyncio.Event()
    await api.reset(lease)
    await wait_until(lambda: sum(verb == "create" for verb, _ in provider.log) == 3)
    return lease, await begin_reset(api, lease)


async def begin_reset(api: Api, lease: dict[str, object]) -> asyncio.Task[httpx.Response]:
    """A reset whose fencing token has grown; the lease has that token from now on."""
    (held,) = [record for record in api.farm.leases.active if record.lease_id == lease["lease_id"]]
    path = f"/v1/leases/{lease['lease_id']}/reset"
    resetting = asyncio.create_task(api.call("POST", path, lease=dict(lease), json={}))
    await wait_until(lambda: held.fencing_token != lease["fencing_token"], every_s=0)
    lease["fencing_token"] = held.fencing_token
    return resetting


async def test_a_takeover_fences_off_a_reset_that_waits_for_the_standby(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await standby_farm(make_api, provider)
    lease, resetting = await waiting_reset(api, provider)
    path = f"/v1/leases/{lease['lease_id']}"
    desktop_id = (await api.call("GET", path)).json()["desktop_id"]
    taken = (await api.call("POST", f"{path}/attach", json={"takeover": True})).json()
    provider.gate.set()
    assert (await resetting).json()["error"] == "fenced"
    view = (await api.call("GET", path)).json()
    assert (view["desktop_id"], view["fencing_token"]) == (desktop_id, taken["fencing_token"])
    assert await call(api, taken) == 200


@pytest.mark.parametrize("warm", [1, 2])
async def test_of_two_resets_that_wait_for_the_standby_the_later_one_counts(
    make_api: MakeApi, provider: FakeProvider, warm: int
) -> None:
    api = await standby_farm(make_api, provider)
    lease, first = await waiting_reset(api, provider)
    if warm > 1:
        await api.call("PUT", "/v1/pools/more", json={"warm": warm})
        await wait_until(lambda: sum(slot.warming for slot in api.farm.pool.slots.values()) == warm)
    second = await begin_reset(api, lease)
    provider.gate.set()
    assert (await first).json()["error"] == "fenced"
    answer = (await second).json()
    assert leased_slots(api) == {answer["desktop_id"]: lease["lease_id"]}
    view = (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()
    assert (view["desktop_id"], view["fencing_token"]) == (answer["desktop_id"], answer["fencing_token"])
    assert await call(api, lease | answer) == 200


async def test_a_desktop_that_a_later_reset_left_is_written_down_as_gone(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await standby_farm(make_api, provider, warm=0)
    lease = await api.create_lease()
    left = lease["desktop_id"]
    provider.gate = held = asyncio.Event()
    first = await begin_reset(api, lease)
    await wait_until(lambda: sum(verb == "create" for verb, _ in provider.log) == 2)
    provider.gate = None
    await api.call("PUT", "/v1/pools/p", json={"warm": 1})
    await wait_until(lambda: len(standby(api)) == 1)
    await api.reset(lease)
    held.set()
    assert (await first).json()["error"] == "fenced"
    await wait_until(lambda: left not in api.farm.pool.slots)
    await api.farm.repository.flush_if_available()
    assert left not in [slot.desktop_id for slot in await api.farm.repository.existing_desktops()]
    assert await call(api, lease) == 200


async def test_of_two_takeovers_the_earlier_one_is_fenced_off_also_while_it_is_written(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await make_api()
    lease = await api.create_lease()
    path = f"/v1/leases/{lease['lease_id']}/attach"
    replies = await asyncio.gather(*(api.call("POST", path, json={"takeover": True}) for _ in range(2)))
    granted = [reply.json() for reply in replies if reply.status_code == 200]
    tokens = [grant["fencing_token"] for grant in granted]
    assert len(tokens) == len(set(tokens)), "no two processes have one token"
    assert await call(api, granted[-1]) == 200


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
