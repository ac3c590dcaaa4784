"""Connections to one desktop's guest agent, over sockets that the provider dials.

Role: HTTP requests (httpcore over a dialled socket) and the binary WebSocket channel. Rule: every wait is bounded; whatever breaks on
the way is a `GuestUnreachable`, and nothing is sent twice. Before a snapshot `quiet` lets calls end, closes every connection and
holds new calls back; after a reset the client of the former desktop is closed and a new one is made.
Non-goals: judging why a desktop does not answer (`guest.access`), knowing leases.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpcore

from dart_server.providers import guest_control
from dart_server.providers.base import DesktopGone, DialPort
from dart_server.wire.messages import HandshakeRefused, MessageSocket

Dial = Callable[[DialPort], Awaitable[socket.socket]]
DIAL_TIMEOUT_S = 10.0
QUIET_TIMEOUT_S = 30.0
MESSAGE_LIMIT = 256 * 1024**2
"""Bytes of one whole answer, and of one frame where the screen's size is not known: more than a raw 8K screen."""
FRAME_ROOM, PIXEL_NBYTES = 16 * 1024**2, 4
"""Bytes of a frame beside its pixels, and of one pixel."""
DRAFT, HEADER_LENGTH_NBYTES = b'{"draft": true', 4
_HOST = b"guest"


class GuestUnreachable(Exception):
    """The agent did not answer: refused, cut off, or too late. `timed_out` tells the last from the others."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class GuestTooLarge(Exception):
    """The agent's answer is larger than the farm passes on."""


class GuestBusy(Exception):
    """Calls into the desktop did not end in time for a snapshot."""


@dataclass(frozen=True, slots=True)
class GuestReply:
    """A whole HTTP answer of the agent. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class GuestStream:
    """An HTTP answer of the agent whose body is still on its way."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


class CallGate:
    """Many calls, or one quiet time: calls wait while it is quiet, and it gets quiet when the last call has ended."""

    def __init__(self) -> None:
        self._calls = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        await self._open.wait()
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0:
                self._idle.set()

    @asynccontextmanager
    async def quiesce(self, timeout_s: float) -> AsyncIterator[None]:
        self._open.clear()
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                raise GuestBusy(f"calls into the desktop did not end within {timeout_s:g} s") from None
            yield
        finally:
            self._open.set()


class GuestClient:
    """All connections of the farm to one incarnation of one desktop. screen: its (width, height) in pixels, which bounds its frames."""

    def __init__(self, dial: Dial, *, screen: tuple[int, int] | None = None) -> None:
        self._dial = dial
        self._gate = CallGate()
        self._frame_limit = MESSAGE_LIMIT if screen is None else frame_limit(screen)
        self._channels: set[GuestChannel] = set()
        self._connections: httpcore.AsyncConnectionPool | None = None

    @property
    def _pool(self) -> httpcore.AsyncConnectionPool:
        """Made when it is first needed: most desktops of a busy farm are only probed."""
        if self._connections is None:
            self._connections = self._new_pool()
        return self._connections

    def _new_pool(self) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            max_connections=16,
            max_keepalive_connections=4,
            keepalive_expiry=60.0,
            network_backend=_DialBackend(self._dial),
        )

    async def request(
        self,
        method: str,
        target: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        reserve_bytes: Callable[[int], None] | None = None,
    ) -> GuestReply:
        """One request with its whole answer.

        `target` is the path with its query, already quoted; `reserve_bytes` is told of bytes before they are kept. Raises
        `GuestTooLarge`, and what `reserve_bytes` raises.
        """
        async with self.stream(method, target, timeout_s=timeout_s, headers=headers, content=content) as reply:
            received = bytearray()
            async for chunk in reply.body:
                if reserve_bytes is not None:
                    reserve_bytes(len(chunk))
                received += chunk
                if len(received) > MESSAGE_LIMIT:
                    raise GuestTooLarge(f"the answer is larger than {MESSAGE_LIMIT} bytes")
            return GuestReply(reply.status, reply.headers, bytes(received))

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        target: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[GuestStream]:
        """One request whose answer's body is read by the caller; `timeout_s` bounds each wait for bytes."""
        url = httpcore.URL(scheme=b"http", host=_HOST, port=None, target=target.encode("ascii"))
        sent = [(b"host", _HOST), *((k.encode(), v.encode()) for k, v in (headers or {}).items())]
        timeouts = {"connect": DIAL_TIMEOUT_S, "read": timeout_s, "write": timeout_s, "pool": timeout_s}
        async with self._gate.call():
            with _translated():
                async with self._pool.stream(
                    method, url, headers=sent, content=content, extensions={"timeout": timeouts}
                ) as got:
                    names = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in got.headers}
                    yield GuestStream(got.status, names, got.aiter_stream())

    async def health(self, timeout_s: float) -> Mapping[str, Any]:
        """The agent's own view of the session, over a connection of its own that costs little."""
        async with self._gate.call():
            try:
                return await guest_control.health(lambda: self._dial("control"), timeout_s)
            except (guest_control.AgentTimeout, DesktopGone) as error:
                raise GuestUnreachable(f"no answer from the guest agent: {error}") from error

    def channel(self, *, early: bool = False) -> GuestChannel:
        """A stepping channel of its own; it dials when it is first used. `early`: pictures may come ahead of the answers."""
        channel = GuestChannel(self._dial, self._gate, early=early, frame_limit_nbytes=self._frame_limit)
        self._channels.add(channel)
        return channel

    async def close_channel(self, channel: GuestChannel) -> None:
        self._channels.discard(channel)
        await channel.close_connections()

    @asynccontextmanager
    async def quiesce(self) -> AsyncIterator[None]:
        """No connection into the desktop exists inside this block. Raises `GuestBusy`."""
        async with self._gate.quiesce(QUIET_TIMEOUT_S):
            await self.close_connections()
            yield

    async def close_connections(self) -> None:
        """Close every connection; the next call dials anew."""
        pool, self._connections = self._connections, None
        if pool is not None:
            await pool.aclose()
        if self._channels:
            await asyncio.gather(*(channel.close_connections() for channel in self._channels))


def frame_limit(screen: tuple[int, int]) -> int:
    """Bytes that a frame of a screen (width, height) in pixels can have; an agent that sends more is not ours."""
    width, height = screen
    return FRAME_ROOM + PIXEL_NBYTES * width * height


class GuestChannel:
    """One WebSocket to the agent's `/v1/channel`: a text request in, a binary frame out, one at a time.

    On an `early` one a draft may come before the frame: its header begins with `DRAFT`, its payload is the picture of the frame, which
    then says `early` and has none, unless the screen changed meanwhile.
    """

    def __init__(
        self, dial: Dial, gate: CallGate, *, early: bool = False, frame_limit_nbytes: int = MESSAGE_LIMIT
    ) -> None:
        self._dial = dial
        self._gate = gate
        self._early = early
        self._frame_limit = frame_limit_nbytes
        self._socket: MessageSocket | None = None

    async def step(
        self, request: str, timeout_s: float, on_draft: Callable[[bytearray], Awaitable[None]] | None = None
    ) -> bytearray:
        """The agent's frame, header and payload as they came; drafts before it go to `on_draft`."""
        async with self._gate.call():
            try:
                connection = await self._connected()
                connection.send(request)
                while True:
                    async with asyncio.timeout(timeout_s):
                        frame = await connection.receive()
                    if not frame.startswith(DRAFT, HEADER_LENGTH_NBYTES):
                        break
                    if on_draft is not None:
                        await on_draft(frame)
            except TimeoutError:
                await self.close_connections()
                raise GuestUnreachable(
                    f"the guest agent did not answer a step within {timeout_s:g} s", timed_out=True
                ) from None
            except (HandshakeRefused, OSError, DesktopGone) as error:
                await self.close_connections()
                raise GuestUnreachable(f"the channel to the guest agent broke: {error}") from error
            except asyncio.CancelledError:
                await self.close_connections()
                raise
            return frame

    async def _connected(self) -> MessageSocket:
        if self._socket is not None and not self._socket.closed:
            return self._socket
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            dialled = await self._dial("control")
        dialled.setblocking(False)
        self._socket = await MessageSocket.open(
            partial(asyncio.get_running_loop().create_connection, sock=dialled),
            "guest",
            "/v1/channel?early=1" if self._early else "/v1/channel",
            timeout_s=DIAL_TIMEOUT_S,
            message_limit_nbytes=self._frame_limit,
        )
        return self._socket

    async def close_connections(self) -> None:
        """Close the connection, if there is one. Never raises."""
        connection, self._socket = self._socket, None
        if connection is not None:
            await connection.aclose()


class _translated:
    """Turns what a transport raises into `GuestUnreachable`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        match error:
            case httpcore.TimeoutException() | TimeoutError():
                raise GuestUnreachable("the guest agent did not answer in time", timed_out=True) from error
            case httpcore.NetworkError() | httpcore.ProtocolError() | OSError() | DesktopGone():
                raise GuestUnreachable(f"no answer from the guest agent: {error or type(error).__name__}") from error


class _DialBackend(httpcore.AsyncNetworkBackend):
    """Where httpcore would connect to a host, the provider dials the desktop."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        async with asyncio.timeout(timeout):
            dialled = await self._dial("control")
        dialled.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=dialled, limit=2**20)
        return _DialStream(reader, writer)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _DialStream(httpcore.AsyncNetworkStream):
    """A dialled socket as httpcore wants to see it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        async with asyncio.timeout(timeout):
            return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._writer.write(buffer)
        async with asyncio.timeout(timeout):
            await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def get_extra_info(self, info: str) -> Any:
        return self._reader.at_eof() if info == "is_readable" else None
