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
from dart_server.dashboard.camera import Camera, ImageUnavailable, Picture, ViewClosed
from dart_server.dashboard.control import Controls
from dart_server.errors import ApiError
from dart_server.records import LeaseRecord
from dart_server.wire import Clock, ErrorCode

SLOW_S, FAST_S = 0.25, 0.08
"""How often a desktop is looked at: at rest, and while something happens or a person has the control."""
BUSY_S = 2.0
"""Something happens until this long after the last change or input."""
CHECK_S = 2.0
"""How often the right to look is asked for again."""
FALLBACK_QUALITY = 80
MOST_VIEWS = 32
OVER, LOST, BROKEN = 4001, 4003, 4002
"""Close codes: the lease has ended; the session or the right has; the viewer broke the protocol."""


@dataclass(slots=True)
class ViewRequest:
    """What the viewer asked for and has."""

    form: rfb.PixelFormat
    quality: int | None = None
    wanted: bool = False
    whole: bool = True
    shown: Picture | None = None


class LiveView:
    """Serves one viewer."""

    def __init__(
        self,
        lease: LeaseRecord,
        view_id: str,
        camera: Camera,
        controls: Controls,
        clock: Clock,
        allowed: Callable[[], Awaitable[object]],
        session_ended: asyncio.Event,
    ) -> None:
        self._lease = lease
        self._view_id = view_id
        self._camera = camera
        self._controls = controls
        self._clock = clock
        self._allowed = allowed
        self._session_ended = session_ended
        self._reader = rfb.ViewerReader()
        self._asked = ViewRequest(rfb.PixelFormat())
        self._changed = asyncio.Event()
        self._busy_until_s = 0.0
        self._size = lease.shape.resolution

    async def serve(self, socket: WebSocket) -> None:
        """Until the viewer hangs up or what the view stands on ends; its control ends with it."""
        tasks = [asyncio.ensure_future(work) for work in (self._receive(socket), self._send(socket), self._watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code, reason = self._ending(tasks)
            if code is not None:
                await socket.close(code, reason)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._controls.let_go(self._lease.lease_id, self._view_id)

    def _ending(self, tasks: Sequence[asyncio.Future[None]]) -> tuple[int | None, str]:
        """Close code (None: the viewer has hung up) and reason, from the task that ended."""
        for task in tasks:
            if not task.done():
                continue
            match task.exception():
                case ViewClosed() as error:
                    return OVER, str(error)
                case ApiError() as error:
                    return LOST, error.detail[:100]
                case rfb.BadMessage() as error:
                    return BROKEN, str(error)[:100]
                case None | WebSocketDisconnect() | RuntimeError():
                    return None, ""
                case error:
                    raise error
        return None, ""

    async def _watch(self) -> None:
        """Raises what ended the right to look."""
        while not self._session_ended.is_set():
            await self._allowed()
            with contextlib.suppress(TimeoutError):
                await wait_for(self._clock, CHECK_S, self._session_ended.wait())
        raise ApiError(ErrorCode.UNAUTHENTICATED, "the session has ended")

    def _interval(self) -> float:
        return FAST_S if self._clock.monotonic() < self._busy_until_s else SLOW_S

    async def _receive(self, socket: WebSocket) -> None:
        await socket.send_bytes(rfb.VERSION)
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            data = message.get("bytes") or b""
            if not self._reader.greeted:
                for answer in self._reader.greet(data):
                    await socket.send_bytes(answer)
                if not self._reader.greeted:
                    continue
                await self._learn_size()
                await socket.send_bytes(rfb.server_init(*self._size, f"desktop of {self._lease.lease_id}"))
                data = b""
            for said in self._reader.feed(data):
                self._hear(said)

    async def _learn_size(self) -> None:
        try:
            picture = await self._camera.picture(SLOW_S)
        except ImageUnavailable:
            return
        self._size = (picture.width, picture.height)

    def _hear(self, said: rfb.Message) -> None:
        asked = self._asked
        match said:
            case rfb.PixelFormat():
                asked.form = said
            case rfb.SetEncodings():
                fallback = FALLBACK_QUALITY if rfb.Encoding.TIGHT in said.encodings else None
                asked.quality = said.quality or fallback
            case rfb.UpdateRequest(incremental):
                asked.wanted = True
                asked.whole = asked.whole or not incremental
                self._changed.set()
            case rfb.KeyInput() | rfb.PointerInput():
                if self._controls.input(self._lease.lease_id, self._view_id, said):
                    self._busy_until_s = self._clock.monotonic() + BUSY_S

    async def _send(self, socket: WebSocket) -> None:
        asked = self._asked
        while True:
            if not asked.wanted:
                self._changed.clear()
                await self._changed.wait()
                continue
            picture = await self._camera.next_picture(self._base, self._interval)
            if (picture.width, picture.height) != self._size:
                raise ViewClosed("the screen has another size now")
            base, asked.whole = self._base(), False
            parts = await asyncio.to_thread(self._update, base, picture)
            if base is not None:
                self._busy_until_s = max(self._busy_until_s, self._clock.monotonic() + BUSY_S)
            asked.shown = picture
            if parts:
                asked.wanted = False
                await socket.send_bytes(rfb.framebuffer_update(parts))

    def _base(self) -> Picture | None:
        """What the viewer shows and will be told the difference to; None when it wants all."""
        return None if self._asked.whole else self._asked.shown

    def _update(self, base: Picture | None, picture: Picture) -> list[rfb.Rectangle]:
        before = base.pixels() if base is not None else None
        return tiles.update(before, picture.pixels(), picture.jpeg, self._asked.form, self._asked.quality)
