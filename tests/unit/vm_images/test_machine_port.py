"""Both ends of a machine's port, joined by a Unix socket in place of the hypervisor: many connections over one stream."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dart_guest import port as guest_port

from dart_server.providers.libvirt import virtio_port


class PretendedMachine:
    """A guest's port behind a listening socket; each connection of the host is a new life of the guest's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.admitted: list[socket.socket] = []
        self.ports: list[guest_port.Port] = []
        self.lives: list[asyncio.Task[None]] = []
        self.deaf = 0
        """So many connections are accepted and not answered."""

    async def admit(self, peer: socket.socket, door: str) -> None:
        if door != "control":
            peer.close()
            raise ConnectionRefusedError(f"there is no door {door!r}")
        self.admitted.append(peer)

    async def run(self) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen()
            listener.setblocking(False)
            while True:
                peer, _ = await asyncio.get_running_loop().sock_accept(listener)
                self.lives.append(asyncio.create_task(self.live(peer)))

    async def live(self, peer: socket.socket) -> None:
        with peer:
            if self.deaf:
                self.deaf -= 1
                await asyncio.get_running_loop().sock_recv(peer, 1)
                return
            port = guest_port.Port(Path("unused"), self.admit)
            port.fd = peer.fileno()
            self.ports.append(port)
            try:
                await port.listen()
            except (guest_port.BrokenFrames, OSError):
                return
            finally:
                port.reset()

    async def end(self) -> None:
        for life in self.lives:
            life.cancel()
        await asyncio.gather(*self.lives, return_exceptions=True)
        for peer in self.admitted:
            peer.close()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[PretendedMachine]:
    made = PretendedMachine(tmp_path / "port")
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await made.end()


@pytest.fixture
async def host(machine: PretendedMachine) -> AsyncIterator[virtio_port.VirtioPort]:
    end = virtio_port.VirtioPort(machine.path)
    yield end
    await end.close()


async def received(connection: socket.socket, count: int) -> bytes:
    loop, got = asyncio.get_running_loop(), b""
    async with asyncio.timeout(10):
        while len(got) < count and (more := await loop.sock_recv(connection, count - len(got))):
            got += more
    return got


async def test_bytes_go_both_ways_and_an_end_is_an_end(machine: PretendedMachine, host: virtio_port.VirtioPort) -> None:
    loop = asyncio.get_running_loop()
    with await host.open("control", 5) as outside:
        (inside,) = machine.admitted
        await loop.sock_sendall(outside, b"asked")
        assert await received(inside, 5) == b"asked"
        await loop.sock_sendall(inside, b"answered")
        inside.shutdown(socket.SHUT_WR)
        assert await received(outside, 100) == b"answered"
        await loop.sock_sendall(outside, b"more")
        assert await received(inside, 4) == b"more"


async def test_a_slow_reader_holds_up_nobody_else(machine: PretendedMachine, host: virtio_port.VirtioPort) -> None:
    loop = asyncio.get_running_loop()
    size = 3 * guest_port.WINDOW_BYTES
    much = secrets.token_bytes(size)
    first, second = await host.open("control", 5), await host.open("control", 5)
    slow, quick = machine.admitted
    with first, second:
        pushing = [asyncio.create_task(loop.sock_sendall(end, much)) for end in (slow, first)]
        await loop.sock_sendall(quick, b"quick")
        assert await received(second, 5) == b"quick"
        await loop.sock_sendall(second, b"back")
        assert await received(quick, 4) == b"back"
        assert not any(task.done() for task in pushing), "three windows do not fit into what is not read"
        assert await received(first, size) == much
        assert await received(slow, size) == much
        await asyncio.gather(*pushing)


async def test_what_does_not_listen_is_refused(machine: PretendedMachine, host: virtio_port.VirtioPort) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        number = service.getsockname()[1]
        with await host.open(f"tcp:{number}", 5) as connection:
            accepted, _ = await asyncio.to_thread(service.accept)
            with accepted:
                accepted.sendall(b"hello")
                assert await received(connection, 5) == b"hello"
    for target in (f"tcp:{number}", "tcp:0", "tcp:seven", "tcp:70000", "nothing"):
        with pytest.raises(ConnectionRefusedError):
            await host.open(target, 5)


async def test_a_greeting_ends_every_connection(machine: PretendedMachine, host: virtio_port.VirtioPort) -> None:
    with await host.open("control", 5) as outside:
        (inside,) = machine.admitted
        await host.handshake(5)
        assert await received(outside, 1) == b""
        assert await received(inside, 1) == b""
    with await host.open("control", 5):
        assert len(machine.admitted) == 2


async def test_a_silent_guest_is_dialled_again(machine: PretendedMachine, host: virtio_port.VirtioPort) -> None:
    machine.deaf = 1
    await host.handshake(10)
    with await host.open("control", 5):
        assert machine.deaf == 0
    machine.deaf = 100
    other = virtio_port.VirtioPort(machine.path)
    with pytest.raises(virtio_port.VirtioPortTimeout):
        await other.handshake(0.3)
    await other.close()


async def test_nonsense_ends_the_connections_and_not_the_port(
    machine: PretendedMachine, host: virtio_port.VirtioPort
) -> None:
    with await host.open("control", 5) as outside:
        os.write(machine.ports[0].fd, b"\xff" * 64)
        assert await received(outside, 1) == b""
    with await host.open("control", 5) as outside:
        _, again = machine.admitted
        await asyncio.get_running_loop().sock_sendall(outside, b"x")
        assert await received(again, 1) == b"x"
