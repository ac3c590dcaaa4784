"""What the page shows: rights, pictures, steps, samples. Desktops are simulated and have a real screen."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import threading
from typing import Any

import pytest
from dashboard_pages import SHAPE, Page, tenant
from farm_harness import Api, ManualClock
from PIL import Image

from dart_server import wire
from dart_server.dashboard.camera import ImageUnavailable, ViewClosed
from dart_server.dashboard.replay import MAX_PENDING_FRAMES, MIN_PICTURE_INTERVAL_S, Replay
from dart_server.dashboard.samples import INTERVAL_S, MAX_TIMINGS, Samples, Timings
from dart_server.keys import Scope

MOVE = {"type": "move", "x": 40, "y": 60}
PRESS, RELEASE = {"type": "down", "button": 1}, {"type": "up", "button": 1}


async def act(api: Api, lease: dict[str, Any], *events: dict[str, Any], encoding: str = "jpeg") -> None:
    body = {"events": list(events), "frame": {"encoding": encoding}}
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/step", lease=lease, json=body)
    assert reply.status_code == 200, reply.text


async def test_an_admin_sees_all_a_tenant_its_own_and_totals(api: Api, page: Page) -> None:
    mine, theirs = await tenant(api, "mine"), await tenant(api, "theirs")
    lease, other = await mine.create_lease(shape=SHAPE), await theirs.create_lease(shape=SHAPE)
    await page.log_in(mine.key)
    seen = (await page.get("/overview")).json()
    assert [one["desktop_id"] for one in seen["desktops"]] == [lease["desktop_id"]]
    assert [one["lease_id"] for one in seen["leases"]] == [lease["lease_id"]]
    assert seen["desktops"][0]["owner"] == "mine"
    assert seen["leases_active"] == 2
    assert lease["token"] not in json.dumps(seen)
    hidden = {path: await page.get(f"/desktops/{other['desktop_id']}{path}") for path in ("", "/picture", "/steps")}
    assert [reply.status_code for reply in hidden.values()] == [404, 204, 200]
    assert (hidden["/picture"].content, hidden["/steps"].json()) == (b"", [])
    await page.log_in(api.key)
    seen = (await page.get("/overview")).json()
    assert {one["owner"] for one in seen["desktops"]} == {"mine", "theirs"}
    assert (await page.get(f"/desktops/{other['desktop_id']}")).json()["may_control"]


async def test_a_reader_looks_at_nothing_of_others_and_changes_nothing(api: Api, page: Page) -> None:
    reader, lease = await tenant(api, "reader", Scope.READ), await api.create_lease(shape=SHAPE)
    await page.log_in(reader.key)
    seen = (await page.get("/overview")).json()
    assert (seen["desktops"], seen["leases"], seen["leases_active"]) == ([], [], 1)
    for action in ("release", "control"):
        body = {"json": {"view": "view-12345678"}} if action == "control" else {}
        reply = await page.change("POST", f"/leases/{lease['lease_id']}/{action}", **body)
        assert reply.status_code == 404, reply.text
    assert len(api.farm.leases.active) == 1


async def test_a_small_picture_is_shared_changes_with_the_screen_and_ends_with_the_lease(
    api: Api, admin: Page, clock: ManualClock
) -> None:
    lease = await api.create_lease(shape=SHAPE)
    path = f"/desktops/{lease['desktop_id']}/picture"
    first = await admin.get(path)
    assert first.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(first.content)) as image:
        assert image.size == (320, 240)
    again = await admin.get(path, headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    await act(api, lease, MOVE, PRESS, RELEASE)
    assert (await admin.get(path)).headers["etag"] == first.headers["etag"], "younger than a second: the same picture"
    clock.now += 2
    changed = await admin.get(path)
    assert changed.headers["etag"] != first.headers["etag"]
    capture = api.farm.dashboard.captures.for_lease(api.farm.leases.active[0])
    await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    with pytest.raises(ViewClosed):
        await capture.screenshot(1000)
    assert (await admin.get(path)).status_code == 204


async def test_a_picture_that_a_reset_overtakes_is_dropped(api: Api, clock: ManualClock) -> None:
    lease = await api.create_lease(shape=SHAPE)
    record = api.farm.leases.active[0]
    capture = api.farm.dashboard.captures.for_lease(record)
    looking = asyncio.ensure_future(capture.screenshot(0))
    while capture._taking is None:  # noqa: ASYNC110 - one turn of the loop at a time
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert record.slot is not None
    record.slot.fencing_token += 1
    with pytest.raises(ImageUnavailable, match="reset meanwhile"):
        await looking
    lease["fencing_token"] += 1
    await api.reset(lease)
    assert (await capture.screenshot(0)).width == 320, "the capture follows its lease through a reset"


async def test_steps_are_replayed_with_their_pictures_and_their_owner(api: Api, page: Page, clock: ManualClock) -> None:
    mine = await tenant(api, "mine")
    lease = await mine.create_lease(shape=SHAPE)
    await act(mine, lease, MOVE, PRESS, RELEASE, encoding="raw")
    await act(mine, lease, {"type": "text", "text": "x" * 1000})
    await page.log_in(mine.key)
    path = f"/desktops/{lease['desktop_id']}/steps"
    steps = (await page.get(path)).json()
    assert [event["type"] for event in steps[0]["events"]] == ["move", "down", "up"]
    assert len(steps[1]["events"][0]["text"]) == 201
    ring = api.farm.dashboard.replay.steps(lease["desktop_id"])
    async with asyncio.timeout(10):
        while not any(step.picture for step in ring):
            await clock.advance(0.2)
    pictured = next(step for step in ring if step.picture)
    picture = await page.get(f"{path}/{pictured.number}")
    with Image.open(io.BytesIO(picture.content)) as image:
        assert image.size == (320, 240)
    await page.log_in((await tenant(api, "theirs")).key)
    assert (await page.get(path)).status_code == 200
    assert (await page.get(path)).json() == []
    assert (await page.get(f"{path}/{pictured.number}")).status_code == 404


def frame_of(payload: bytes = bytes(320 * 240 * 3), **fields: object) -> bytes:
    told = {"seq": 0, "width": 320, "height": 240, "encoding": "raw", "nbytes": len(payload), "cursor": [0, 0]}
    header = json.dumps({**told, "settled": True, "settle_ms": 0.0, "grab_ms": 0.0, **fields}).encode()
    return struct.pack(">I", len(header)) + header + payload


async def test_the_replay_is_bounded_in_steps_and_bytes(api: Api, clock: ManualClock) -> None:
    await api.create_lease(shape=SHAPE)
    lease = api.farm.leases.active[0]
    replay = Replay(clock, steps=5, nbytes=4000)
    maker = asyncio.ensure_future(replay.make_thumbnails())
    request = wire.StepRequest(events=[wire.MoveEvent(x=1, y=1)])
    for number in range(20):
        desktop_id = f"desk_{number % 2}"
        replay.record(lease, desktop_id, 1, request, frame_of(), 0.01)
        async with asyncio.timeout(10):
            while replay._arrived.is_set():
                await clock.advance(MIN_PICTURE_INTERVAL_S)
        assert replay.nbytes <= 4000
        assert len(replay.steps(desktop_id)) <= 5
    assert replay.nbytes == sum(
        len(step.picture or b"") for name in ("desk_0", "desk_1") for step in replay.steps(name)
    )
    assert any(step.picture for step in replay.steps("desk_1"))
    replay.prune(set())
    assert (replay.nbytes, replay.steps("desk_0")) == (0, [])
    replay.record(lease, "desk_0", 1, request, b"\0\0\0\2{}", 0.01)
    await clock.advance(MIN_PICTURE_INTERVAL_S)
    assert replay.steps("desk_0")[0].picture is None, "a frame that is none costs its picture and nothing else"
    assert not maker.done()
    maker.cancel()


async def test_a_frame_that_came_early_has_the_picture_of_its_draft(api: Api, clock: ManualClock) -> None:
    await api.create_lease(shape=SHAPE)
    replay = Replay(clock)
    maker = asyncio.ensure_future(replay.make_thumbnails())
    frame = frame_of(b"", early=True)
    note = json.dumps({"draft": True, "seq": 0, "nbytes": 320 * 240 * 3}).encode()
    draft = struct.pack(">I", len(note)) + note + bytes([250, 0, 0] * 320 * 240)
    request = wire.StepRequest(events=[wire.MoveEvent(x=1, y=1)])
    replay.record(api.farm.leases.active[0], "desk_0", 1, request, frame, 0.01, draft)
    async with asyncio.timeout(10):
        while replay._arrived.is_set():
            await clock.advance(MIN_PICTURE_INTERVAL_S)
    picture = replay.steps("desk_0")[0].picture
    assert picture is not None
    red, green, blue = Image.open(io.BytesIO(picture)).convert("RGB").getpixel((0, 0))
    assert red > 200 > green + blue
    maker.cancel()


async def test_a_step_that_is_dropped_while_its_picture_is_made_costs_nothing(
    api: Api, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.create_lease(shape=SHAPE)
    begun, go_on = threading.Event(), threading.Event()

    def slow_picture(_waiting: object) -> bytes:
        begun.set()
        assert go_on.wait(10)
        return b"picture"

    monkeypatch.setattr("dart_server.dashboard.replay.frame_thumbnail", slow_picture)
    replay = Replay(clock)
    maker = asyncio.ensure_future(replay.make_thumbnails())
    request = wire.StepRequest(events=[wire.MoveEvent(x=1, y=1)])
    replay.record(api.farm.leases.active[0], "desk_0", 1, request, frame_of(), 0.01)
    assert await asyncio.to_thread(begun.wait, 10)
    replay.prune(set())
    go_on.set()
    async with asyncio.timeout(10):
        while replay._arrived.is_set():
            await clock.advance(MIN_PICTURE_INTERVAL_S)
    assert replay.nbytes == 0
    maker.cancel()


async def test_frames_that_wait_to_become_pictures_are_few(api: Api, clock: ManualClock) -> None:
    await api.create_lease(shape=SHAPE)
    replay = Replay(clock)
    request = wire.StepRequest(events=[wire.MoveEvent(x=1, y=1)])
    for number in range(40):
        replay.record(api.farm.leases.active[0], f"desk_{number % 20}", 1, request, frame_of(), 0.01)
    assert len(replay._waiting) == MAX_PENDING_FRAMES
    assert all(len(replay.steps(f"desk_{number}")) == 2 for number in range(20))


async def test_samples_tell_of_the_farm_the_host_and_what_was_slow(api: Api, admin: Page, clock: ManualClock) -> None:
    lease = await api.create_lease(shape=SHAPE)
    await act(api, lease)
    await clock.advance(INTERVAL_S)
    latest = (await admin.get("/samples")).json()[-1]
    assert (latest["leased"], latest["step_n"], latest["claim_n"], latest["reset_n"]) == (1, 1, 1, 0)
    assert latest["step_p50_ms"] > 0
    assert latest["reset_p50_ms"] is None
    assert 0 < latest["memory_used_bytes"] < latest["memory_total_bytes"]
    await clock.advance(INTERVAL_S)
    assert [one["step_p50_ms"] for one in (await admin.get(f"/samples?since={latest['n']}")).json()] == [None]


def test_timings_are_quantiles_of_what_ended_since_the_last_sample() -> None:
    timings = Timings()
    for number in range(1, 101):
        timings.add("step", number / 1000)
    told = timings.drain()
    assert (told["step_n"], told["step_p50_ms"], told["step_p99_ms"]) == (100, 51.0, 100.0)
    for _ in range(MAX_TIMINGS + 5):
        timings.add("step", 1.0)
    assert timings.drain()["step_n"] == MAX_TIMINGS + 5
    assert timings.drain()["step_p99_ms"] is None
    samples = Samples(timings, dict)
    for _ in range(3):
        samples.take()
    assert [one["n"] for one in samples.since(1)] == [2, 3]


async def test_the_page_may_run_its_own_modules_and_nothing_else(api: Api, page: Page) -> None:
    reply = await page.client.get("/dashboard", follow_redirects=True)
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<script>" not in reply.text
    assert "style=" not in reply.text
    for name in ("app.css", "js/main.js", "icon.svg"):
        found = await page.client.get(f"/dashboard/static/{name}")
        assert found.status_code == 200, name
        assert found.headers["x-content-type-options"] == "nosniff"
    for name in ("../routes.py", "js", "%2e%2e/routes.py", "js/../../routes.py", "/etc/passwd"):
        assert (await page.client.get(f"/dashboard/static/{name}")).status_code == 404, name
        assert (await page.client.get(f"/dashboard/novnc/{name}")).status_code == 404, name
    paths = (await api.client.get("/openapi.json")).json()["paths"]
    assert [path for path in paths if path.startswith("/dashboard")] == []


async def test_the_queue_shows_who_waits_to_those_who_may_see_it(api: Api, page: Page) -> None:
    mine, theirs = await tenant(api, "mine"), await tenant(api, "theirs")
    for _ in range(api.farm.settings.max_desktops):
        await mine.create_lease(shape=SHAPE)
    body = {"client_request_id": "waits-for-two", "shape": SHAPE, "count": 2, "priority": -3}
    assert (await mine.call("POST", "/v1/claims", json=body)).status_code == 202
    await page.log_in(mine.key)
    seen = (await page.get("/overview")).json()
    assert [(one["owner"], one["position"], one["target"], one["priority"]) for one in seen["queue"]] == [
        ("mine", 0, "2 × basic", -3)
    ]
    await page.log_in(theirs.key)
    assert (await page.get("/overview")).json()["queue"] == []


async def test_an_admin_sets_a_desktop_aside_and_lets_it_go(api: Api, page: Page) -> None:
    mine = await tenant(api, "mine")
    lease = await mine.create_lease(shape=SHAPE)
    path = f"/desktops/{lease['desktop_id']}"
    await page.log_in(mine.key)
    assert not (await page.get(path)).json()["may_quarantine"]
    assert (await page.change("POST", f"{path}/quarantine")).status_code == 403
    await page.log_in(api.key)
    assert (await page.change("POST", f"{path}/quarantine")).status_code == 200
    seen = {one["desktop_id"]: one for one in (await page.get("/overview")).json()["desktops"]}
    assert seen[lease["desktop_id"]]["state"] == "quarantined"
    assert "dashboard" in seen[lease["desktop_id"]]["failure"]
    assert (await page.change("POST", f"{path}/unquarantine")).status_code == 200
    async with asyncio.timeout(10):
        while lease["desktop_id"] in api.farm.pool.slots:  # noqa: ASYNC110 - removed in the background
            await asyncio.sleep(0.01)


async def test_the_pools_show_what_is_ready(admin: Page, api: Api) -> None:
    body = {"shape": SHAPE, "warm": 1}
    assert (await api.call("PUT", "/v1/pools/mine", json=body)).status_code == 200
    seen = {one["name"]: one for one in (await admin.get("/overview")).json()["pools"]}
    assert (seen["mine"]["warm"], seen["mine"]["what"]) == (1, "basic")
