"""Connections to one desktop's guest agent, over sockets that the provider dials.

Role: HTTP requests and the binary WebSocket channel. Rule: every answer has a limit (`guest.limits`) and a deadline for all of it; whatever
breaks on the way is a `GuestUnreachable`, what the protocol does not know a `GuestMalformed`, and nothing is sent twice. Before a snapshot
`quiet` lets calls end, closes every connection and holds new calls back; after a reset the client of the former desktop is closed and a new
one is made. Non-goals: judging why a desktop does not answer (`guest.access`), knowing leases.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from dart_server.guest.limits import AnswerLimit, frame_limit
from dart_server.providers import guest_control
from dart_server.providers.base import DesktopGone, DialPort
from dart_server.providers.guest_http import (
    STREAM_LIMIT_NBYTES,
    AnswerTooLarge,
    HttpAnswer,
    read_answer,
    request_head,
)
from dart_server.wire.guest_answers import MalformedAnswer
from dart_server.wire.messages import HandshakeRefused, MessageSocket, SocketClosed

Dial = Callable[[DialPort], Awaitable[socket.socket]]
DIAL_TIMEOUT_S = 10.0
QUIET_TIMEOUT_S = 30.0
MAX_CONNECTIONS, MAX_IDLE_CONNECTIONS = 16, 4
DRAFT, HEADER_LENGTH_NBYTES = b'{"draft": true', 4


class GuestUnreachable(Exception):
    """The agent did not answer: refused, cut off, or too late. `timed_out` tells the last from the others."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class GuestMalformed(GuestUnreachable):
    """What answers is not the agent: it sent what the protocol does not know, or more than it ever sends."""


class GuestTooLarge(GuestMalformed):
    """The answer is larger than is read of its kind."""


class GuestBusy(Exception):
    """Calls into the desktop did not end in time for a snapshot."""


@dataclass(frozen=True, slots=True)
class GuestReply:
    """A whole HTTP answer of the agent. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


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
        self.frame_limit: AnswerLimit = frame_limit(screen)
        self._channels: set[GuestChannel] = set()
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def request(
        self,
        method: str,
        target: str,
        limit: AnswerLimit,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        reserve_bytes: Callable[[int], None] | None = None,
    ) -> GuestReply:
        """One request with its whole answer.

        Args:
            method: HTTP method.
            target: The path with its query, already quoted.
            limit: What is read of the answer.
            timeout_s: Seconds until all of the answer is there.
            headers: Header fields of the request.
            content: Body of the request.
            reserve_bytes: Is told of bytes before they are kept; what it raises is raised here.

        Returns:
            The answer.

        Raises:
            GuestUnreachable: If there is no answer, or not in time.
            GuestMalformed: If the answer is not HTTP; `GuestTooLarge` if it is beyond the limit.
        """
        length = len(content) if content is not None else None if method == "GET" else 0
        sent = {name: value for name, value in (headers or {}).items() if name.lower() != "content-length"}
        request = request_head(method, target, sent, length) + (content or b"")
        async with self._gate.call():
            with _translated():
                async with asyncio.timeout(timeout_s), self._slots:
                    answer = await self._exchange(request, limit.nbytes, reserve_bytes)
        return GuestReply(answer.status, answer.headers, answer.content)

    async def _exchange(
        self, request: bytes, limit_nbytes: int, reserve_bytes: Callable[[int], None] | None
    ) -> HttpAnswer:
        connection = await self._connection()
        try:
            connection.writer.write(request)
            with suppress(ConnectionError):  # who refuses a body answers before it has read all of it
                await connection.writer.drain()
            answer = await read_answer(connection.reader, limit_nbytes, reserve_bytes)
        except BaseException:  # cancelled, too, nobody knows what comes next on it; raised again
            connection.writer.transport.abort()
            raise
        if answer.reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.writer.close()
        return answer

    async def _connection(self) -> _Connection:
        """An idle connection, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.writer.transport.abort()
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            dialled = await self._dial("control")
            dialled.setblocking(False)
            return _Connection(*await asyncio.open_connection(sock=dialled, limit=STREAM_LIMIT_NBYTES))

    async def health(self, timeout_s: float) -> Mapping[str, Any]:
        """The agent's own view of the session, over a connection of its own that costs little."""
        async with self._gate.call():
            try:
                return await guest_control.health(lambda: self._dial("control"), timeout_s)
            except (guest_control.AgentTimeout, DesktopGone) as error:
                raise GuestUnreachable(f"no answer from the guest agent: {error}") from error

    @property
    def open_channels(self) -> int:
        """How many stepping channels there are."""
        return len(self._channels)

    def channel(self, *, early: bool = False) -> GuestChannel:
        """A stepping channel of its own; it dials when it is first used. `early`: pictures may come ahead of the answers."""
        channel = GuestChannel(self._dial, self._gate, early=early, frame_limit_nbytes=self.frame_limit.nbytes)
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
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.writer.close()
        if self._channels:
            await asyncio.gather(*(channel.close_connections() for channel in self._channels))


class GuestChannel:
    """One WebSocket to the agent's `/v1/channel`: a text request in, a binary frame out, one at a time.

    On an `early` one a draft may come before the frame: its header begins with `DRAFT`, its payload is the picture of the frame, which
    then says `early` and has none, unless the screen changed meanwhile.
    """

    def __init__(self, dial: Dial, gate: CallGate, *, early: bool = False, frame_limit_nbytes: int) -> None:
        self._dial = dial
        self._gate = gate
        self._early = early
        self._frame_limit = frame_limit_nbytes
        self._socket: MessageSocket | None = None

    async def step(
        self, request: str, timeout_s: float, on_draft: Callable[[bytearray], Awaitable[None]] | None = None
    ) -> bytearray:
        """The agent's frame, header and payload as they came within `timeout_s`; a draft before it goes to `on_draft`."""
        async with self._gate.call():
            try:
                connection = await self._connected()
                connection.send(request)
                deadline_s = asyncio.get_running_loop().time() + timeout_s
                async with asyncio.timeout_at(deadline_s):
                    frame = await connection.receive()
                if frame.startswith(DRAFT, HEADER_LENGTH_NBYTES):
                    passing_s = asyncio.get_running_loop().time()
                    if on_draft is not None:
                        await on_draft(frame)
                    passed_s = asyncio.get_running_loop().time()
                    async with asyncio.timeout_at(deadline_s + passed_s - passing_s):
                        frame = await connection.receive()
            except TimeoutError:
                await self.close_connections()
                raise GuestUnreachable(
                    f"the guest agent did not answer a step within {timeout_s:g} s", timed_out=True
                ) from None
            except (HandshakeRefused, OSError, DesktopGone) as error:
                await self.close_connections()
                malformed = isinstance(error, SocketClosed) and error.malformed
                kind = GuestMalformed if malformed else GuestUnreachable
                raise kind(f"the channel to the guest agent broke: {error}") from error
            except (
                BaseException
            ):  # a draft that was refused, too, leaves a channel that nobody understands; raised again
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


@dataclass(frozen=True, slots=True)
class _Connection:
    """An HTTP connection that is kept."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def usable(self) -> bool:
        """Whether it can be asked again."""
        return not (self.reader.at_eof() or self.reader.exception() or self.writer.is_closing())


class _translated:
    """Turns what a connection raises into `GuestUnreachable` and its kinds."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        match error:
            case AnswerTooLarge():
                raise GuestTooLarge(str(error)) from error
            case MalformedAnswer():
                raise GuestMalformed(f"the guest agent sent a broken answer: {error}") from error
            case TimeoutError():
                raise GuestUnreachable("the guest agent did not answer in time", timed_out=True) from error
            case OSError() | EOFError() | DesktopGone():
                raise GuestUnreachable(f"no answer from the guest agent: {error or type(error).__name__}") from error
