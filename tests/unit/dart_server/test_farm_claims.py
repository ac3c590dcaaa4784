"""Claims: the queue over HTTP, gangs, quotas, cancelling in every moment, taking over after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from claim_requests import granted, key_for, look, nothing_is_left, release, submit
from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, advance_until_done, wait_until
from test_farm_failures import abandon

from dart_server.leases.claims import QueuedClaim
from dart_server.records import LeaseRecord


async def test_a_claim_is_granted_while_nobody_listens(api: Api) -> None:
    claim = await submit(api, labels={"a": "b"}, ttl_s=50, priority=7)
    found = await granted(api, claim)
    (lease,) = found["leases"]
    assert found["lease_ids"] == [lease["lease_id"]]
    assert lease["claim_id"] == claim["claim_id"]
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/execute", lease=lease, json={"argv": ["echo", "x"]})
    assert reply.json()["stdout"] == "echo x"
    view = (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()
    assert (view["claim_id"], view["labels"], view["priority"]) == (claim["claim_id"], {"a": "b"}, 7)


async def test_the_time_to_live_counts_from_the_grant(api: Api, clock: ManualClock) -> None:
    held = [await api.create_lease(ttl_s=1000), await api.create_lease(ttl_s=1000)]
    claim = await submit(api, ttl_s=10)
    await clock.advance(60)
    assert (await look(api, claim))["position"] == 0
    await release(api, held[0])
    (lease,) = (await granted(api, claim))["leases"]
    await clock.advance(8)
    assert (await api.call("POST", f"/v1/leases/{lease['lease_id']}/heartbeat")).status_code == 200


async def test_a_repeated_claim_is_the_same_claim(api: Api) -> None:
    first = await submit(api, "claim-same", count=2)
    assert (await submit(api, "claim-same", count=2))["claim_id"] == first["claim_id"]
    found = await granted(api, first)
    again = await submit(api, "claim-same", count=2)
    assert [lease["token"] for lease in again["leases"]] == [lease["token"] for lease in found["leases"]]
    assert len(api.farm.leases.active) == 2


async def test_a_lease_may_be_fetched_for_a_claim_of_one_only(api: Api) -> None:
    one = await granted(api, await submit(api, "claim-one1"))
    assert await api.create_lease(client_request_id="claim-one1") == one["leases"][0]
    await release(api, one["leases"][0])
    await granted(api, await submit(api, "claim-two2", count=2))
    reply = await api.call("POST", "/v1/leases", json={"client_request_id": "claim-two2"})
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")


async def test_a_gang_is_granted_whole(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=4)
    held = [await api.create_lease(), await api.create_lease()]
    gang = await submit(api, "gang-of-3", count=3)
    assert (await look(api, gang))["state"] == "waiting"
    assert len(api.farm.leases.active) == 2
    await release(api, held[0])
    leases = (await granted(api, gang))["leases"]
    assert len({lease["desktop_id"] for lease in leases}) == len({lease["token"] for lease in leases}) == 3
    views = (await api.call("GET", "/v1/leases")).json()
    assert sorted(view["gang_size"] for view in views) == [1, 3, 3, 3]


async def test_a_failing_member_gives_the_whole_gang_back(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await make_api(max_desktops=3)
    await release(api, await api.create_lease())
    provider.host_faults = 7
    reply = await submit(api, "gang-fails", count=3)
    found = await look(api, reply, wait_s=5)
    assert (found["state"], found["error"]["error"]) == ("refused", "host_fault")
    provider.host_faults = 0
    await nothing_is_left(api)
    assert len((await granted(api, await submit(api, "gang-again", count=3)))["leases"]) == 3


@pytest.mark.parametrize("count", [3, 64])
async def test_a_gang_that_can_never_fit_is_refused_at_once(api: Api, count: int) -> None:
    reply = await api.call("POST", "/v1/claims", json={"client_request_id": "too-large", "count": count})
    assert (reply.status_code, reply.json()["error"]) == (503, "no_capacity")
    assert "never" in reply.json()["detail"]


async def test_a_gang_takes_the_places_of_another_shape(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=3, warm_desktops=3)
    lease = await api.create_lease()
    await wait_until(lambda: sum(slot.unused and not slot.busy for slot in api.farm.pool.slots.values()) == 2)
    other = {"image": "basic", "resolution": [320, 200]}
    gang = await submit(api, "gang-other", count=3, shape=other)
    assert (await look(api, gang))["state"] == "waiting"
    await release(api, lease)
    leases = (await granted(api, gang))["leases"]
    assert [lease["shape"]["resolution"] for lease in leases] == [[320, 200]] * 3
    assert len(api.farm.pool.slots) == 3


async def test_a_key_waits_at_its_quota_while_others_are_served(make_api: MakeApi, clock: ManualClock) -> None:
    admin = await make_api(max_desktops=4)
    small = await key_for(admin, "small", max_leases=1, max_waiting=1)
    lease = await small.create_lease()
    waiting = await submit(small, "small-wait")
    found = await look(small, waiting)
    assert (found["state"], found["waiting_for"]) == ("waiting", "quota")
    assert (await admin.create_lease())["lease_id"]
    reply = await small.call("POST", "/v1/claims", json={"client_request_id": "small-more"})
    assert (reply.status_code, reply.json()["error"]) == (429, "quota_exceeded")
    assert "retry-after" in reply.headers
    reply = await small.call("POST", "/v1/leases", json={"client_request_id": "small-more"})
    assert (reply.status_code, reply.json()["error"]) == (429, "quota_exceeded")
    await release(small, lease)
    await granted(small, waiting)
    reply = await small.call("POST", "/v1/claims", json={"client_request_id": "small-gang", "count": 2})
    assert (reply.status_code, reply.json()["error"]) == (429, "quota_exceeded")
    reply_later = asyncio.create_task(
        small.call("POST", "/v1/leases", json={"client_request_id": "small-late", "wait_s": 5})
    )
    await wait_until(lambda: admin.farm.pool.queue.waiting == 1)
    reply = await advance_until_done(clock, reply_later, 6)
    assert (reply.status_code, reply.json()["error"]) == (429, "quota_exceeded"), "it was not the farm that was full"
    assert reply.json()["detail"] == "this key still holds 1 of the 1 desktops that it may, after 5 s of waiting"
    assert "Use at most 1 at a time (`dart-envs eval --desktops 1`)" in reply.json()["hint"]


async def test_positions_and_fair_shares(api: Api) -> None:
    held = [await api.create_lease(), await api.create_lease()]
    flood, late = await key_for(api, "flood"), await key_for(api, "late", max_priority=5)
    claims = [await submit(flood, f"flood-{number:04d}") for number in range(5)]
    one = await submit(late, "late-0001")
    urgent = await submit(late, "late-urgent", priority=5)
    assert (await look(late, urgent))["position"] == 0
    assert (await look(late, one))["position"] <= 2
    assert (await look(flood, claims[4]))["position"] == 6
    queue = (await api.call("GET", "/v1/claims")).json()
    assert [claim["position"] for claim in queue] == list(range(7))
    assert all(claim["leases"] == [] for claim in queue)
    assert len((await flood.call("GET", "/v1/claims")).json()) == 5
    for lease in held:
        await release(api, lease)
    await granted(late, urgent)
    for claim in claims[1:]:
        assert (await flood.call("DELETE", f"/v1/claims/{claim['claim_id']}")).status_code == 204
    assert (await look(flood, claims[3]))["state"] == "cancelled"


async def test_a_tenant_does_not_put_itself_before_the_others(api: Api) -> None:
    tenant = await key_for(api, "tenant")
    for path in ("/v1/claims", "/v1/leases"):
        reply = await tenant.call("POST", path, json={"client_request_id": "first-of-all", "priority": 1})
        assert (reply.status_code, reply.json()["error"]) == (403, "forbidden")
        assert "--max-priority" in reply.json()["hint"]
    assert (await tenant.create_lease(priority=-1))["lease_id"], "behind the others it may stand"
    assert (await api.create_lease(priority=100))["lease_id"], "the administrator's claims stand where it says"
    assert (await api.call("GET", "/v1/claims")).json() == []


async def test_a_claim_expires_at_its_deadline(api: Api, clock: ManualClock) -> None:
    for _ in range(2):
        await api.create_lease(ttl_s=1000)
    claim = await submit(api, deadline_s=5)
    poll = asyncio.create_task(look(api, claim, wait_s=60))
    await asyncio.sleep(0.02)
    assert not poll.done()
    found = await advance_until_done(clock, poll, 6)
    assert (found["state"], found["error"]["error"], found["position"]) == ("expired", "no_capacity", None)
    assert (await submit(api))["state"] == "expired", "the same request is the same claim"
    events = [event["kind"] for event in (await api.call("GET", "/v1/events")).json()]
    assert "claim_expired" in events


@pytest.mark.parametrize("moment", ["queued", "lifecycle", "granted"])
async def test_a_cancelled_claim_gives_everything_back(
    make_api: MakeApi, provider: FakeProvider, moment: str, clock: ManualClock
) -> None:
    api = await make_api(max_desktops=2)
    held = [await api.create_lease(ttl_s=1000) for _ in range(2)] if moment == "queued" else []
    if moment == "lifecycle":
        provider.gate = asyncio.Event()
    claim = await submit(api, count=2)
    if moment == "lifecycle":
        await wait_until(lambda: provider.log != [])
    if moment == "granted":
        await granted(api, claim)
    for _ in range(2):
        assert (await api.call("DELETE", f"/v1/claims/{claim['claim_id']}")).status_code == 204
    found = await look(api, claim)
    assert (found["state"], found["leases"]) == ("cancelled", [])
    if provider.gate is not None:
        provider.gate.set()
    for lease in held:
        await release(api, lease)
    await nothing_is_left(api)


async def test_a_claim_that_is_cancelled_as_its_grant_ends_gives_its_leases_back(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = api.farm.claims
    grant = claims._granted

    async def cancelled_late(claim: QueuedClaim) -> list[LeaseRecord]:
        leases = await grant(claim)
        # Runs when the grant has ended, before the claim is told so.
        asyncio.get_running_loop().call_soon(claims._cancel, claim)
        return leases

    monkeypatch.setattr(claims, "_granted", cancelled_late)
    claim = await submit(api)
    await claims._claims[claim["claim_id"]].ended.wait()
    assert (await api.call("DELETE", f"/v1/claims/{claim['claim_id']}")).status_code == 204
    assert api.farm.leases.active == []
    await nothing_is_left(api)


async def test_a_claim_may_be_cancelled_in_any_moment_of_its_grant(api: Api) -> None:
    """Cancelling after every possible number of turns of the event loop: never a lease without a claim."""
    states = set()
    for turns in range(60):
        claim = asyncio.create_task(submit(api, f"race-{turns:04d}"))
        await wait_until(lambda number=turns: len(api.farm.claims._claims) == number + 1, every_s=0)
        known = list(api.farm.claims._claims.values())[-1]
        for _ in range(turns):
            await asyncio.sleep(0)
        reply = await api.call("DELETE", f"/v1/claims/{known.claim_id}")
        assert reply.status_code == 204
        await claim
        assert known.state == "cancelled"
        states.add(len(known.leases))
        assert api.farm.leases.active == []
    assert states == {0, 1}, "before and after the grant"
    await nothing_is_left(api)
    events = (await api.call("GET", "/v1/events", params={"limit": 5000})).json()
    started = [event["lease_id"] for event in events if event["kind"] == "lease_granted"]
    assert started
    assert sorted(started) == sorted(event["lease_id"] for event in events if event["kind"] == "lease_released")


async def test_a_lost_reply_is_covered_by_repeating_the_request(api: Api) -> None:
    """Hanging up after every possible number of turns: the same request then has the one lease, and nothing else is left."""
    for turns in range(0, 60, 3):
        body = {"client_request_id": f"lost-{turns:04d}"}
        call = asyncio.create_task(api.call("POST", "/v1/leases", json=body))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        reply = await api.call("POST", "/v1/leases", json=body)
        assert reply.status_code == 200, reply.text
        await wait_until(lambda: len(api.farm.leases.active) == 1)
        await release(api, reply.json())
    await nothing_is_left(api)


async def test_others_neither_see_nor_touch_a_claim(api: Api) -> None:
    mine, other = await key_for(api, "mine"), await key_for(api, "other")
    claim = await submit(mine)
    for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        reply = await other.call(method, f"/v1/claims/{claim['claim_id']}{path}")
        assert (reply.status_code, reply.json()["error"]) == (404, "not_found")
    await granted(mine, claim)
    assert (await submit(other))["claim_id"] != claim["claim_id"], "request ids are each key's own"


async def test_a_lease_is_used_from_another_process_by_reference(api: Api) -> None:
    mine, other = await key_for(api, "mine"), await key_for(api, "other")
    lease = await mine.create_lease()
    path = f"/v1/leases/{lease['lease_id']}"
    attached = (await mine.call("POST", f"{path}/attach", json={})).json()
    assert (attached["token"], attached["fencing_token"]) == (lease["token"], lease["fencing_token"])
    assert (await api.call("POST", f"{path}/attach", json={})).status_code == 200, "an admin may"
    assert (await other.call("POST", f"{path}/attach", json={})).status_code == 404
    taken = (await mine.call("POST", f"{path}/attach", json={"takeover": True})).json()
    assert taken["fencing_token"] > lease["fencing_token"]
    reply = await mine.call("POST", f"{path}/execute", lease=lease, json={"argv": ["ls"]})
    assert (reply.status_code, reply.json()["error"]) == (409, "fenced")
    reply = await mine.call("POST", f"{path}/execute", lease=taken, json={"argv": ["ls"]})
    assert reply.status_code == 200
    await release(mine, lease)
    assert (await mine.call("POST", f"{path}/attach", json={})).json()["error"] == "lease_expired"


async def test_a_lease_gets_another_time_to_live(api: Api, clock: ManualClock) -> None:
    lease = await api.create_lease(ttl_s=10)
    path = f"/v1/leases/{lease['lease_id']}"
    assert (await api.call("POST", f"{path}/renew", json={"ttl_s": 100})).json()["ttl_s"] == 100
    await clock.advance(90)
    assert (await api.call("POST", f"{path}/heartbeat")).status_code == 200
    await clock.advance(90)
    assert (await api.call("GET", path)).json()["state"] == "active"
    assert (await api.call("POST", f"{path}/renew", json={"ttl_s": 2})).status_code == 200
    await clock.advance(4)
    assert (await api.call("POST", f"{path}/renew", json={"ttl_s": 2})).json()["error"] == "lease_expired"
    assert (await api.call("GET", path)).json()["state"] == "expired"


async def test_a_granted_claim_is_known_to_the_next_farm(make_api: MakeApi, clock: ManualClock) -> None:
    first = await make_api(max_desktops=3)
    small = await key_for(first, "small", max_leases=2)
    claim = await granted(small, await submit(small, "survives", count=2, ttl_s=1000, labels={"run": "7"}))
    await small.call("POST", f"/v1/leases/{claim['lease_ids'][0]}/renew", json={"ttl_s": 500})
    abandon(first.farm)
    second = await make_api(max_desktops=3)
    small = Api(second.farm, second.client, small.key)
    again = await submit(small, "survives", count=2)
    assert again["claim_id"] == claim["claim_id"]
    assert [(lease["lease_id"], lease["token"]) for lease in again["leases"]] == [
        (lease["lease_id"], lease["token"]) for lease in claim["leases"]
    ]
    assert [lease["ttl_s"] for lease in again["leases"]] == [500, 1000]
    waiting = await submit(small, "more-than-it-may")
    assert (await look(small, waiting))["waiting_for"] == "quota", "what it holds counts after a restart"
    await release(small, again["leases"][1])
    await granted(small, waiting)
    for lease_id in claim["lease_ids"]:
        await release(small, {"lease_id": lease_id})
    reply = await small.call("POST", "/v1/leases", json={"client_request_id": "survives"})
    assert reply.status_code in (410, 422)


async def test_claims_of_a_key_that_was_revoked_leave_the_queue(api: Api) -> None:
    held = [await api.create_lease(), await api.create_lease()]
    other = await key_for(api, "other")
    claim = await submit(other, count=2)
    await submit(api, "goes-on-waiting")
    assert (await api.call("DELETE", f"/v1/keys/{claim['owner']}")).status_code == 204
    await wait_until(lambda: api.farm.pool.queue.waiting == 1)
    assert (await look(api, claim))["state"] == "cancelled"
    for lease in held:
        await release(api, lease)
    await wait_until(lambda: len(api.farm.leases.active) == 1)


async def test_waiting_claims_are_refused_when_the_farm_stops(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await make_api(max_desktops=2)
    await api.create_lease()
    provider.gate = asyncio.Event()
    lifecycle = asyncio.create_task(api.call("POST", "/v1/leases", json={"client_request_id": "on-its-way"}))
    await wait_until(lambda: len(api.farm.pool.slots) == 2)
    waiting = asyncio.create_task(api.call("POST", "/v1/leases", json={"client_request_id": "in-the-queue"}))
    await wait_until(lambda: api.farm.pool.queue.waiting == 1)
    stopping = asyncio.create_task(api.farm.stop())
    for reply in await asyncio.gather(lifecycle, waiting):
        assert (reply.status_code, reply.json()["error"]) == (503, "draining")
    provider.gate.set()
    await stopping
    assert provider.desktops == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 0},
        {"count": 65},
        {"priority": 101},
        {"deadline_s": -1},
        {"ttl_s": 1},
        {"labels": {f"label-{number}": "x" for number in range(33)}},
        {"labels": {"long": "x" * 300}},
        {"match_labels": {"a": 1}},
        {"unknown": True},
        {"client_request_id": "short"},
    ],
)
async def test_what_makes_no_sense_is_refused(api: Api, fields: dict[str, Any]) -> None:
    reply = await api.call("POST", "/v1/claims", json={"client_request_id": "makes-no-sense", **fields})
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")
    assert api.farm.pool.queue.waiting == 0


async def test_a_claim_by_labels_has_what_the_pool_holds(api: Api) -> None:
    spec = {"shape": {"image": "basic", "resolution": [320, 200]}, "labels": {"team": "a", "size": "small"}}
    assert (await api.call("PUT", "/v1/pools/small", json=spec)).status_code == 200
    tenant = await key_for(api, "tenant")
    found = await granted(tenant, await submit(tenant, match_labels={"size": "small"}))
    assert found["leases"][0]["shape"]["resolution"] == [320, 200]
    for path in ("/v1/claims", "/v1/leases"):
        body = {"client_request_id": "no-such-pool", "match_labels": {"size": "large"}}
        reply = await tenant.call("POST", path, json=body)
        assert (reply.status_code, reply.json()["error"]) == (404, "not_found")


async def test_claims_past_the_bound_of_a_pool_hold_nobody_up(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=4)
    lease = await api.create_lease()
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json={"name": "one"})
    assert reply.status_code == 200, reply.text
    await release(api, lease)
    assert (await api.call("PUT", "/v1/pools/one", json={"snapshot_id": "one", "max": 1})).status_code == 200
    first = await granted(api, await submit(api, "bounded-1", snapshot_id="one"))
    second = await submit(api, "bounded-2", snapshot_id="one")
    await granted(api, await submit(api, "another-1"))
    assert (await look(api, second))["state"] == "waiting"
    await release(api, first["leases"][0])
    await granted(api, second)
