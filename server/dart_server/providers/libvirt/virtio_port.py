"""Many connections over one virtio port of a virtual machine: the host's end.

Role: `open` gives a connected socket to the guest agent (`control`), to its socket for OSWorld's paths (`osworld`), or to a loopback port
inside (`tcp:N`). The frames are those of `vm_images/guest/protocol.md`.
Rule: one connection to the hypervisor's Unix socket for as long as the machine lives. `handshake` ends every connection at both ends; it
comes first, and after every restore. Data is sent against credit in both directions, so that no connection holds up another. What comes
back is untrusted.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from contextlib import suppress
from pathlib import Path

HEAD = struct.Struct(">BxHI")
HELLO, OPEN, OPENED, REFUSED, DATA, CREDIT, END, CLOSE = range(1, 9)
CHUNK_BYTES = 32 * 1024 - HEAD.size
WINDOW_BYTES = 1 << 20
NUMBERS = 65536
HANDSHAKE_TIMEOUT_S = 2.0
RECONNECT_DELAY_S = 0.4
"""How long the hypervisor's socket stays closed, so that the guest notices and forgets half a frame."""


class VirtioPortTimeout(OSError):
    """The guest's end does not answer."""


class _Channel:
    """One connection. The caller has the other end of `local`."""

    def __init__(self, port: VirtioPort, number: int, local: socket.socket) -> None:
        self.port, self.number, self.local = port, number, local
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.credit = WINDOW_BYTES
        self.unacknowledged = 0
        self.more = asyncio.Event()
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []
        self.ended = 0

    def start(self) -> None:
        self.tasks = [asyncio.create_task(work) for work in (self._to_guest(), self._from_guest())]

    async def _to_guest(self) -> None:
        """The caller's bytes to the guest."""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self.local, CHUNK_BYTES):
                while self.credit < len(data):
                    self.more.clear()
                    await self.more.wait()
                self.credit -= len(data)
                await self.port.send(DATA, self.number, data)
            await self.port.send(END, self.number)
        except OSError:
            await self.port.drop(self.number)
            return
        await self._direction_ended()

    async def _from_guest(self) -> None:
        """The guest's bytes to the caller."""
        loop = asyncio.get_running_loop()
        try:
            while (data := await self.inbox.get()) is not None:
                await loop.sock_sendall(self.local, data)
                self.unacknowledged -= len(data)
                await self.port.send(CREDIT, self.number, len(data).to_bytes(4, "big"))
            self.local.shutdown(socket.SHUT_WR)
        except OSError:
            await self.port.drop(self.number)
            return
        await self._direction_ended()

    async def _direction_ended(self) -> None:
        self.ended += 1
        if self.ended == 2:
            self.port.forget(self.number)

    def close(self) -> None:
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        if not self.opened.done():
            self.opened.set_exception(VirtioPortTimeout("the guest has ended the connection"))
            self.opened.exception()
        with suppress(OSError):
            self.local.shutdown(socket.SHUT_RDWR)
        self.local.close()


class VirtioPort:
    """The host's end of one machine's port. `handshake` before the first `open`; `close` at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._channels: dict[int, _Channel] = {}
        self._next = 0
        self._nonce = b""
        self._answered = asyncio.Event()
        self._writing = asyncio.Lock()
        self._greeting = asyncio.Lock()
        self._connected = False

    async def handshake(self, timeout_s: float) -> None:
        """Make both ends forget every connection; true afterwards that the guest listens. Raises `VirtioPortTimeout`, `ConnectionError`."""
        async with self._greeting:
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            while True:
                left_s = deadline_s - asyncio.get_running_loop().time()
                try:
                    await self._hello(max(0.05, min(HANDSHAKE_TIMEOUT_S, left_s)))
                    self._connected = True
                    return
                except VirtioPortTimeout:
                    await self._disconnect()
                    if asyncio.get_running_loop().time() >= deadline_s:
                        raise
                    await asyncio.sleep(RECONNECT_DELAY_S)

    async def open(self, target: str, timeout_s: float) -> socket.socket:
        """A connected, non-blocking socket. Raises `ConnectionRefusedError` when nothing listens there, `VirtioPortTimeout`, other
        `OSError`."""
        if not self._connected:
            await self.handshake(timeout_s)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        channel = _Channel(self, self._free_number(), ours)
        self._channels[channel.number] = channel
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(OPEN, channel.number, target.encode("ascii"))
                await channel.opened
        except BaseException as error:
            theirs.close()
            self.forget(channel.number)
            if isinstance(error, TimeoutError):
                self._connected = False
                raise VirtioPortTimeout("the guest does not answer on its port") from error
            raise
        return theirs

    def close_channels(self) -> None:
        """Shut every connection on this side; `handshake` tells the guest."""
        for number in list(self._channels):
            self.forget(number)

    async def close(self) -> None:
        """Let the machine go."""
        await self._disconnect()

    async def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """One frame; waits while the machine does not read."""
        async with self._writing:
            if self._writer is None:
                raise VirtioPortTimeout("the machine's port is not connected")
            self._writer.write(HEAD.pack(kind, number, len(payload)) + payload)
            await self._writer.drain()

    async def drop(self, number: int) -> None:
        """End a connection whose local end broke."""
        with suppress(OSError):
            await self.send(CLOSE, number)
        self.forget(number)

    def forget(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.close()

    def _free_number(self) -> int:
        for _ in range(NUMBERS):
            self._next = self._next % (NUMBERS - 1) + 1
            if self._next not in self._channels:
                return self._next
        raise VirtioPortTimeout("too many connections into one machine")

    async def _hello(self, timeout_s: float) -> None:
        self.close_channels()
        if self._reading is not None and self._reading.done():
            await self._disconnect()
        if self._writer is None:
            reader, self._writer = await asyncio.open_unix_connection(str(self._path), limit=4 * CHUNK_BYTES)
            self._reading = asyncio.create_task(self._read(reader))
        self._nonce = secrets.token_bytes(16)
        self._answered.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(HELLO, 0, self._nonce)
                await self._answered.wait()
        except (TimeoutError, ConnectionError) as error:
            raise VirtioPortTimeout("the guest does not answer on its port") from error

    async def _disconnect(self) -> None:
        self._connected = False
        self.close_channels()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Take frames until the machine ends or speaks nonsense; what was said before an answered greeting is passed over."""
        try:
            while True:
                kind, number, length = HEAD.unpack(await reader.readexactly(HEAD.size))
                if not HELLO <= kind <= CLOSE or length > CHUNK_BYTES:
                    break
                self._handle_frame(kind, number, await reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._connected = False
            self.close_channels()

    def _handle_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == HELLO:
            if payload == self._nonce:
                self._answered.set()
            else:
                # The agent was started again: it knows none of these connections.
                self._connected = False
                self.close_channels()
            return
        channel = self._channels.get(number)
        if channel is None or not self._answered.is_set():
            return
        if kind == OPENED and not channel.opened.done():
            channel.opened.set_result(None)
            channel.start()
        elif kind == REFUSED and not channel.opened.done():
            channel.opened.set_exception(ConnectionRefusedError(payload.decode("utf-8", "replace")[:200]))
            self.forget(number)
        elif kind == DATA:
            channel.unacknowledged += len(payload)
            if channel.unacknowledged > WINDOW_BYTES:
                self.forget(number)
            else:
                channel.inbox.put_nowait(payload)
        elif kind == CREDIT:
            channel.credit = min(WINDOW_BYTES, channel.credit + int.from_bytes(payload[:4], "big"))
            channel.more.set()
        elif kind == END:
            channel.inbox.put_nowait(None)
        elif kind == CLOSE:
            self.forget(number)
