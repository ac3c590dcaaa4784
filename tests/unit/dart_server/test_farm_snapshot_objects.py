"""Snapshots as objects: names, lineage, what they hold, whose they are, quarantine with bounded room, rebuilding from an ancestor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, wait_until

from dart_server.keys import Scope

KEY = "a" * 64


async def take(api: Api, lease: dict[str, Any], **body: Any) -> dict[str, Any]:
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json=body)
    assert reply.status_code == 200, reply.text
    view: dict[str, Any] = reply.json()
    return view


async def events(api: Api, kind: str) -> list[dict[str, Any]]:
    return [event for event in (await api.call("GET", "/v1/events")).json() if event["kind"] == kind]


async def other_tenant(api: Api) -> Api:
    secret = await api.farm.keys.add("other", Scope.LEASE)
    return Api(api.farm, api.client, secret)


async def chain(api: Api, lease: dict[str, Any], names: str) -> list[str]:
    """Snapshots that stand on each other, the desktop being restored from each before the next is taken."""
    found = []
    for name in names:
        found.append((await take(api, lease, name=name))["snapshot_id"])
        await api.reset(lease, snapshot_id=name)
    return found


async def test_a_snapshot_tells_what_it_holds_and_where_it_comes_from(api: Api, provider: FakeProvider) -> None:
    provider.files_bytes = 40
    lease = await api.create_lease()
    base = (await api.call("GET", "/v1/snapshots")).json()[0]
    view = await take(api, lease, name="before saving", description="the dialog is open")
    assert (view["name"], view["description"], view["kind"]) == ("before saving", "the dialog is open", "user")
    assert (view["bytes"], view["memory_bytes"], view["files_bytes"], view["processes"]) == (100, 60, 40, 7)
    assert view["pause_ms"] == 250.0
    assert (view["parent"], view["lineage"]) == (base["snapshot_id"], [base["snapshot_id"]])
    assert view["image_digest"] == lease["image_digest"]
    assert (base["parent"], base["lineage"], base["owner"]) == (None, [], "farm")
    (made,) = [event for event in await events(api, "snapshot_created") if event["data"]["name"] == "before saving"]
    assert made["data"]["pause_ms"] == 250.0
    assert (made["lease_id"], made["desktop_id"]) == (lease["lease_id"], lease["desktop_id"])


async def test_a_snapshot_goes_by_its_name(api: Api) -> None:
    lease = await api.create_lease()
    view = await take(api, lease, name="here")
    assert (await api.call("GET", "/v1/snapshots/here")).json() == view
    assert (await api.reset(lease, snapshot_id="here"))["snapshot_id"] == view["snapshot_id"]
    assert (await api.create_lease(snapshot_id="here"))["snapshot_id"] == view["snapshot_id"]
    again = await api.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json={"name": "here"})
    assert (again.status_code, again.json()["error"]) == (409, "invalid")
    assert (await api.call("DELETE", "/v1/snapshots/here")).status_code == 204
    assert (await api.call("GET", "/v1/snapshots/here")).status_code == 404
    assert (await take(api, lease, name="here"))["snapshot_id"] != view["snapshot_id"]


@pytest.mark.parametrize("name", ["snap_01", "", "a/b", " lead", "x" * 129])
async def test_a_name_that_could_be_an_id_or_a_path_is_refused(api: Api, name: str) -> None:
    lease = await api.create_lease()
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json={"name": name})
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")


async def test_names_and_snapshots_are_the_tenants_own(api: Api) -> None:
    tenant = await other_tenant(api)
    mine, theirs = await api.create_lease(), await tenant.create_lease()
    await take(tenant, theirs, name="here")
    mine_view = await take(api, mine, name="here")
    assert (await tenant.call("GET", f"/v1/snapshots/{mine_view['snapshot_id']}")).status_code == 404
    assert (await tenant.call("DELETE", f"/v1/snapshots/{mine_view['snapshot_id']}")).status_code == 204, (
        "as if unknown"
    )
    assert (await api.call("GET", f"/v1/snapshots/{mine_view['snapshot_id']}")).status_code == 200, (
        "and it is still there"
    )
    reply = await tenant.call(
        "POST", f"/v1/leases/{theirs['lease_id']}/reset", lease=theirs, json={"snapshot_id": mine_view["snapshot_id"]}
    )
    assert (reply.status_code, reply.json()["error"]) == (404, "snapshot_missing")
    assert (await tenant.call("GET", "/v1/snapshots/here")).json()["snapshot_id"] != mine_view["snapshot_id"]
    seen = (await tenant.call("GET", "/v1/snapshots")).json()
    assert {view["kind"] for view in seen} == {"booted", "user"}
    assert mine_view["snapshot_id"] not in {view["snapshot_id"] for view in seen}
    base = next(view for view in seen if view["kind"] == "booted")
    assert (await tenant.call("DELETE", f"/v1/snapshots/{base['snapshot_id']}")).status_code == 403


async def test_a_desktop_is_rebuilt_from_its_deepest_ancestor_that_restores(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease()
    first, second, third = await chain(api, lease, "abc")
    provider.broken.update({second, third})
    answer = await api.reset(lease, snapshot_id="c")
    assert (answer["snapshot_id"], answer["restored"], answer["quarantined"]) == (first, True, [third, second])
    aside = (await api.call("GET", "/v1/snapshots", params={"state": "quarantined"})).json()
    assert {view["snapshot_id"] for view in aside} == {second, third} == provider.aside
    assert all("does not restore" in view["reason"] and view["quarantine_path"] for view in aside)
    told = [event["data"]["snapshot_id"] for event in await events(api, "snapshot_quarantined")]
    assert told == [third, second]
    (reset,) = [event for event in await events(api, "desktop_reset") if event["data"]["quarantined"]]
    assert (reset["data"]["snapshot_id"], reset["data"]["quarantined"]) == (first, [third, second])
    for name in ("c", third):
        reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/reset", lease=lease, json={"snapshot_id": name})
        assert reply.json()["error"] == ("snapshot_missing" if name == "c" else "snapshot_broken")


async def test_when_no_ancestor_restores_the_image_is_booted(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease()
    snapshots = await chain(api, lease, "ab")
    provider.broken.update(provider.snapshots)
    answer = await api.reset(lease, snapshot_id="b")
    assert answer["restored"] is False
    assert len(answer["quarantined"]) == 3
    assert set(snapshots) < set(answer["quarantined"])
    views = (await api.call("GET", "/v1/snapshots")).json()
    assert [view["kind"] for view in views] == ["booted"], "a fresh base was saved, and nothing else is offered"


async def test_one_failure_does_not_condemn_a_snapshot(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease()
    view = await take(api, lease, name="a")
    provider.failing = 1
    answer = await api.reset(lease, snapshot_id="a")
    assert (answer["snapshot_id"], answer["quarantined"]) == (view["snapshot_id"], [])


async def test_a_host_on_which_nothing_comes_up_condemns_no_snapshot(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease()
    await take(api, lease, name="a")
    provider.failing, provider.host_faults = 10, 10
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/reset", lease=lease, json={"snapshot_id": "a"})
    assert (reply.status_code, reply.json()["error"]) == (503, "host_fault")
    assert (await events(api, "snapshot_quarantined")) == []
    provider.failing = provider.host_faults = 0
    lease["fencing_token"] = (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()["fencing_token"]
    assert (await api.reset(lease, snapshot_id="a"))["quarantined"] == []


async def test_a_claim_of_a_broken_snapshot_is_refused_and_leaves_a_ready_desktop(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await make_api(warm_desktops=1)
    lease = await api.create_lease()
    view = await take(api, lease, name="a")
    provider.broken.add(view["snapshot_id"])
    body = {"client_request_id": "broken-one", "snapshot_id": "a"}
    reply = await api.call("POST", "/v1/leases", json=body)
    assert (reply.status_code, reply.json()["error"]) == (409, "snapshot_broken")
    assert view["parent"] in reply.json()["hint"]
    made = provider.log.count(("create", lease["desktop_id"]))
    assert (await api.create_lease())["snapshot_id"] == view["parent"]
    assert provider.log.count(("create", lease["desktop_id"])) == made


async def test_a_snapshot_that_is_being_restored_is_deleted_afterwards(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease()
    view = await take(api, lease, name="a")
    provider.gate = asyncio.Event()
    resetting = asyncio.create_task(api.reset(lease, snapshot_id="a"))
    await wait_until(lambda: ("restore", view["snapshot_id"]) in provider.log)
    assert (await api.call("DELETE", "/v1/snapshots/a")).status_code == 204
    assert (await api.call("GET", "/v1/snapshots/a")).status_code == 404
    assert view["snapshot_id"] in provider.snapshots
    provider.gate.set()
    assert (await resetting)["snapshot_id"] == view["snapshot_id"]
    assert view["snapshot_id"] not in provider.snapshots


async def test_the_quarantine_has_bounded_room(make_api: MakeApi, provider: FakeProvider) -> None:
    api = await make_api(quarantine_bytes=250)
    lease = await api.create_lease()
    taken = []
    for name in "abc":
        taken.append((await take(api, lease, name=name))["snapshot_id"])
        provider.broken.add(taken[-1])
        await api.reset(lease, snapshot_id=name)
    aside = (await api.call("GET", "/v1/snapshots", params={"state": "quarantined"})).json()
    assert [view["snapshot_id"] for view in aside] == taken[1:]
    assert taken[0] not in provider.snapshots
    assert (await api.call("GET", "/v1/farm")).json()["quarantined_bytes"] == 200
    assert (await api.call("DELETE", f"/v1/snapshots/{taken[1]}")).status_code == 204
    assert provider.aside == {taken[2]}


async def test_without_room_a_broken_snapshot_is_removed_and_still_told_of(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await make_api(quarantine_bytes=0)
    lease = await api.create_lease()
    view = await take(api, lease)
    provider.broken.add(view["snapshot_id"])
    assert (await api.reset(lease, snapshot_id=view["snapshot_id"]))["quarantined"] == [view["snapshot_id"]]
    assert view["snapshot_id"] not in provider.snapshots
    (told,) = await events(api, "snapshot_quarantined")
    assert told["data"]["quarantine_path"] is None


async def test_layers_that_outlive_their_snapshot_count(make_api: MakeApi, provider: FakeProvider) -> None:
    provider.files_bytes = 40
    api = await make_api()
    lease = await api.create_lease(ttl_s=3000)
    parent, child = await chain(api, lease, "ab")
    used = api.farm.snapshots.used_bytes
    assert used == 300, "the base and both"
    await api.call("DELETE", f"/v1/snapshots/{parent}")
    assert api.farm.snapshots.used_bytes == used - 60, "its memory image is gone; its files carry the child"
    (view,) = [view for view in (await api.call("GET", "/v1/snapshots")).json() if view["snapshot_id"] == child]
    assert view["lineage"][0] == parent
    await api.call("DELETE", f"/v1/snapshots/{child}")
    assert api.farm.snapshots.used_bytes == 100 + 80, "the desktop itself stands on both"
    await api.reset(lease)
    assert api.farm.snapshots.used_bytes == 100


async def test_a_restarted_farm_knows_its_snapshots_and_what_they_stand_on(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock
) -> None:
    provider.files_bytes = 40
    api = await make_api()
    lease = await api.create_lease(ttl_s=3000)
    first, second, third = await chain(api, lease, "abc")
    await api.call("DELETE", f"/v1/snapshots/{second}")
    provider.broken.add(first)
    await api.call("POST", f"/v1/leases/{lease['lease_id']}/reset", lease=lease, json={"snapshot_id": "a"})
    used = api.farm.snapshots.used_bytes
    clock.now += 1
    reborn = await make_api()
    views = {view["snapshot_id"]: view for view in (await reborn.call("GET", "/v1/snapshots")).json()}
    assert views[third]["lineage"][:2] == [second, first]
    assert (views[third]["name"], views[third]["pause_ms"]) == ("c", 250.0)
    aside = (await reborn.call("GET", "/v1/snapshots", params={"state": "quarantined"})).json()
    assert [view["snapshot_id"] for view in aside] == [first]
    assert provider.aside == {first}, "what is kept for inspection survives the restart"
    assert reborn.farm.snapshots.used_bytes == used
