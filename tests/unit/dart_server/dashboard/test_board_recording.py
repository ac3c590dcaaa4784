"""What a lease's holder gets of the page: an address that logs a browser in once, and what a person does there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dashboard_pages import SHAPE, Page, tenant
from farm_harness import Api, ManualClock

from dart_server.dashboard import inputs as inputs_module
from dart_server.dashboard.inputs import LISTENER_TIMEOUT_S, HumanInputLog
from dart_server.dashboard.rfb import KeyInput, PointerInput
from dart_server.dashboard.tickets import TICKET_TTL_S

VIEW = "view-00000001"
CLICK = [PointerInput(0, 30, 40), PointerInput(1, 30, 40), PointerInput(0, 30, 40)]


def held(api: Api, lease: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {api.key}", "X-Dart-Lease-Token": lease["token"]}


async def ticket_of(api: Api, lease: dict[str, Any]) -> dict[str, Any]:
    reply = await api.client.post(
        f"/v1/leases/{lease['lease_id']}/live-view", headers={"authorization": f"Bearer {api.key}"}
    )
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_a_ticket_logs_in_once_with_the_rights_of_its_key(api: Api, page: Page) -> None:
    theirs = await tenant(api, "theirs")
    lease, foreign = await theirs.create_lease(shape=SHAPE), await api.create_lease(shape=SHAPE)
    told = await ticket_of(theirs, lease)
    assert told["path"] == f"/dashboard/#/leases/{lease['lease_id']}"
    assert theirs.key not in str(told)
    entered = await page.client.post("/dashboard/api/ticket", json={"ticket": told["ticket"]})
    assert entered.status_code == 200
    assert (entered.json()["name"], entered.json()["scope"]) == ("theirs", "lease")
    assert (await page.get(f"/leases/{lease['lease_id']}")).json()["desktop_id"] == lease["desktop_id"]
    assert (await page.get(f"/leases/{foreign['lease_id']}")).status_code == 404
    again = await page.client.post("/dashboard/api/ticket", json={"ticket": told["ticket"]})
    assert again.status_code == 401


async def test_a_ticket_ends_with_its_time_and_with_its_key(api: Api, page: Page, clock: ManualClock) -> None:
    theirs = await tenant(api, "theirs")
    lease = await theirs.create_lease(shape=SHAPE, ttl_s=3000)
    late, keyless = await ticket_of(theirs, lease), await ticket_of(theirs, lease)
    (key,) = [one for one in await api.farm.repository.keys() if one.name == "theirs"]
    await api.farm.keys.revoke(key.key_id)
    assert (await page.client.post("/dashboard/api/ticket", json={"ticket": keyless["ticket"]})).status_code == 401
    await clock.advance(TICKET_TTL_S + 1)
    refused = await page.client.post("/dashboard/api/ticket", json={"ticket": late["ticket"]})
    assert (refused.status_code, refused.json()["detail"]) == (401, "this address has been used or is too old")


async def test_no_live_view_of_a_lease_that_has_ended(api: Api) -> None:
    lease = await api.create_lease(shape=SHAPE)
    await api.farm.leases.release(lease["lease_id"], await api.farm.keys.principal(f"Bearer {api.key}"))
    reply = await api.client.post(
        f"/v1/leases/{lease['lease_id']}/live-view", headers={"authorization": f"Bearer {api.key}"}
    )
    assert reply.status_code == 410


async def test_the_holder_hears_what_a_person_does(api: Api, clock: ManualClock) -> None:
    lease = await api.create_lease(shape=SHAPE)
    controls = api.farm.dashboard.controls
    record = api.farm.leases.active[0]
    path = f"/v1/leases/{lease['lease_id']}/inputs"

    async def listen(after: int, wait_s: float = 0) -> dict[str, Any]:
        reply = await api.client.get(path, headers=held(api, lease), params={"after": after, "wait_s": wait_s})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def do(*said: KeyInput | PointerInput) -> None:
        for one in said:
            controls.input(lease["lease_id"], VIEW, one)

    controls.take(record, VIEW, "key_test")
    await do(KeyInput(True, ord("z")), KeyInput(False, ord("z")))
    await asyncio.sleep(0.05)
    first = await listen(0)
    assert first["inputs"] == [], "what was done before anybody listened is not kept"
    assert first["controlled"]
    waiting = asyncio.create_task(listen(0, wait_s=30))
    await asyncio.sleep(0.05)
    await do(*CLICK, KeyInput(True, 0xFFE3), KeyInput(True, ord("c")), KeyInput(False, ord("c")))
    heard = await waiting
    events = [event for said in heard["inputs"] for event in said["events"]]
    assert [event["type"] for event in events] == ["move", "down", "move", "up", "key_down", "key_down", "key_up"]
    assert [event["key"] for event in events if "key" in event] == ["ctrlleft", "c", "c"]
    last = heard["inputs"][-1]["number"]
    waiting = asyncio.create_task(listen(last, wait_s=30))
    await asyncio.sleep(0.05)
    await controls.release(lease["lease_id"], VIEW)
    ended = await waiting
    if not ended["inputs"]:
        ended = await listen(last, wait_s=30)
    assert not ended["controlled"]
    assert [event["key"] for said in ended["inputs"] for event in said["events"]] == ["ctrlleft"], "it was let go"


async def test_only_the_holder_of_the_lease_hears(api: Api) -> None:
    lease, other = await api.create_lease(shape=SHAPE), await tenant(api, "other")
    path = f"/v1/leases/{lease['lease_id']}/inputs"
    for headers in ({"authorization": f"Bearer {api.key}"}, held(other, lease)):
        assert (await api.client.get(path, headers=headers)).status_code in (403, 404)


async def test_a_tape_is_bounded_and_forgotten(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "MAX_INPUTS", 3)
    inputs = HumanInputLog(clock)
    await inputs.wait("lease_a", 0, 0)
    for _ in range(5):
        inputs.record("lease_a", 1.0, [{"type": "move", "x": 1, "y": 2}])
    fresh, missed = await inputs.wait("lease_a", 0, 0)
    assert ([one.number for one in fresh], missed) == ([3, 4, 5], 2)
    inputs.prune({"lease_a"})
    assert (await inputs.wait("lease_a", 4, 0))[0]
    await clock.advance(LISTENER_TIMEOUT_S)
    inputs.prune({"lease_a"})
    assert (await inputs.wait("lease_a", 0, 0))[0] == []


async def test_a_look_is_no_step_of_the_replay(api: Api, admin: Page) -> None:
    lease = await api.create_lease(shape=SHAPE)
    headers = {**held(api, lease), "X-Dart-Fencing-Token": str(lease["fencing_token"])}
    for body in ({}, {"settle": {"quiet_ms": 0}}, {"events": [{"type": "move", "x": 1, "y": 1}]}):
        reply = await api.client.post(f"/v1/leases/{lease['lease_id']}/step", headers=headers, json=body)
        assert reply.status_code == 200
    steps = (await admin.get(f"/desktops/{lease['desktop_id']}/steps")).json()
    assert [len(step["events"]) for step in steps] == [0, 1]
