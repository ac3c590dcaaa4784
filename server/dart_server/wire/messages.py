"""The calling end of a WebSocket whose answers are large: each message is read straight into the memory that is handed out.

Role: `MessageSocket`, for the client's channel to the farm and the farm's to the guest agent: small texts out, messages of any size in.
Rule: RFC 6455 without extensions; whatever breaks ends in `SocketClosed`. A message has a limit however many frames it comes in, and so
have the frames that carry next to nothing: each costs time. A general client copies a screenshot several times and takes ten times as long.
Non-goals: sending large messages, compression, the serving end.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
HEAD_NBYTES = 16 * 1024
"""Room for a handshake's answer, for frame headers and for the begin of a message."""
REFUSAL_LIMIT_NBYTES = 1024**2
UNREAD_LIMIT = 4
"""Messages that wait to be received before the peer is made to wait; together they are not larger than one may be."""
CONTROL_LIMIT_NBYTES = 125
"""Payload of a control frame (RFC 6455, section 5.5)."""
UNSENT_LIMIT_NBYTES = 64 * 1024
"""Of a peer that lets more wait no ping is answered."""
FRAGMENT_LIMIT, FRAGMENT_NBYTES = 256, 1024
"""Frames that a message may come in: this many, and one more for each so many bytes."""
CONTROL_LIMIT, CONTROL_PERIOD_S = 256, 10.0
"""Control frames that are answered in a period of this length."""
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, PROTOCOL_ERROR, TOO_LARGE = 1000, 1002, 1009
Connect = Callable[[Callable[[], asyncio.BaseProtocol]], Awaitable[tuple[asyncio.BaseTransport, Any]]]


class HandshakeRefused(Exception):
    """The peer answered the handshake with an HTTP status of its own."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the WebSocket was refused with status {status}")
        self.status = status
        self.body = body


class SocketClosed(ConnectionError):
    """The connection is over: closed by the peer (`code`, `reason`), broken, or closed here. `malformed`: for what the peer had sent."""

    def __init__(self, reason: str, code: int = 1006, *, malformed: bool = False) -> None:
        super().__init__(f"{code} {reason}".strip())
        self.code = code
        self.reason = reason
        self.malformed = malformed


class MessageSocket(asyncio.BufferedProtocol):
    """One connection. Made by `open`; `send` and `receive` may be used by different tasks."""

    def __init__(self, message_limit_nbytes: int) -> None:
        self._limit = message_limit_nbytes
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(HEAD_NBYTES)
        self._have = 0
        """Bytes of `_head` that were read and not yet understood."""
        self._body: bytearray | None = None
        self._filled = 0
        self._opcode = 0
        self._final = True
        self._message: bytearray | None = None
        """What was read of a message in several frames."""
        self._fragments = 0
        self._controls = 0
        self._controls_since_s = 0.0
        self._accept = b""
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refusal: tuple[int, int] | None = None
        """Status and length of a refusal whose body is being read."""
        self._messages: deque[bytearray] = deque()
        self._arrived = asyncio.Event()
        self._paused = False
        self._over: SocketClosed | None = None
        self._gone = asyncio.Event()

    @classmethod
    async def open(
        cls,
        connect: Connect,
        host: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        message_limit_nbytes: int = 2**40,
    ) -> MessageSocket:
        """Connect and shake hands.

        connect: makes the transport for a protocol factory, as `loop.create_connection` does. Raises `HandshakeRefused`, `SocketClosed`,
        `OSError` or `TimeoutError`.
        """
        async with asyncio.timeout(timeout_s):
            _, socket = await connect(lambda: cls(message_limit_nbytes))
            assert isinstance(socket, cls)
            try:
                await socket._shake_hands(host, target, headers or {})
            except BaseException:  # cancelled, too, the connection is dropped; raised again
                socket._abort()
                raise
        return socket

    @property
    def closed(self) -> bool:
        """True once nothing can be sent any more."""
        return self._over is not None

    def send(self, text: str) -> None:
        """Send one text message. Raises `SocketClosed`."""
        self._check()
        self._write(TEXT, text.encode())

    async def receive(self) -> bytearray:
        """The next message, text as UTF-8; its memory is the caller's. Raises `SocketClosed`."""
        while not self._messages:
            self._check()
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return message

    async def aclose(self, timeout_s: float = 1.0) -> None:
        """Say good-bye, wait a moment for the peer's, drop the connection. Idempotent, never raises."""
        if self._over is None:
            self._write(CLOSE, NORMAL.to_bytes(2, "big"))
            self._end(SocketClosed("closed at this end", NORMAL))
        if self._transport is not None and not self._gone.is_set():
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._gone.wait()
            except TimeoutError:
                self._abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio calls this when the connection is open."""
        self._transport = cast(asyncio.Transport, transport)  # those of other event loops are none by name

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio calls this when the connection has ended."""
        self._gone.set()
        self._end(SocketClosed(str(exc or "the peer hung up")))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that the next bytes are read into."""
        if self._body is not None:
            return memoryview(self._body)[self._filled :]
        return memoryview(self._head)[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio calls this after `nbytes` bytes were read into the buffer."""
        if self._body is not None:
            self._filled += nbytes
            if self._filled == len(self._body):
                self._frame_read()
            return
        if self._over is not None:
            return
        self._have += nbytes
        if not self._answer.done() and not self._read_answer():
            return
        while self._body is None and self._over is None and self._read_header():
            pass

    # The handshake.

    async def _shake_hands(self, host: str, target: str, headers: Mapping[str, str]) -> None:
        key = base64.b64encode(os.urandom(16))
        self._accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())
        fields = {
            "Host": host,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key.decode(),
            "Sec-WebSocket-Version": "13",
            **headers,
        }
        lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header of a WebSocket handshake must be one line")
        assert self._transport is not None
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        await self._answer

    def _read_answer(self) -> bool:
        """Understand the answer to the handshake; True once the connection is open."""
        if self._refusal is None:
            end = self._head.find(b"\r\n\r\n", 0, self._have)
            if end < 0:
                if self._have == len(self._head):
                    self._break("the answer to the handshake is too long", PROTOCOL_ERROR)
                return False
            lines = self._head[:end].decode("latin-1").split("\r\n")
            self._consume(end + 4)
            words = lines[0].split(" ", 2)
            named = (line.partition(":") for line in lines[1:])
            fields = {name.strip().lower(): value.strip() for name, _, value in named}
            if len(words) < 2 or not words[1].isdigit():
                self._break("what answers is no HTTP server", PROTOCOL_ERROR)
                return False
            if words[1] == "101":
                if fields.get("sec-websocket-accept", "").encode() != self._accept:
                    self._break("what answers is no WebSocket server", PROTOCOL_ERROR)
                    return False
                self._answer.set_result(None)
                return True
            length = fields.get("content-length", "0")
            self._refusal = (int(words[1]), min(int(length) if length.isdigit() else 0, REFUSAL_LIMIT_NBYTES))
            # A new one: asyncio still holds the memory that it read into.
            self._head = self._head + bytes(max(0, self._refusal[1] - len(self._head)))
        status, length_nbytes = self._refusal
        if self._have >= length_nbytes:
            self._answer.set_exception(HandshakeRefused(status, bytes(self._head[:length_nbytes])))
            self._abort()
        return False

    # Frames.

    def _read_header(self) -> bool:
        """Understand one frame's header, and take what was already read of its body; False when more is needed."""
        if self._have < 2:
            return False
        first, second = self._head[0], self._head[1]
        length, begin = second & 0x7F, 2
        if length >= 126:
            begin = 4 if length == 126 else 10
            if self._have < begin:
                return False
            length = int.from_bytes(self._head[2:begin], "big")
        self._final, self._opcode = bool(first & 0x80), first & 0x0F
        if first & 0x70 or second & 0x80 or not self._may_follow(length):
            self._break("the peer broke the protocol", PROTOCOL_ERROR)
            return False
        total = length + len(self._message or b"")
        if self._opcode < CLOSE and total > self._limit:
            self._break(f"a message of {total} bytes is more than is read here", TOO_LARGE)
            return False
        if self._floods(total):
            self._break("the peer sends frames that carry next to nothing", PROTOCOL_ERROR)
            return False
        self._body = bytearray(length)
        self._filled = min(length, self._have - begin)
        self._body[: self._filled] = memoryview(self._head)[begin : begin + self._filled]
        self._consume(begin + self._filled)
        if self._filled == length:
            self._frame_read()
        return True

    def _may_follow(self, length: int) -> bool:
        """Whether RFC 6455 lets this frame come now (sections 5.4 and 5.5)."""
        if self._opcode in (CLOSE, PING, PONG):
            return self._final and length <= CONTROL_LIMIT_NBYTES
        if self._opcode in (TEXT, BINARY):
            return self._message is None
        return self._opcode == CONTINUATION and self._message is not None

    def _floods(self, total: int) -> bool:
        """Count this frame of a message that has `total` bytes with it, or this control frame."""
        if self._opcode < CLOSE:
            self._fragments = 1 if self._message is None else self._fragments + 1
            return self._fragments > FRAGMENT_LIMIT + total // FRAGMENT_NBYTES
        now_s = asyncio.get_running_loop().time()
        if now_s - self._controls_since_s > CONTROL_PERIOD_S:
            self._controls, self._controls_since_s = 0, now_s
        self._controls += 1
        return self._controls > CONTROL_LIMIT

    def _frame_read(self) -> None:
        """A whole frame is there."""
        body, self._body, self._filled = self._body, None, 0
        assert body is not None
        match self._opcode:
            case _ if self._opcode < CLOSE:
                message = body if self._message is None else self._message
                if message is not body:
                    message += body
                self._message = None if self._final else message
                if self._final:
                    self._deliver(message)
            case _ if self._opcode == PING:
                if self._transport is not None and self._transport.get_write_buffer_size() <= UNSENT_LIMIT_NBYTES:
                    self._write(PONG, bytes(body))
            case _ if self._opcode == CLOSE:
                code = int.from_bytes(body[:2], "big") if len(body) >= 2 else 1005
                if self._over is None:
                    self._write(CLOSE, bytes(body[:2]))
                self._end(SocketClosed(bytes(body[2:]).decode("utf-8", "replace"), code))
                if self._transport is not None:
                    self._transport.close()

    def _deliver(self, message: bytearray) -> None:
        if self._over is not None:
            return
        self._messages.append(message)
        self._arrived.set()
        full = len(self._messages) >= UNREAD_LIMIT or sum(map(len, self._messages)) * 2 > self._limit
        if full and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _consume(self, nbytes: int) -> None:
        rest = self._have - nbytes
        self._head[:rest] = self._head[nbytes : self._have]
        self._have = rest

    def _write(self, opcode: int, payload: bytes) -> None:
        """One masked frame."""
        if self._transport is None or self._transport.is_closing():
            return
        length = len(payload)
        if length < 126:
            head = bytes((0x80 | opcode, 0x80 | length))
        elif length < 65536:
            head = bytes((0x80 | opcode, 0x80 | 126)) + length.to_bytes(2, "big")
        else:
            head = bytes((0x80 | opcode, 0x80 | 127)) + length.to_bytes(8, "big")
        mask = os.urandom(4)
        spread = int.from_bytes((mask * (length // 4 + 1))[:length], "big")
        masked = (int.from_bytes(payload, "big") ^ spread).to_bytes(length, "big")
        self._transport.write(b"".join((head, mask, masked)))

    # The end.

    def _check(self) -> None:
        if self._over is not None:
            raise SocketClosed(self._over.reason, self._over.code, malformed=self._over.malformed)

    def _break(self, reason: str, code: int) -> None:
        self._end(SocketClosed(reason, code, malformed=True))
        self._abort()

    def _end(self, closed: SocketClosed) -> None:
        if self._over is None:
            self._over = closed
        if not self._answer.done():
            self._answer.set_exception(SocketClosed(closed.reason, closed.code, malformed=closed.malformed))
        self._arrived.set()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
