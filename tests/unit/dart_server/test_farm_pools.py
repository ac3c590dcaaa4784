"""Pools over HTTP: what is wanted is kept ready, as fast and as far as its specification allows, and survives a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, advance_until_done, wait_until
from test_farm_failures import abandon

from dart_server.wire import DesktopState

KEY = "a" * 64


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider(freezes=True)


async def put(api: Api, name: str = "p", status: int = 200, **spec: Any) -> dict[str, Any]:
    reply = await api.call("PUT", f"/v1/pools/{name}", json=spec)
    assert reply.status_code == status, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def view(api: Api, name: str = "p") -> dict[str, Any]:
    found: dict[str, Any] = (await api.call("GET", f"/v1/pools/{name}")).json()
    return found


def counts(api: Api, name: str = "p") -> tuple[int, int]:
    now = api.farm.pool.view(name)
    return now.ready, now.standby


async def test_a_pool_is_filled_and_emptied(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await make_api(max_desktops=8)
    await put(api, warm=1, standby=2)
    await wait_until(lambda: counts(api) == (1, 2))
    assert sum(desktop.frozen for desktop in provider.desktops.values()) == 2
    await put(api, warm=2, standby=0)
    await wait_until(lambda: counts(api) == (2, 0))
    assert (await api.call("DELETE", "/v1/pools/p")).status_code == 204
    await wait_until(lambda: provider.desktops == {})
    assert (await api.call("GET", "/v1/pools/p")).status_code == 404
    assert (await api.call("DELETE", "/v1/pools/p")).status_code == 404


async def test_a_pool_of_a_prepared_state_takes_it_up_when_it_is_built(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=8)
    await put(api, setup_key=KEY, standby=2)
    await wait_until(lambda: counts(api) == (0, 2))
    lease = await api.create_lease()
    await api.publish(lease, KEY)
    await api.farm.pool.tick()
    await wait_until(lambda: counts(api) == (0, 2))
    answer = await api.reset(lease, setup_key=KEY)
    assert (answer["standby"], answer["setup_key"]) == (True, KEY)
    now = await view(api)
    assert (now["hits"], now["misses"], now["leased"]) == (2, 0, 1), "the claim found one, too"


async def test_the_least_number_counts_leased_ones(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=8)
    await put(api, min=3)
    await wait_until(lambda: counts(api) == (3, 0))
    await api.create_lease()
    await api.create_lease()
    await wait_until(lambda: counts(api) == (1, 0))


async def test_the_most_bounds_claims_too(make_api: MakeApi, clock: ManualClock) -> None:
    api = await make_api(max_desktops=8)
    await put(api, max=1)
    await api.create_lease()
    body = {"client_request_id": "one-too-many", "wait_s": 0}
    claiming = asyncio.create_task(api.call("POST", "/v1/leases", json=body))
    await wait_until(lambda: api.farm.pool.queue.waiting == 1)
    reply = await advance_until_done(clock, claiming, 0.1)
    assert reply.status_code == 503
    assert "the pool p has its 1 desktops" in reply.json()["detail"]


async def test_refilling_keeps_to_its_rate(make_api: MakeApi, provider: FakeProvider, clock: ManualClock) -> None:
    api = await make_api(max_desktops=8)
    await put(api, warm=3, refill_per_minute=6)
    await wait_until(lambda: counts(api) == (1, 0))
    for _ in range(3):
        await api.farm.pool.tick()
    assert len(provider.desktops) == 1
    clock.now += 10
    await api.farm.pool.tick()
    await wait_until(lambda: counts(api) == (2, 0))
    clock.now += 600
    await api.farm.pool.tick()
    await wait_until(lambda: counts(api) == (3, 0))


async def test_a_pool_outlives_its_farm(make_api: MakeApi, clock: ManualClock) -> None:
    api = await make_api(max_desktops=8)
    await put(api, standby=1, labels={"suite": "basics"})
    before = await view(api)
    abandon(api.farm)
    clock.now += 5
    api = await make_api(max_desktops=8)
    await api.farm.pool.tick()
    await wait_until(lambda: counts(api) == (0, 1))
    after = await view(api)
    assert (after["spec"], after["owner"], after["created_at"]) == (
        before["spec"],
        before["owner"],
        before["created_at"],
    )
    found = api.farm.pool.named.matching({"suite": "basics"})
    assert found is not None
    assert found.record.name == "p"
    assert api.farm.pool.named.matching({"suite": "other"}) is None
    assert api.farm.pool.named.matching({}) is None


async def test_the_farms_own_pool_is_shown_and_not_written(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=4, warm_desktops=1)
    await api.create_lease()
    await wait_until(lambda: counts(api, "default")[0] == 1)
    listed = (await api.call("GET", "/v1/pools")).json()
    assert [pool["name"] for pool in listed] == ["default"]
    assert (await put(api, "default", 422))["error"] == "invalid"


@pytest.mark.parametrize(
    "body",
    [
        '{"refill_per_minute": NaN}',
        '{"refill_per_minute": Infinity}',
        '{"refill_per_minute": 0}',
        '{"warm": -1}',
        '{"warm": 1.5}',
        '{"max": 0}',
        '{"warm": 2, "standby": 2, "max": 3}',
        '{"min": 4, "max": 3}',
        f'{{"setup_key": "{KEY}", "snapshot_id": "x"}}',
        '{"warmth": 1}',
    ],
)
async def test_wrong_numbers_are_refused(api: Api, body: str) -> None:
    reply = await api.call("PUT", "/v1/pools/p", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")


async def test_a_pool_of_an_image_that_is_not_there_is_refused(api: Api) -> None:
    assert (await put(api, status=404, shape={"image": "missing"}))["error"] == "image_missing"
    assert (await put(api, "No-Name", 422))["error"] == "invalid"


async def test_a_pool_of_a_snapshot_that_is_gone_says_so(api: Api) -> None:
    now = await put(api, snapshot_id="snap_none", warm=1)
    assert now["in_backoff"] == "its snapshot is not there"


async def test_a_draining_farm_grants_nothing_and_goes_on(make_api: MakeApi, clock: ManualClock) -> None:
    api = await make_api(max_desktops=4)
    lease = await api.create_lease(ttl_s=600)
    assert (await api.call("POST", "/v1/farm/drain")).json()["draining"] is True
    body = {"client_request_id": "after-draining"}
    reply = await api.call("POST", "/v1/leases", json=body)
    assert (reply.status_code, reply.json()["error"]) == (503, "draining")
    assert (await api.call("GET", "/readyz")).status_code == 503
    await api.reset(lease)
    abandon(api.farm)
    clock.now += 1
    api = await make_api(max_desktops=4)
    assert (await api.call("GET", "/v1/farm")).json()["draining"] is True, "it holds over a restart"
    assert (await api.call("DELETE", "/v1/farm/drain")).json()["draining"] is False
    assert (await api.call("GET", "/readyz")).status_code == 200
    await api.create_lease()


async def test_only_administrators_change_pools_and_desktops(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await make_api(max_desktops=4)
    lease = await api.create_lease()
    made = await api.call("POST", "/v1/keys", json={"name": "tenant", "scope": "lease"})
    tenant = Api(api.farm, api.client, made.json()["secret"])
    desktop = f"/v1/desktops/{lease['desktop_id']}"
    for method, path in [
        ("PUT", "/v1/pools/p"),
        ("DELETE", "/v1/pools/p"),
        ("POST", f"{desktop}/quarantine"),
        ("POST", f"{desktop}/release"),
        ("POST", "/v1/farm/drain"),
        ("DELETE", "/v1/farm/drain"),
    ]:
        body = {"json": {}} if method == "PUT" else {}
        assert (await tenant.call(method, path, **body)).status_code == 403, (method, path)
    assert (await tenant.call("GET", "/v1/pools")).status_code == 200
    assert api.farm.pool.slots[lease["desktop_id"]].state is DesktopState.LEASED
