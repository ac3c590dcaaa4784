"""Many connections over one virtio port: how a virtual machine's host reaches the agent.

Role: the guest's end. Each connection that the host opens leads to the agent itself (`control`), to its door for OSWorld's paths
(`osworld`), or to a TCP port of the machine's loopback (`tcp:N`).
Rule: only the host opens connections. Nothing listens for them inside, and the port has one opener, the agent, so no process of the
desktop can call. A hello of the host ends every connection: it comes when the host dials anew and after every restore.
Frames: type (1 byte), 0, channel (2), length (4, big-endian), payload. Data is sent against credit, so no channel holds up another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

HEAD = struct.Struct(">BxHI")
HELLO, OPEN, OPENED, REFUSED, DATA, CREDIT, END, CLOSE = range(1, 9)
CHUNK_BYTES = 32 * 1024 - HEAD.size
"""One frame is one write: the driver takes 32 KiB at a time."""
WINDOW_BYTES = 1 << 20
READ_BYTES = 64 * 1024
ABSENT_S = 0.1
"""How often a port that the host has not opened is looked at."""

Admit = Callable[[socket.socket, str], Awaitable[None]]
"""Hands a connected socket to what `control` or `osworld` names; raises OSError for anything else."""


class BrokenFrames(Exception):
    """What came is no frame: begin again."""


class Channel:
    """One connection: a local socket, what the host may still be sent, what it sent."""

    def __init__(self, port: Port, number: int, local: socket.socket) -> None:
        self.port, self.number, self.local = port, number, local
        self.credit = WINDOW_BYTES
        self.more = asyncio.Event()
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.tasks = [asyncio.create_task(work) for work in (self.outward(), self.inward())]
        self.ended = 0

    async def outward(self) -> None:
        """Local socket to host."""
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
            await self.port.send(CLOSE, self.number)
            self.port.forget(self.number)
            return
        self.half()

    async def inward(self) -> None:
        """Host to local socket."""
        loop = asyncio.get_running_loop()
        try:
            while (data := await self.inbox.get()) is not None:
                await loop.sock_sendall(self.local, data)
                await self.port.send(CREDIT, self.number, len(data).to_bytes(4, "big"))
            self.local.shutdown(socket.SHUT_WR)
        except OSError:
            await self.port.send(CLOSE, self.number)
            self.port.forget(self.number)
            return
        self.half()

    def half(self) -> None:
        """One direction is done; with both, so is the channel."""
        self.ended += 1
        if self.ended == 2:
            self.port.forget(self.number)

    def close(self) -> None:
        """Drop it."""
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self.local.close()


class Port:
    """The guest's end. `serve` runs for ever."""

    def __init__(self, path: Path, admit: Admit) -> None:
        self.path, self.admit = path, admit
        self.fd = -1
        self.channels: dict[int, Channel] = {}
        self.writing = asyncio.Lock()
        self.unsent = bytearray()
        self.opening: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Open the port, speak, and open it again when what comes makes no sense."""
        while True:
            try:
                self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                # Somebody with root's rights has it open, or our own last life is still ending.
                await asyncio.sleep(ABSENT_S)
                continue
            self.unsent.clear()
            try:
                await self.send(HELLO, 0)
                await self.listen()
            except (BrokenFrames, OSError):
                await asyncio.sleep(ABSENT_S)
            finally:
                self.reset()
                os.close(self.fd)

    async def listen(self) -> None:
        """Take frames; where the host hangs up, forget all and wait for it."""
        buffer = bytearray()
        while True:
            data = await self.some()
            if not data:
                self.reset()
                buffer.clear()
                self.unsent.clear()
                await asyncio.sleep(ABSENT_S)
                continue
            buffer += data
            while len(buffer) >= HEAD.size:
                kind, number, length = HEAD.unpack_from(buffer)
                if not HELLO <= kind <= CLOSE or length > CHUNK_BYTES:
                    raise BrokenFrames
                if len(buffer) < HEAD.size + length:
                    break
                payload = bytes(buffer[HEAD.size : HEAD.size + length])
                del buffer[: HEAD.size + length]
                await self.take(kind, number, payload)

    async def take(self, kind: int, number: int, payload: bytes) -> None:
        """One frame of the host."""
        channel = self.channels.get(number)
        if kind == HELLO:
            self.reset()
            await self.send(HELLO, 0, payload)
        elif kind == OPEN:
            task = asyncio.create_task(self.open(number, payload.decode("ascii", "replace")))
            self.opening.add(task)
            task.add_done_callback(self.opening.discard)
        elif channel is None:
            return
        elif kind == DATA:
            channel.inbox.put_nowait(payload)
        elif kind == CREDIT:
            channel.credit += int.from_bytes(payload, "big")
            channel.more.set()
        elif kind == END:
            channel.inbox.put_nowait(None)
        elif kind == CLOSE:
            self.forget(number)

    async def open(self, number: int, target: str) -> None:
        """Connect a channel to what the host names."""
        kind, _, port = target.partition(":")
        local, inner = (socket.socket(), None) if kind == "tcp" else socket.socketpair()
        try:
            local.setblocking(False)
            if inner is None:
                await asyncio.get_running_loop().sock_connect(local, ("127.0.0.1", int(port)))
            else:
                inner.setblocking(False)
                await self.admit(inner, target)
        except BaseException as error:
            local.close()
            if not isinstance(error, OSError | ValueError | OverflowError):
                raise
            await self.send(REFUSED, number, str(error).encode()[:200])
            return
        await self.send(OPENED, number)
        self.channels[number] = Channel(self, number, local)

    async def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """One frame; waits while the host does not read. A frame that was begun is ended, also when its channel is not wanted any more."""
        async with self.writing:
            self.unsent += HEAD.pack(kind, number, len(payload)) + payload
            while self.unsent:
                try:
                    del self.unsent[: os.write(self.fd, self.unsent)]
                except BlockingIOError:
                    await ready(self.fd, writing=True)

    async def some(self) -> bytes:
        """What the host sent; empty when it has hung up."""
        while True:
            try:
                return os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                await ready(self.fd, writing=False)

    def forget(self, number: int) -> None:
        """Drop a channel, if it is there."""
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.close()

    def reset(self) -> None:
        """Drop every channel."""
        for task in self.opening:
            task.cancel()
        for number in list(self.channels):
            self.forget(number)


async def ready(fd: int, *, writing: bool) -> None:
    """Wait until a descriptor can be read or written."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()
    watch, unwatch = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    watch(fd, wake)
    try:
        await waiting
    finally:
        with contextlib.suppress(ValueError):
            unwatch(fd)
