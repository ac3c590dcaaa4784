"""Live views and taking over, on simulated desktops: what is sent, who may press, what is let go, what the history tells."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from dashboard_pages import SHAPE, Page, tenant
from farm_harness import Api, ManualClock

from dart_server.dashboard import live, rfb
from dart_server.dashboard.control import IDLE_TIMEOUT_S
from dart_server.dashboard.live import LiveView
from dart_server.errors import ApiError
from dart_server.keys import Scope
from dart_server.records import LeaseRecord
from dart_server.wire import ErrorCode

VIEW = "view-00000001"
GREETING = rfb.VERSION + b"\x01\x01"
ENCODINGS = struct.pack(">BxH2i", 2, 2, 7, -24)
ALL, CHANGES = struct.pack(">BBHHHH", 3, 0, 0, 0, 9, 9), struct.pack(">BBHHHH", 3, 1, 0, 0, 9, 9)


def pointer(buttons: int, x: int, y: int) -> bytes:
    return struct.pack(">BBHH", 5, buttons, x, y)


class FakeSocket:
    """A WebSocket whose other end is the test."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.closed: tuple[int, str] | None = None

    def say(self, data: bytes) -> None:
        self.inbox.put_nowait({"type": "websocket.receive", "bytes": data})

    def hang_up(self) -> None:
        self.inbox.put_nowait({"type": "websocket.disconnect"})

    async def receive(self) -> dict[str, Any]:
        return await self.inbox.get()

    async def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


class Viewer:
    """A live view of a lease and the test's end of it."""

    def __init__(self, api: Api, lease: LeaseRecord, clock: ManualClock, view: str = VIEW) -> None:
        board = api.farm.dashboard
        self.clock = clock
        self.socket = FakeSocket()
        self.ended: ApiError | None = None
        self.session_ended = asyncio.Event()
        board.views.add(view)
        serving = LiveView(
            lease, view, board.captures.for_lease(lease), board.controls, clock, self.check_access, self.session_ended
        )
        self.task = asyncio.ensure_future(serving.serve(self.socket))  # type: ignore[arg-type]

    async def check_access(self) -> None:
        if self.ended is not None:
            raise self.ended

    async def until(self, condition: Callable[[], object], step_s: float = 0.05) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await self.clock.advance(step_s)
                await asyncio.sleep(0.005)

    async def greeted(self) -> int:
        """Shake hands, ask for all; the number of messages until the first picture."""
        self.socket.say(GREETING)
        await self.until(lambda: len(self.socket.sent) >= 4)
        self.socket.say(ENCODINGS + ALL)
        await self.until(lambda: len(self.socket.sent) >= 5)
        return len(self.socket.sent)


async def leased(api: Api) -> tuple[dict[str, Any], LeaseRecord]:
    lease = await api.create_lease(shape=SHAPE, ttl_s=3600)
    return lease, api.farm.leases.active[0]


async def kinds(api: Api) -> list[str]:
    return [event["kind"] for event in (await api.call("GET", "/v1/events?limit=5000")).json()]


async def test_a_view_sends_the_screen_then_what_changed(api: Api, clock: ManualClock) -> None:
    lease, record = await leased(api)
    viewer = Viewer(api, record, clock)
    count = await viewer.greeted()
    assert viewer.socket.sent[3][:4] == struct.pack(">HH", 320, 240)
    first = viewer.socket.sent[-1]
    assert first[0] == 0
    assert struct.unpack_from(">HHHHi", first, 4) == (0, 0, 320, 240, 7)
    viewer.socket.say(CHANGES)
    for _ in range(10):
        await clock.advance(0.1)
    assert len(viewer.socket.sent) == count, "nothing changed, nothing is sent"
    body = {
        "events": [{"type": "move", "x": 20, "y": 50}, {"type": "down"}, {"type": "up"}],
        "frame": {"encoding": "none"},
    }
    await api.call("POST", f"/v1/leases/{lease['lease_id']}/step", lease=lease, json=body)
    await viewer.until(lambda: len(viewer.socket.sent) > count)
    x, y, width, height, _ = struct.unpack_from(">HHHHi", viewer.socket.sent[-1], 4)
    assert x <= 20 < x + width
    assert y <= 50 < y + height
    assert width < 320
    viewer.socket.hang_up()
    await viewer.task
    assert viewer.socket.closed is None


async def test_a_view_follows_a_reset_and_ends_with_its_lease(api: Api, clock: ManualClock) -> None:
    lease, record = await leased(api)
    viewer = Viewer(api, record, clock)
    count = await viewer.greeted()
    body = {
        "events": [{"type": "move", "x": 20, "y": 50}, {"type": "down"}, {"type": "up"}],
        "frame": {"encoding": "none"},
    }
    await api.call("POST", f"/v1/leases/{lease['lease_id']}/step", lease=lease, json=body)
    viewer.socket.say(CHANGES)
    await viewer.until(lambda: len(viewer.socket.sent) > count)
    viewer.socket.say(CHANGES)
    await api.reset(lease)
    await viewer.until(lambda: len(viewer.socket.sent) > count + 1)
    viewer.socket.say(CHANGES)
    await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    other = await api.create_lease(shape=SHAPE)
    assert other["desktop_id"]
    await viewer.until(viewer.task.done)
    assert viewer.socket.closed == (live.LEASE_ENDED_CODE, "the lease has ended")
    assert len(viewer.socket.sent) == count + 2, "nothing of the next tenant's desktop is sent"


async def test_a_view_ends_with_its_right_and_with_nonsense(api: Api, clock: ManualClock) -> None:
    _, record = await leased(api)
    viewer, other = Viewer(api, record, clock), Viewer(api, record, clock, "view-00000002")
    await viewer.greeted()
    viewer.ended = ApiError(ErrorCode.UNAUTHENTICATED, "the session has ended")
    await viewer.until(viewer.task.done, 1.0)
    assert viewer.socket.closed == (live.ACCESS_LOST_CODE, "the session has ended")
    other.socket.say(b"GET / HTTP/1.1\r\n")
    await other.until(other.task.done)
    assert other.socket.closed is not None
    assert other.socket.closed[0] == live.PROTOCOL_ERROR_CODE


async def test_a_view_ends_at_once_with_its_session(api: Api, clock: ManualClock) -> None:
    _, record = await leased(api)
    viewer = Viewer(api, record, clock)
    await viewer.greeted()
    viewer.session_ended.set()  # while the clock stands still
    await asyncio.wait_for(viewer.task, 5)
    assert viewer.socket.closed == (live.ACCESS_LOST_CODE, "the session has ended")


async def test_input_counts_only_under_control_and_is_let_go_at_its_end(
    api: Api, admin: Page, clock: ManualClock
) -> None:
    lease, record = await leased(api)
    viewer = Viewer(api, record, clock)
    await viewer.greeted()

    async def held() -> list[str]:
        reply = await api.call("GET", f"/v1/leases/{lease['lease_id']}/guest/v1/health", lease=lease)
        return list(reply.json()["held"])

    key = struct.pack(">BBxxI", 4, 1, 0xFFE1)
    viewer.socket.say(pointer(1, 20, 50) + key)
    for _ in range(10):
        await clock.advance(0.1)
    assert await held() == []
    path = f"/leases/{lease['lease_id']}/control"
    assert (await admin.change("POST", path, json={"view": "view-unknown"})).status_code == 422
    assert (await admin.change("POST", path, json={"view": VIEW})).status_code == 200
    viewer.socket.say(pointer(1, 20, 50) + key)
    async with asyncio.timeout(20):
        while await held() != ["button1", "shiftleft"]:  # noqa: ASYNC110 - asks over HTTP
            await asyncio.sleep(0.01)
    said = (await admin.get(f"/desktops/{lease['desktop_id']}")).json()
    assert (said["control"]["view"], said["control"]["by"]) == (VIEW, "admin")
    assert (await admin.change("DELETE", path, json={"view": VIEW})).status_code == 200
    assert await held() == []
    assert (await kinds(api)).count("takeover_started") == (await kinds(api)).count("takeover_ended") == 1
    viewer.socket.hang_up()
    await viewer.task


async def test_one_person_at_a_time_and_an_idle_one_loses_it(api: Api, admin: Page, clock: ManualClock) -> None:
    lease, record = await leased(api)
    board = api.farm.dashboard
    first = Viewer(api, record, clock)
    board.views.add("view-00000002")
    path = f"/leases/{lease['lease_id']}/control"
    assert (await admin.change("POST", path, json={"view": VIEW})).status_code == 200
    assert (await admin.change("POST", path, json={"view": VIEW})).status_code == 200, "once more is no error"
    refused = await admin.change("POST", path, json={"view": "view-00000002"})
    assert refused.status_code == 409
    assert "somebody else" in refused.json()["detail"]
    clock.now += IDLE_TIMEOUT_S
    await board.controls.release_idle()
    assert board.controls.find(lease["lease_id"]) is None
    assert (await admin.change("POST", path, json={"view": "view-00000002"})).status_code == 200
    await board.controls.release(lease["lease_id"], VIEW)
    assert board.controls.find(lease["lease_id"]) is not None, "another view's end changes nothing"
    await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    await board.controls.release_idle()
    assert board.controls.find(lease["lease_id"]) is None
    first.socket.hang_up()
    await first.task


@pytest.mark.parametrize("scope", [Scope.LEASE, Scope.READ])
async def test_only_the_owner_or_an_admin_takes_over(api: Api, page: Page, clock: ManualClock, scope: Scope) -> None:
    lease, record = await leased(api)
    stranger = await tenant(api, "stranger", scope)
    viewer = Viewer(api, record, clock)
    await page.log_in(stranger.key)
    reply = await page.change("POST", f"/leases/{lease['lease_id']}/control", json={"view": VIEW})
    assert reply.status_code == 404
    assert api.farm.dashboard.controls.find(lease["lease_id"]) is None
    viewer.socket.hang_up()
    await viewer.task
