"""One live view: a WebSocket with a viewer on it that speaks RFB, and the pictures of one lease's desktop.

Rule: a view belongs to a lease, not to a desktop: it follows the lease's resets and ends with the lease, with its session, or with its
right; view-only until `control` says otherwise. Only what changed is sent, only when the viewer asked, and never more than it read.
Non-goals: who may open one (`routes`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fastapi import WebSocket, WebSocketDisconnect

from dart_server.clock import wait_for
from dart_server.dashboard import rfb, tiles
from dart_server.dashboard.camera import ImageUnavailable, ScreenCapture, Screenshot, ViewClosed
from dart_server.dashboard.control import Controls
from dart_server.errors import ApiError
from dart_server.records import LeaseRecord
from dart_server.wire import Clock, ErrorCode

IDLE_INTERVAL_S, ACTIVE_INTERVAL_S = 0.25, 0.08
"""How often a desktop is looked at: at rest, and while something happens or a person has the control."""
ACTIVE_PERIOD_S = 2.0
"""Something happens until this long after the last change or input."""
AUTHORIZATION_INTERVAL_S = 2.0
"""How often the right to look is asked for again."""
FALLBACK_QUALITY = 80
MAX_VIEWS = 32
LEASE_ENDED_CODE, ACCESS_LOST_CODE, PROTOCOL_ERROR_CODE = 4001, 4003, 4002
"""Close codes: the lease has ended; the session or the right has; the viewer broke the protocol."""


@dataclass(slots=True)
class ViewerState:
    """What the viewer asked for and has."""

    form: rfb.PixelFormat
    quality: int | None = None
    wanted: bool = False
    whole: bool = True
    shown: Screenshot | None = None


class LiveView:
    """Serves one viewer."""

    def __init__(
        self,
        lease: LeaseRecord,
        view_id: str,
        capture: ScreenCapture,
        controls: Controls,
        clock: Clock,
        check_access: Callable[[], Awaitable[object]],
        session_ended: asyncio.Event,
    ) -> None:
        self._lease = lease
        self._view_id = view_id
        self._capture = capture
        self._controls = controls
        self._clock = clock
        self._check_access = check_access
        self._session_ended = session_ended
        self._reader = rfb.ViewerReader()
        self._viewer = ViewerState(rfb.PixelFormat())
        self._changed = asyncio.Event()
        self._active_until_s = 0.0
        self._size = lease.shape.resolution

    async def serve(self, socket: WebSocket) -> None:
        """Until the viewer hangs up or what the view stands on ends; its control ends with it."""
        tasks = [asyncio.ensure_future(work) for work in (self._receive(socket), self._send(socket), self._watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code, reason = self._close_reason(tasks)
            if code is not None:
                await socket.close(code, reason)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._controls.release(self._lease.lease_id, self._view_id)

    def _close_reason(self, tasks: Sequence[asyncio.Future[None]]) -> tuple[int | None, str]:
        """Close code (None: the viewer has hung up) and reason, from the task that ended."""
        for task in tasks:
            if not task.done():
                continue
            match task.exception():
                case ViewClosed() as error:
                    return LEASE_ENDED_CODE, str(error)
                case ApiError() as error:
                    return ACCESS_LOST_CODE, error.detail[:100]
                case rfb.ProtocolError() as error:
                    return PROTOCOL_ERROR_CODE, str(error)[:100]
                case None | WebSocketDisconnect() | RuntimeError():
                    return None, ""
                case error:
                    raise error
        return None, ""

    async def _watch(self) -> None:
        """Raises what ended the right to look."""
        while not self._session_ended.is_set():
            await self._check_access()
            with contextlib.suppress(TimeoutError):
                await wait_for(self._clock, AUTHORIZATION_INTERVAL_S, self._session_ended.wait())
        raise ApiError(ErrorCode.UNAUTHENTICATED, "the session has ended")

    def _interval(self) -> float:
        return ACTIVE_INTERVAL_S if self._clock.monotonic() < self._active_until_s else IDLE_INTERVAL_S

    async def _receive(self, socket: WebSocket) -> None:
        await socket.send_bytes(rfb.VERSION)
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            data = message.get("bytes") or b""
            if not self._reader.handshake_done:
                for answer in self._reader.feed_handshake(data):
                    await socket.send_bytes(answer)
                if not self._reader.handshake_done:
                    continue
                await self._learn_size()
                await socket.send_bytes(rfb.server_init(*self._size, f"desktop of {self._lease.lease_id}"))
                data = b""
            for said in self._reader.feed(data):
                self._handle_message(said)

    async def _learn_size(self) -> None:
        try:
            picture = await self._capture.screenshot(IDLE_INTERVAL_S)
        except ImageUnavailable:
            return
        self._size = (picture.width, picture.height)

    def _handle_message(self, said: rfb.Message) -> None:
        viewer = self._viewer
        match said:
            case rfb.PixelFormat():
                viewer.form = said
            case rfb.SetEncodings():
                fallback = FALLBACK_QUALITY if rfb.Encoding.TIGHT in said.encodings else None
                viewer.quality = said.quality or fallback
            case rfb.UpdateRequest(incremental):
                viewer.wanted = True
                viewer.whole = viewer.whole or not incremental
                self._changed.set()
            case rfb.KeyInput() | rfb.PointerInput():
                if self._controls.input(self._lease.lease_id, self._view_id, said):
                    self._active_until_s = self._clock.monotonic() + ACTIVE_PERIOD_S

    async def _send(self, socket: WebSocket) -> None:
        viewer = self._viewer
        while True:
            if not viewer.wanted:
                self._changed.clear()
                await self._changed.wait()
                continue
            picture = await self._capture.next_screenshot(self._base, self._interval)
            if (picture.width, picture.height) != self._size:
                raise ViewClosed("the screen has another size now")
            base, viewer.whole = self._base(), False
            parts = await asyncio.to_thread(self._update, base, picture)
            if base is not None:
                self._active_until_s = max(self._active_until_s, self._clock.monotonic() + ACTIVE_PERIOD_S)
            viewer.shown = picture
            if parts:
                viewer.wanted = False
                await socket.send_bytes(rfb.framebuffer_update(parts))

    def _base(self) -> Screenshot | None:
        """What the viewer shows and will be told the difference to; None when it wants all."""
        return None if self._viewer.whole else self._viewer.shown

    def _update(self, base: Screenshot | None, picture: Screenshot) -> list[rfb.Rectangle]:
        before = base.pixels() if base is not None else None
        return tiles.update_rectangles(before, picture.pixels(), picture.jpeg, self._viewer.form, self._viewer.quality)
