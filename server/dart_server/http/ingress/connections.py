"""Connections that send slowly, too much, or nothing; and how many there may be.

Role: wraps uvicorn's HTTP protocol, whichever it chose. Rule: a request's head is here within `header_timeout_s`, and at most
`MAX_HEADER_BYTES` bytes; a body keeps a least pace; an answer that nobody reads is dropped; when the farm is full, connections that wait
idle make room before a new one is refused. An ordinary request, here in one piece, starts no timer. Timers are the event loop's own, as
uvicorn's are. Non-goals: WebSockets once they are open (pings end dead ones), what a request says (`http.middleware`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from dart_server import wire
from dart_server.ids import new_id
from dart_server.wire import ErrorCode

MAX_HEADER_BYTES = 32 * 1024
HEADER_TIMEOUT_S = 15.0
BODY_GRACE_S = 30.0
BODY_MIN_BYTES_PER_S = 16 * 1024
"""Bytes per second that a body must arrive with, on the average, beyond the grace."""
POLL_INTERVAL_S = 5.0
STALLED_S = 60.0
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large", 503: b"Unavailable"}


def limited_http_protocol(
    max_connections: int, *, header_timeout_s: float = HEADER_TIMEOUT_S
) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol behind the guard."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class GuardedProtocol(base):  # type: ignore[misc]
        """One connection."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._request: Any = None
            self._waits_for = "head"
            self._nbytes = 0
            self._since_s = self.loop.time()
            self._stalled_nbytes = 0
            self._alarm: asyncio.TimerHandle | None = None
            if len(self.connections) > max_connections and not self._make_room():
                self._refuse(503, ErrorCode.NO_CAPACITY, f"the farm has {max_connections} connections open")
            else:
                self._arm(self._look, header_timeout_s)

        def _make_room(self) -> bool:
            """Close one connection that waits for its next request."""
            for other in self.connections:
                if other is not self and getattr(other, "timeout_keep_alive_task", None) is not None:
                    other.timeout_keep_alive_handler()
                    return True
            return False

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                self._disarm()
                return
            if self.cycle is not self._request:
                self._begin("body", self.cycle)
            elif self._waits_for == "next":
                self._begin("head", self.cycle)
            self._nbytes += len(data)
            if self._waits_for == "body" and not self.cycle.more_body:
                self._begin("next", self.cycle)
                self._disarm()
            elif self._waits_for == "head" and self._nbytes > MAX_HEADER_BYTES:
                self._refuse(431, ErrorCode.INVALID, f"the request's headers are larger than {MAX_HEADER_BYTES} bytes")
            elif self._alarm is None:
                self._arm(self._look, min(POLL_INTERVAL_S, header_timeout_s))

        def _begin(self, what: str, request: Any) -> None:
            self._request, self._waits_for = request, what
            self._nbytes = 0
            self._since_s = self.loop.time()

        def _look(self) -> None:
            self._alarm = None
            late_s = self.loop.time() - self._since_s
            if self.transport.is_closing() or self._waits_for == "next":
                return
            if self._waits_for == "head" and late_s >= header_timeout_s:
                self._refuse(408, ErrorCode.INVALID, f"no whole request came within {header_timeout_s:g} s")
            elif (
                self._waits_for == "body"
                and not self.flow.read_paused
                and late_s > BODY_GRACE_S + self._nbytes / BODY_MIN_BYTES_PER_S
            ):
                self._refuse(408, ErrorCode.INVALID, "the body came too slowly")
            else:
                self._arm(self._look, min(POLL_INTERVAL_S, header_timeout_s))

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled_nbytes = self.transport.get_write_buffer_size()
            self._arm(self._look_at_writing, STALLED_S)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._disarm()

        def _look_at_writing(self) -> None:
            self._alarm = None
            left_nbytes = self.transport.get_write_buffer_size()
            if left_nbytes and left_nbytes >= self._stalled_nbytes:
                self.transport.abort()
            elif left_nbytes:
                self._stalled_nbytes = left_nbytes
                self._arm(self._look_at_writing, STALLED_S)

        def connection_lost(self, error: Exception | None) -> None:
            self._disarm()
            super().connection_lost(error)

        def _arm(self, call: Any, after_s: float) -> None:
            self._disarm()
            self._alarm = self.loop.call_later(after_s, call)

        def _disarm(self) -> None:
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, ErrorCode.INVALID, "this is no HTTP request that the farm can read")

        def _refuse(self, status: int, code: ErrorCode, detail: str) -> None:
            """The one envelope, written past the application, then the end of the connection."""
            self._disarm()
            request_id = new_id("req")
            body = wire.ErrorBody(error=code, detail=detail, request_id=request_id).model_dump_json().encode()
            head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n"
            head %= (status, _REASONS[status], len(body), request_id.encode())
            retry = b"retry-after: 1\r\n" if status == 503 else b""
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(head + retry + b"connection: close\r\n\r\n" + body)
            self.transport.close()

    return GuardedProtocol
