"""Snapshots and prepared states: publishing, waiting, forks, quota, quarantine, providers without snapshots."""

from __future__ import annotations

import asyncio
from collections import Counter

from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, advance_until_done, wait_until

from dart_server.keys import Scope
from dart_server.snapshots.service import SHARED_BASE_IDLE_S

KEY = "a" * 64
OTHER = "b" * 64


async def put(api: Api, lease: dict, path: str, content: bytes) -> None:
    reply = await api.call(
        "PUT", f"/v1/leases/{lease['lease_id']}/files", lease=lease, params={"path": path}, content=content
    )
    assert reply.status_code == 204, reply.text


async def get(api: Api, lease: dict, path: str) -> bytes | None:
    reply = await api.call("GET", f"/v1/leases/{lease['lease_id']}/files", lease=lease, params={"path": path})
    return reply.content if reply.status_code == 200 else None


async def acquire_setup(api: Api, lease: dict, wait_s: float = 0, key: str = KEY) -> dict:
    body = {"key": key, "lease_id": lease["lease_id"], "wait_s": wait_s}
    reply = await api.call("POST", "/v1/setups/acquire", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_published_state_is_what_resets_and_claims_start_from(api: Api) -> None:
    builder = await api.create_lease()
    assert (await api.reset(builder, setup_key=KEY))["setup_key"] is None
    await put(api, builder, "/doc", b"prepared")
    view = (await api.publish(builder, KEY)).json()
    assert (view["kind"], view["setup_key"]) == ("setup", KEY)
    await put(api, builder, "/doc", b"spoilt")
    assert (await api.reset(builder, setup_key=KEY))["setup_key"] == KEY
    assert await get(api, builder, "/doc") == b"prepared"
    other = await api.create_lease(setup_key=KEY)
    assert other["setup_key"] == KEY
    assert await get(api, other, "/doc") == b"prepared"
    assert (await acquire_setup(api, other))["state"] == "ready"


async def test_a_repeated_publish_is_answered_like_the_first(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease()
    grant = (await acquire_setup(api, lease))["grant"]
    body = {"publish_key": KEY, "grant": grant}
    path = f"/v1/leases/{lease['lease_id']}/snapshot"
    first = await api.call("POST", path, lease=lease, json=body)
    again = await api.call("POST", path, lease=lease, json=body)
    assert first.json()["snapshot_id"] == again.json()["snapshot_id"]
    assert len(provider.snapshots) == 2


async def test_a_publish_that_is_repeated_while_the_first_one_runs_is_answered_like_it(
    api: Api, provider: FakeProvider
) -> None:
    lease = await api.create_lease()
    taken = len(provider.snapshots)
    body = {"publish_key": KEY, "grant": (await acquire_setup(api, lease))["grant"]}
    path = f"/v1/leases/{lease['lease_id']}/snapshot"
    first, again = await asyncio.gather(*(api.call("POST", path, lease=lease, json=body) for _ in range(2)))
    assert (first.status_code, again.status_code) == (200, 200), again.text
    assert first.json()["snapshot_id"] == again.json()["snapshot_id"]
    assert sum(verb == "snapshot" for verb, _ in provider.log) == taken + 1
    assert len(provider.snapshots) == taken + 1


async def test_a_build_that_is_abandoned_while_its_snapshot_is_made_publishes_nothing(
    api: Api, provider: FakeProvider
) -> None:
    lease = await api.create_lease()
    before = set(provider.snapshots)
    grant = (await acquire_setup(api, lease))["grant"]
    path = f"/v1/leases/{lease['lease_id']}/snapshot"
    body = {"publish_key": KEY, "grant": grant}
    publishing = [asyncio.create_task(api.call("POST", path, lease=lease, json=body)) for _ in range(2)]
    await wait_until(lambda: sum(verb == "snapshot" for verb, _ in provider.log) == 2, every_s=0)
    await api.farm.setups.abandon(api.farm.leases.active[0].owner, KEY, grant, "given up")
    for reply in await asyncio.gather(*publishing):
        assert (reply.status_code, reply.json()["error"]) == (410, "lease_expired")
    assert set(provider.snapshots) == before
    assert sum(verb == "snapshot" for verb, _ in provider.log) == 2, "the one that waited makes none"
    assert (await acquire_setup(api, lease))["state"] == "build"


async def test_what_a_lease_has_published_is_forgotten_with_it(api: Api) -> None:
    lease = await api.create_lease()
    assert (await api.publish(lease, KEY)).status_code == 200
    assert len(api.farm.setups._published) == 1
    await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    assert api.farm.setups._published == {}


async def test_one_builds_and_the_others_wait_until_it_is_published(api: Api) -> None:
    builder, waiter = await api.create_lease(), await api.create_lease()
    grant = (await acquire_setup(api, builder))["grant"]
    assert (await acquire_setup(api, waiter))["state"] == "busy"
    waiting = asyncio.create_task(acquire_setup(api, waiter, wait_s=100))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    body = {"publish_key": KEY, "grant": grant}
    await api.call("POST", f"/v1/leases/{builder['lease_id']}/snapshot", lease=builder, json=body)
    assert (await waiting)["state"] == "ready"


async def test_a_waiter_is_told_busy_when_its_time_is_up(api: Api, clock: ManualClock) -> None:
    builder, waiter = await api.create_lease(ttl_s=1000), await api.create_lease(ttl_s=1000)
    await acquire_setup(api, builder)
    waiting = asyncio.create_task(acquire_setup(api, waiter, wait_s=30))
    await asyncio.sleep(0.02)
    assert (await advance_until_done(clock, waiting, 31))["state"] == "busy"


async def test_an_abandoned_or_expired_builder_frees_the_key(api: Api, clock: ManualClock) -> None:
    first, second = await api.create_lease(ttl_s=10), await api.create_lease(ttl_s=1000)
    grant = (await acquire_setup(api, first))["grant"]
    reply = await api.call("POST", "/v1/setups/abandon", json={"key": KEY, "grant": "wrong", "reason": "no"})
    assert reply.status_code == 204
    assert (await acquire_setup(api, second))["state"] == "busy"
    await api.call("POST", "/v1/setups/abandon", json={"key": KEY, "grant": grant, "reason": "no"})
    retaken = await acquire_setup(api, first)
    assert retaken["state"] == "build"
    waiting = asyncio.create_task(acquire_setup(api, second, wait_s=100))
    assert (await advance_until_done(clock, waiting, 11))["state"] == "build"


async def test_only_the_builder_may_publish(api: Api) -> None:
    builder, thief = await api.create_lease(), await api.create_lease()
    grant = (await acquire_setup(api, builder))["grant"]
    for body in ({"publish_key": KEY, "grant": grant}, {"publish_key": KEY}, {"publish_key": OTHER, "grant": grant}):
        reply = await api.call("POST", f"/v1/leases/{thief['lease_id']}/snapshot", lease=thief, json=body)
        assert (reply.status_code, reply.json()["error"]) == (403, "forbidden")


async def test_a_users_snapshot_can_be_forked_by_id(api: Api) -> None:
    lease = await api.create_lease()
    await put(api, lease, "/doc", b"middle of the episode")
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json={"name": "step 3"})
    snapshot_id = reply.json()["snapshot_id"]
    fork = await api.create_lease(snapshot_id=snapshot_id)
    assert await get(api, fork, "/doc") == b"middle of the episode"
    await api.call("DELETE", f"/v1/snapshots/{snapshot_id}")
    reply = await api.call(
        "POST", f"/v1/leases/{fork['lease_id']}/reset", lease=fork, json={"snapshot_id": snapshot_id}
    )
    assert (reply.status_code, reply.json()["error"]) == (404, "snapshot_missing")
    assert await get(api, fork, "/doc") == b"middle of the episode", (
        "a refused reset leaves the desktop and its fencing token alone"
    )


async def test_a_snapshot_of_another_shape_is_refused(api: Api) -> None:
    lease = await api.create_lease()
    await api.publish(lease, KEY)
    small = {"image": "basic", "resolution": [320, 200]}
    reply = await api.call(
        "POST", "/v1/leases", json={"client_request_id": "other-shape", "shape": small, "setup_key": KEY}
    )
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")


async def test_the_longest_unused_prepared_state_is_evicted_first(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    api = await make_api(snapshot_quota_bytes=350)
    lease = await api.create_lease(ttl_s=3000)
    kept = []
    for index in range(2):
        kept.append((await api.publish(lease, f"{index}" * 64)).json()["snapshot_id"])
        clock.now += 1
    await api.reset(lease, setup_key="0" * 64)
    clock.now += 1
    await api.publish(lease, KEY)
    assert kept[0] in provider.snapshots
    assert kept[1] not in provider.snapshots
    farm = (await api.call("GET", "/v1/farm")).json()
    assert farm["snapshot_bytes"] <= farm["snapshot_quota_bytes"]
    assert any(view["kind"] == "booted" for view in (await api.call("GET", "/v1/snapshots")).json())


async def test_a_tenant_that_takes_snapshots_without_end_loses_its_own(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    api = await make_api(snapshot_quota_bytes=650, max_desktops=3)
    greedy = Api(api.farm, api.client, await api.farm.keys.add("greedy", Scope.LEASE))
    modest = Api(api.farm, api.client, await api.farm.keys.add("modest", Scope.LEASE))
    theirs = await modest.create_lease(ttl_s=3000)
    prepared = (await modest.publish(theirs, KEY)).json()["snapshot_id"]
    lease = await greedy.create_lease(ttl_s=3000)
    taken = []
    for number in range(9):
        clock.now += 1
        body = {"name": f"state-{number}"}
        reply = await greedy.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json=body)
        assert reply.status_code == 200, reply.text
        taken.append(reply.json()["snapshot_id"])
    assert prepared in provider.snapshots, "the oldest of all, and of the kind that goes first, but another's"
    assert [name for name in taken if name in provider.snapshots] == taken[-4:]
    for number in range(3):
        clock.now += 1
        assert (await modest.publish(theirs, f"{number}" * 64)).status_code == 200
    left = [record.owner for record in api.farm.snapshots.all() if record.kind != "booted"]
    assert sorted(Counter(left).values()) == [2, 3], "who holds less takes room from who holds more, up to a half"


async def test_a_base_that_nobody_used_for_long_makes_way(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    api = await make_api(snapshot_quota_bytes=450, max_desktops=1)
    other = await api.create_lease(ttl_s=10, shape={"image": "basic", "resolution": [320, 200]})
    old = other["snapshot_id"]
    await api.call("DELETE", f"/v1/leases/{other['lease_id']}")
    lease = await api.create_lease(ttl_s=3600)
    for number in range(3):
        await api.publish(lease, f"{number}" * 64)
    assert old in provider.snapshots
    await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    clock.now += SHARED_BASE_IDLE_S + 1
    lease = await api.create_lease(ttl_s=3600)
    await api.publish(lease, KEY)
    assert old not in provider.snapshots


async def test_a_quota_that_only_the_base_fills_refuses(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await make_api(snapshot_quota_bytes=150)
    lease = await api.create_lease()
    reply = await api.publish(lease, KEY)
    assert (reply.status_code, reply.json()["error"]) == (507, "quota")
    assert len(provider.snapshots) == 1


async def test_a_state_that_does_not_restore_is_quarantined_and_the_base_taken(
    api: Api, provider: FakeProvider
) -> None:
    lease = await api.create_lease()
    view = (await api.publish(lease, KEY)).json()
    provider.broken.add(view["snapshot_id"])
    answer = await api.reset(lease, setup_key=KEY)
    assert (answer["setup_key"], answer["restored"]) == (None, True)
    assert (await acquire_setup(api, lease))["state"] == "build"
    assert "snapshot_quarantined" in [event["kind"] for event in (await api.call("GET", "/v1/events")).json()]


async def test_a_broken_base_is_booted_anew(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease()
    provider.broken.update(provider.snapshots)
    answer = await api.reset(lease)
    assert answer["restored"] is False
    assert (await api.reset(lease))["restored"] is True


async def test_without_memory_snapshots_every_desktop_is_booted(make_api: MakeApi, provider: FakeProvider) -> None:
    provider.memory_snapshot = False
    api = await make_api()
    lease = await api.create_lease()
    assert (await api.reset(lease))["restored"] is False
    assert [verb for verb, _ in provider.log] == ["create", "destroy", "create"]
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json={})
    assert (reply.status_code, reply.json()["error"]) == (501, "capability_missing")


async def test_a_stopped_farm_leaves_nothing(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await make_api(warm_desktops=1)
    lease = await api.create_lease()
    await api.publish(lease, KEY)
    await api.farm.stop()
    assert provider.desktops == {}
    assert provider.snapshots == {}
    await wait_until(lambda: not api.farm.pool.slots)
