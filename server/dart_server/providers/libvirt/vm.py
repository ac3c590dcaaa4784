"""The connections into one machine, whichever guest runs in it.

Role: the control channel, OSWorld's server and TCP ports inside, as connected sockets; what a guest must do before a snapshot and after a
restore. A guest with our agent is reached over the machine's port; one that has only OSWorld's server over a forwarded port of the host's
loopback, opened at the machine's monitor when it is first dialled, with `osworld_guest` in between for the control channel. Which of the
two it is is found out at the boot and kept with the disk.
Non-goals: the machine's life (`libvirt`).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dart_server.providers import guest_control
from dart_server.providers.base import OSWORLD_PORT, HostFault
from dart_server.providers.libvirt.domain import NETWORK
from dart_server.providers.libvirt.virtio_port import VirtioPort
from dart_server.providers.libvirt.volumes import AGENT, OSWORLD, Volume
from dart_server.providers.osworld.guest import OsworldGuest

OPEN_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 5.0
ZOMBIE_TRIES, ZOMBIE_POLL_S = 10, 0.05
FORWARD_TRIES = 20

Monitor = Callable[[str], Awaitable[str]]


class VmConnections:
    """See the module. `volume.guest` is what the guest is; empty until the first `ready` that finds out."""

    def __init__(self, port: Path, volume: Volume, monitor: Monitor) -> None:
        self._port = VirtioPort(port)
        self._volume = volume
        self._monitor = monitor
        self._forwards: dict[int, int] = {}
        self._forwarding = asyncio.Lock()
        self._osworld = OsworldGuest(lambda: self._forwarded(OSWORLD_PORT), volume.spec.resolution)

    async def ready(self, timeout_s: float) -> bool:
        """Whether the guest's session is up.

        Raises `AgentTimeout` or OSError while the guest does not answer, `HostFault` when its screen is not, and cannot be made, what was
        asked for.
        """
        if not self._volume.guest:
            self._volume.guest = await self._detect_guest(timeout_s)
        if self._volume.guest == AGENT:
            await self._port.handshake(timeout_s)
        reply = await self._health()
        has, wanted = reply.get("resolution"), list(self._volume.spec.resolution)
        if self._volume.guest == OSWORLD and has != wanted:
            detail = f"the guest's own screen is {has} and {wanted} was asked for"
            raise HostFault(detail, hint="a guest with OSWorld's server only keeps its size: ask for that")
        return bool(reply.get("ready"))

    async def control(self) -> socket.socket:
        """A connection to the agent, or to what stands in for it."""
        if self._volume.guest != OSWORLD:
            return await self._port.open("control", OPEN_TIMEOUT_S)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._osworld.serve(ours)
        return theirs

    async def osworld(self) -> socket.socket:
        """A connection to OSWorld's paths."""
        if self._volume.guest != OSWORLD:
            return await self._port.open("osworld", OPEN_TIMEOUT_S)
        return await self._forwarded(OSWORLD_PORT)

    async def tcp(self, port: int) -> socket.socket:
        """A connection to a TCP port inside."""
        if self._volume.guest != OSWORLD:
            return await self._port.open(f"tcp:{port}", OPEN_TIMEOUT_S)
        return await self._forwarded(port)

    async def quiesce(self, timeout_s: float) -> int | None:
        """Let the guest end what it does, where it can; the number of its processes, if it tells. Raises `AgentBusy`, `AgentTimeout`."""
        for _ in range(ZOMBIE_TRIES):
            try:
                reply = await guest_control.quiesce(self.control, timeout_s)
            except OSError as error:
                raise guest_control.AgentTimeout(str(error)) from error
            if not reply.get("zombies"):
                break
            await asyncio.sleep(ZOMBIE_POLL_S)
        count = reply.get("processes")
        return count if isinstance(count, int) and count > 0 else None

    async def drain(self, timeout_s: float) -> None:
        """No connection exists at either end afterwards, and nothing is on its way. Raises OSError."""
        if self._volume.guest == OSWORLD:
            await self._osworld.close()
        else:
            await self._port.handshake(timeout_s)

    async def drop_connections(self) -> None:
        """Drop every connection at this end, before the state of the guest is replaced."""
        self._port.close_channels()
        await self._osworld.close()

    async def notify_restored(self, timeout_s: float) -> None:
        """Tell the guest that it is a copy. Raises `AgentTimeout` when its session is not ready."""
        try:
            if self._volume.guest == OSWORLD:
                reply = await self._health()
            else:
                await self._port.handshake(timeout_s)
                reply = await guest_control.notify_restored(self.control, time.time(), timeout_s)
        except OSError as error:
            raise guest_control.AgentTimeout(str(error)) from error
        if not reply.get("ready"):
            raise guest_control.AgentTimeout("its session is not ready")

    async def close(self) -> None:
        """Let the machine go."""
        await self._osworld.close()
        await self._port.close()

    async def _health(self) -> dict[str, Any]:
        return await guest_control.health(self.control, HEALTH_TIMEOUT_S)

    async def _detect_guest(self, timeout_s: float) -> str:
        """What kind of guest answers. Raises OSError when none does."""
        try:
            await self._port.handshake(timeout_s)
        except OSError:
            if not self._volume.isolated_network or not await self._osworld.answers(timeout_s):
                raise
            return OSWORLD
        return AGENT

    async def _forwarded(self, port: int) -> socket.socket:
        """A connection to a port of the guest's network, through a port of this host's loopback that leads nowhere else."""
        async with self._forwarding:
            if port not in self._forwards:
                self._forwards[port] = await self._forward(port)
        connection = socket.socket()
        connection.setblocking(False)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._forwards[port]))
        except BaseException:  # cancelled, too, no descriptor may stay; raised again
            connection.close()
            raise
        return connection

    async def _forward(self, port: int) -> int:
        """The host's port that leads to a guest's, opened now unless the machine has it from before."""
        known = forwards(await self._monitor("info usernet"))
        if port in known:
            return known[port]
        for _ in range(FORWARD_TRIES):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                number: int = probe.getsockname()[1]
            await self._monitor(f"hostfwd_add {NETWORK} tcp:127.0.0.1:{number}-:{port}")
            if forwards(await self._monitor("info usernet")).get(port) == number:
                return number
        raise OSError("no port of this host's loopback could be forwarded")


def forwards(said: str) -> dict[int, int]:
    """Guest port → host port, from the monitor's `info usernet`."""
    found = {}
    for line in said.splitlines():
        words = line.split()
        if words[:1] == ["TCP[HOST_FORWARD]"] and len(words) >= 6 and words[3].isdigit() and words[5].isdigit():
            found[int(words[5])] = int(words[3])
    return found
