"""Large answers written piece by piece.

Role: the WebSocket protocol of the farm's server. Rule: what does not fit the socket's buffer waits here as a view and goes on when there
is room; asyncio before 3.12 would move all of it again after each write, which takes ten times as long as the sending. Non-goals: knowing
what is written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

CHUNK_BYTES = 128 * 1024


def binary_frame_header(nbytes: int) -> bytes:
    """The head of a whole binary message of a WebSocket's serving end."""
    if nbytes < 126:
        return bytes((0x82, nbytes))
    return b"\x82\x7e" + nbytes.to_bytes(2, "big") if nbytes < 1 << 16 else b"\x82\x7f" + nbytes.to_bytes(8, "big")


class ChunkedTransport:
    """A transport whose `write` takes any size; all else is the wrapped transport's own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._waiting: deque[memoryview] = deque()
        self.write_paused = False
        """Whether the wrapped transport asked to wait."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, or keep what there is no room for."""
        self._waiting.append(memoryview(data))
        self.flush()

    def flush(self) -> None:
        """Send pieces until there is no room."""
        while self._waiting and not self.write_paused:
            data = self._waiting.popleft()
            if len(data) > CHUNK_BYTES:
                self._waiting.appendleft(data[CHUNK_BYTES:])
            self._transport.write(data[:CHUNK_BYTES])

    @property
    def empty(self) -> bool:
        """Whether nothing waits here."""
        return not self._waiting

    def close(self) -> None:
        """Close when everything was sent."""
        while self._waiting:
            self._transport.write(self._waiting.popleft())
        self._transport.close()


def chunked_websocket_protocol() -> type[asyncio.Protocol]:
    """uvicorn's WebSocket protocol on a `ChunkedTransport`."""
    from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

    base: Any = AutoWebSocketsProtocol

    class ChunkedWebSocketProtocol(base):  # type: ignore[misc]
        """Hands its transport's wishes on to the pieces."""

        chunked_transport: ChunkedTransport

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.chunked_transport = ChunkedTransport(cast(asyncio.Transport, transport))  # uvloop's are none by name
            super().connection_made(self.chunked_transport)

        async def send(self, message: Any) -> None:
            """Large binary messages go out behind a head of our own: the protocol's writer would copy them twice."""
            data = message.get("bytes") if message["type"] == "websocket.send" else None
            if data is None or len(data) <= CHUNK_BYTES or not self._may_pass():
                await super().send(message)
                return
            await self.writable.wait()
            if not self._may_pass():
                await super().send(message)
                return
            self.chunked_transport.write(binary_frame_header(len(data)))
            self.chunked_transport.write(data)

        def _may_pass(self) -> bool:
            """Whether the WebSocket is open; False, too, where this uvicorn has another protocol."""
            open_now = getattr(self, "handshake_complete", False) and not getattr(self, "close_sent", True)
            return open_now and hasattr(self, "writable") and not self.chunked_transport.is_closing()

        def pause_writing(self) -> None:
            self.chunked_transport.write_paused = True
            super().pause_writing()

        def resume_writing(self) -> None:
            self.chunked_transport.write_paused = False
            self.chunked_transport.flush()
            if self.chunked_transport.empty and not self.chunked_transport.write_paused:
                super().resume_writing()

    return ChunkedWebSocketProtocol
