"""Large answers written piece by piece.

Role: the WebSocket protocol of the farm's server. Rule: what does not fit the socket's buffer waits here as a view and goes on when there
is room; asyncio before 3.12 would move all of it again after each write, which takes ten times as long as the sending. Non-goals: knowing
what is written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

PIECE_NBYTES = 128 * 1024


class PiecewiseTransport:
    """A transport whose `write` takes any size; all else is the wrapped transport's own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._waiting: deque[memoryview] = deque()
        self.full = False
        """Whether the wrapped transport asked to wait."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, or keep what there is no room for."""
        self._waiting.append(memoryview(data))
        self.go_on()

    def go_on(self) -> None:
        """Send pieces until there is no room."""
        while self._waiting and not self.full:
            data = self._waiting.popleft()
            if len(data) > PIECE_NBYTES:
                self._waiting.appendleft(data[PIECE_NBYTES:])
            self._transport.write(data[:PIECE_NBYTES])

    @property
    def empty(self) -> bool:
        """Whether nothing waits here."""
        return not self._waiting

    def close(self) -> None:
        """Close when everything was sent."""
        while self._waiting:
            self._transport.write(self._waiting.popleft())
        self._transport.close()


def piecewise_protocol() -> type[asyncio.Protocol]:
    """uvicorn's WebSocket protocol on a `PiecewiseTransport`."""
    from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

    base: Any = AutoWebSocketsProtocol

    class PiecewiseProtocol(base):  # type: ignore[misc]
        """Hands its transport's wishes on to the pieces."""

        pieces: PiecewiseTransport

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.pieces = PiecewiseTransport(cast(asyncio.Transport, transport))  # uvloop's are none by name
            super().connection_made(self.pieces)

        def pause_writing(self) -> None:
            self.pieces.full = True
            super().pause_writing()

        def resume_writing(self) -> None:
            self.pieces.full = False
            self.pieces.go_on()
            if self.pieces.empty and not self.pieces.full:
                super().resume_writing()

    return PiecewiseProtocol
