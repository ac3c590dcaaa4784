"""Leases: grant, heartbeat, expiry, fences, queue, idempotence."""

from __future__ import annotations

import asyncio

from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, advance_until_done, wait_until

from dart_server.wire import DesktopState


async def execute(api: Api, lease: dict, argv: list[str] | None = None):
    return await api.call("POST", f"/v1/leases/{lease['lease_id']}/execute", lease=lease, json={"argv": argv or ["ls"]})


async def test_a_claim_boots_once_and_forks_afterwards(api: Api, provider: FakeProvider) -> None:
    first, second = await asyncio.gather(api.create_lease(), api.create_lease())
    assert first["desktop_id"] != second["desktop_id"]
    assert [verb for verb, _ in provider.log] == ["create", "snapshot", "restore"]
    assert (await execute(api, first, ["echo", "hi"])).json()["stdout"] == "echo hi"


async def test_a_released_desktop_is_made_anew_before_the_next_claim(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease()
    await api.call(
        "PUT", f"/v1/leases/{lease['lease_id']}/files", lease=lease, params={"path": "/tmp/x"}, content=b"dirt"
    )
    assert (await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")).status_code == 204
    again = await api.create_lease()
    reply = await api.call("GET", f"/v1/leases/{again['lease_id']}/files", lease=again, params={"path": "/tmp/x"})
    assert reply.status_code == 404
    assert reply.json()["error"] == "guest_error"


async def test_release_is_idempotent_and_ends_the_right_to_call(api: Api) -> None:
    lease = await api.create_lease()
    for _ in range(2):
        assert (await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")).status_code == 204
    reply = await execute(api, lease)
    assert (reply.status_code, reply.json()["error"]) == (410, "lease_expired")
    assert (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()["state"] == "released"


async def test_a_repeated_claim_gives_the_same_lease(api: Api) -> None:
    first = await api.create_lease(client_request_id="same-request")
    assert await api.create_lease(client_request_id="same-request") == first
    both = await asyncio.gather(*(api.create_lease(client_request_id="twice-at-once") for _ in range(2)))
    assert both[0] == both[1]
    assert len(api.farm.leases.active) == 2
    await api.call("DELETE", f"/v1/leases/{first['lease_id']}")
    reply = await api.call("POST", "/v1/leases", json={"client_request_id": "same-request"})
    assert (reply.status_code, reply.json()["error"]) == (410, "lease_expired")


async def test_a_lease_expires_without_heartbeats_and_lives_with_them(api: Api, clock: ManualClock) -> None:
    lease, other = await api.create_lease(ttl_s=10), await api.create_lease(ttl_s=10)
    await clock.advance(8)
    assert (await api.call("POST", f"/v1/leases/{lease['lease_id']}/heartbeat")).status_code == 200
    await clock.advance(4)
    assert (await execute(api, lease)).status_code == 200
    assert (await execute(api, other)).json()["error"] == "lease_expired"
    assert (await api.call("POST", f"/v1/leases/{other['lease_id']}/heartbeat")).status_code == 410
    events = [event["kind"] for event in (await api.call("GET", "/v1/events")).json()]
    assert events.count("lease_expired") == 1


async def test_expiry_is_checked_at_the_call_even_before_the_tick(api: Api, clock: ManualClock) -> None:
    lease = await api.create_lease(ttl_s=10)
    clock.now += 10
    assert (await execute(api, lease)).json()["error"] == "lease_expired"


async def test_reset_grows_the_fencing_token_and_refuses_the_old_one(api: Api) -> None:
    lease = await api.create_lease()
    old = dict(lease)
    answer = await api.reset(lease)
    assert answer["fencing_token"] > old["fencing_token"]
    assert answer["restored"] is True
    reply = await execute(api, old)
    assert (reply.status_code, reply.json()["error"]) == (409, "fenced")
    assert (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()["fencing_token"] == answer["fencing_token"]
    assert (await execute(api, lease)).status_code == 200


async def test_a_fencing_token_grows_over_the_leases_of_one_desktop(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=1, warm_desktops=1)
    fences = []
    for _ in range(3):
        lease = await api.create_lease()
        fences.append((lease["desktop_id"], lease["fencing_token"]))
        await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    assert len({desktop for desktop, _ in fences}) == 1
    assert [fencing_token for _, fencing_token in fences] == sorted({fencing_token for _, fencing_token in fences})


async def test_a_call_under_way_during_a_reset_is_fenced(api: Api) -> None:
    lease = await api.create_lease()
    call = asyncio.create_task(execute(api, dict(lease), ["sleep"]))
    await asyncio.sleep(0.05)
    await api.reset(lease)
    assert (await call).json()["error"] == "fenced"


async def test_a_wrong_token_is_forbidden(api: Api) -> None:
    lease, other = await api.create_lease(), await api.create_lease()
    reply = await execute(api, lease | {"token": other["token"]})
    assert (reply.status_code, reply.json()["error"]) == (403, "forbidden")


async def test_tokens_are_not_in_the_database(api: Api) -> None:
    lease = await api.create_lease()
    content = b"".join(path.read_bytes() for path in api.farm.settings.runtime_dir.glob("farm.db*"))
    assert lease["lease_id"].encode() in content
    assert lease["token"].encode() not in content
    assert api.key.encode() not in content


async def test_claims_wait_in_order_and_time_out(api: Api, clock: ManualClock) -> None:
    held = [await api.create_lease(), await api.create_lease()]
    order: list[str] = []

    async def wait(name: str) -> None:
        await api.create_lease(client_request_id=f"waiting-{name}", wait_s=100)
        order.append(name)

    waiting = [asyncio.create_task(wait("a"))]
    await wait_until(lambda: api.farm.pool.queue.waiting == 1)
    waiting.append(asyncio.create_task(wait("b")))
    await wait_until(lambda: api.farm.pool.queue.waiting == 2)
    late = asyncio.create_task(api.call("POST", "/v1/leases", json={"client_request_id": "too-late", "wait_s": 5}))
    await wait_until(lambda: api.farm.pool.queue.waiting == 3)
    reply = await advance_until_done(clock, late, 6)
    assert (reply.status_code, reply.json()["error"]) == (503, "no_capacity")
    assert "retry-after" in reply.headers
    for count, lease in enumerate(held, start=1):
        await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
        await wait_until(lambda count=count: len(order) == count)
    assert order == ["a", "b"]
    await asyncio.gather(*waiting)


async def test_a_free_desktop_of_another_shape_makes_room(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=1, warm_desktops=1)
    lease = await api.create_lease()
    await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    other = await api.create_lease(shape={"image": "basic", "resolution": [320, 200]})
    assert other["shape"]["resolution"] == [320, 200]
    assert len(api.farm.pool.slots) == 1


async def test_a_cancelled_claim_gives_its_desktop_back(api: Api, provider: FakeProvider) -> None:
    provider.gate = asyncio.Event()
    claim = asyncio.create_task(api.create_lease())
    await wait_until(lambda: provider.log != [])
    claim.cancel()
    await asyncio.gather(claim, return_exceptions=True)
    provider.gate.set()
    await wait_until(lambda: not api.farm.pool.slots)
    assert api.farm.leases.active == []
    assert provider.desktops == {}


async def test_warm_desktops_are_kept_and_dead_ones_replaced(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    from dart_server.providers.base import HealthCause

    api = await make_api(warm_desktops=1)
    lease = await api.create_lease()

    def ready() -> list[str]:
        return [
            slot.desktop_id
            for slot in api.farm.pool.slots.values()
            if slot.state is DesktopState.READY and not slot.busy
        ]

    await wait_until(lambda: len(ready()) == 1)
    warm = ready()[0]
    await provider.kill(warm, HealthCause.KILLED_FROM_OUTSIDE)
    await clock.advance(11)
    await wait_until(lambda: len(ready()) == 1 and ready() != [warm])
    second = await api.create_lease()
    assert second["desktop_id"] != lease["desktop_id"]


async def test_a_missing_image_and_a_failing_host_are_told_apart(api: Api, provider: FakeProvider) -> None:
    reply = await api.call("POST", "/v1/leases", json={"client_request_id": "no-image", "shape": {"image": "missing"}})
    assert (reply.status_code, reply.json()["error"], reply.json()["hint"]) == (404, "image_missing", "Build it.")
    provider.host_faults = 99
    reply = await api.call("POST", "/v1/leases", json={"client_request_id": "bad-host"})
    assert (reply.status_code, reply.json()["error"]) == (503, "host_fault")
    provider.host_faults = 1
    assert (await api.create_lease())["fencing_token"] == 1


async def test_a_desktop_on_its_way_is_waited_for_a_little_longer(
    api: Api, provider: FakeProvider, clock: ManualClock
) -> None:
    provider.gate = asyncio.Event()
    body = {"client_request_id": "impatient", "wait_s": 1}
    claims = [
        asyncio.create_task(api.call("POST", "/v1/leases", json=body | {"client_request_id": f"impatient-{n}"}))
        for n in range(2)
    ]
    # Both stand in the queue, and the desktop is on its way, before the clock goes on.
    async with asyncio.timeout(5):
        while not provider.log or len((await api.call("GET", "/v1/claims")).json()) < len(claims):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    await clock.advance(20)
    assert not any(claim.done() for claim in claims)
    replies = [await advance_until_done(clock, claim, 2) for claim in claims]
    assert [reply.json()["error"] for reply in replies] == ["no_capacity"] * 2
    provider.gate.set()
    await wait_until(lambda: not api.farm.pool.slots)
    assert (await api.create_lease())["fencing_token"] == 1
