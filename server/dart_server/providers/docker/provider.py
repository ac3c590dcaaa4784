"""Provider `docker`: desktops as containers of Docker or Podman, without memory snapshots.

Flow: the image's root file system becomes an engine image once; create → container with no network but its own loopback, the guest agent
answers ready. A reset is a fresh container, which the farm's pool keeps at hand. The control channel is the agent's abstract socket in the
container's network namespace, which only the host side can enter with a process that the container cannot see.
Rule: what is ours carries this farm's label, so that a farm that was started again finds its desktops, and clean-up touches no others.
Non-goals: pooling (the farm's), images as files (`vm_images`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dart_server.hostd import images
from dart_server.hostd.errors import HostdError, HostdImageMissing
from dart_server.hostd.evidence import queries as hostd_queries
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import inotify, netns
from dart_server.hostd.runtime import hardening
from dart_server.providers import guest_control
from dart_server.providers.base import (
    CONTROL,
    ID_PATTERN,
    Capabilities,
    CapabilityMissing,
    DesktopGone,
    DesktopHealth,
    DesktopSpec,
    DialPort,
    HealthCause,
    HostFault,
    ImageMissing,
    Inventory,
    SnapshotInfo,
)
from dart_server.providers.connections import OpenConnections, port_refused
from dart_server.providers.docker import container as docker_container
from dart_server.providers.docker import images as docker_images
from dart_server.providers.docker.engine import DockerEngine, EngineFacts
from dart_server.providers.health import check_health

BOOT_TIMEOUT_S = 60.0
DIAL_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 3.0
REMOVE_TIMEOUT_S = 30.0
_BOOT_POLL_S, _BOOT_POLL_SHARE = 0.05, 0.1
"""A look at a booting desktop costs both sides work: the next one waits a tenth of the time that the boot has taken."""
_REMOVE_POLL_S = 0.05


@dataclass(slots=True)
class RunningContainer:
    """One running container. The namespace is held open, so that it stays this desktop's whatever becomes of its process id."""

    container_id: str
    namespace_fd: int
    group: str


class DockerProvider:
    """See `base.Provider`. One instance per farm; its containers are known by a label made of user and runtime directory."""

    name = "docker"

    def __init__(self, *, home: Path, runtime_dir: Path) -> None:
        self._images = home / "images"
        self.farm = Layout(os.getuid(), runtime_dir / "docker", runtime_dir, self._images, runtime_dir).prefix
        self._engine = DockerEngine()
        self._facts: EngineFacts | None = None
        self._runtime_dir = runtime_dir
        self._call_filter = ""
        self._containers: dict[str, RunningContainer] = {}
        self._connections = OpenConnections()
        self._importing = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        """Tunnels, and the limits that the engine enforces here; nothing that needs saved memory."""
        limits = self._facts.limits if self._facts is not None else frozenset[str]()
        sees_layers = self._facts is not None and self._facts.storage in docker_container.OVERLAY_STORAGE
        return Capabilities(
            memory_snapshot=False,
            fork=False,
            restore_in_place=False,
            tunnel=True,
            freeze=True,
            evidence="host" if sees_layers else "guest",
            limits=limits,
        )

    async def start(self) -> None:
        """Find the engine. Raises CapabilityMissing with the fix when it or this host lacks something."""
        self._facts = await self._engine.start()
        build_filter = partial(docker_container.system_call_filter, self._facts, self._runtime_dir)
        self._call_filter = await asyncio.to_thread(build_filter)
        await asyncio.to_thread(inotify.raise_limit)

    async def aclose(self) -> None:
        """Let the engine go; desktops live on in it until they are destroyed or reaped."""
        for desktop_id in list(self._containers):
            self._forget(desktop_id)
        self._engine.close()

    async def image_digest(self, image: str) -> str:
        """Digest from the image's manifest."""
        return (await asyncio.to_thread(self._find_image, image)).digest

    async def create(self, desktop_id: str, spec: DesktopSpec) -> None:
        """Start a container and wait for its agent."""
        if not ID_PATTERN.fullmatch(desktop_id):
            raise HostFault(f"{desktop_id!r} is not an id of a desktop")
        assert self._facts is not None, "start() comes first"
        image = await asyncio.to_thread(self._find_image, spec.image)
        async with self._importing:
            image_id = await self._engine.run(lambda client: docker_images.ensure(client, spec.image, image))
        options = docker_container.options(
            self.farm, desktop_id, spec, image_id, image.init, self._facts, self._call_filter
        )
        launching = asyncio.ensure_future(self._engine.run(lambda client: _launch(client, options)))
        try:
            await asyncio.shield(launching)
            await self._wait_booted(desktop_id)
            await self._harden(desktop_id)
        except BaseException:  # cancelled, too, no container may stay; raised again
            await asyncio.shield(self._undo(desktop_id, launching))
            raise

    async def snapshot(self, desktop_id: str, snapshot_id: str) -> SnapshotInfo:
        """Not here: containers of an engine have no saved memory."""
        raise _no_snapshots()

    async def restore(self, desktop_id: str, snapshot_id: str) -> None:
        """Not here: there are no snapshots."""
        raise _no_snapshots()

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Nothing to remove."""

    async def destroy(self, desktop_id: str) -> None:
        """Remove the container and wait until the engine has let it go; idempotent."""
        self._forget(desktop_id)
        name = docker_container.container_name(self.farm, desktop_id)
        deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
        while True:
            try:
                await self._engine.run(lambda client: client.api.remove_container(name, force=True, v=True))
            except DesktopGone:
                return
            except HostFault:
                # A removal that somebody else began is waited for.
                if time.monotonic() > deadline_s:
                    raise
            await asyncio.sleep(_REMOVE_POLL_S)

    async def freeze(self, desktop_id: str) -> None:
        """See `base.SupportsFreeze`; the engine's pause."""
        if not (await self._inspect(desktop_id))["State"]["Paused"]:
            name = docker_container.container_name(self.farm, desktop_id)
            await self._engine.run(partial(docker_container.pause, name=name))

    async def thaw(self, desktop_id: str) -> None:
        """See `base.SupportsFreeze`."""
        if (await self._inspect(desktop_id))["State"]["Paused"]:
            name = docker_container.container_name(self.farm, desktop_id)
            await self._engine.run(lambda client: client.api.unpause(name))

    async def evidence(self, desktop_id: str, queries: Sequence[Mapping[str, Any]]) -> bytes:
        """See `base.SupportsHostEvidence`; the farm, as root, reads the paused container through the root directory of its init."""
        checked = hostd_queries.check("queries", [dict(query) for query in queries])
        running = await self._running_container(desktop_id)
        name = docker_container.container_name(self.farm, desktop_id)
        look = partial(docker_container.evidence, name=name, namespace_fd=running.namespace_fd, queries=checked)
        try:
            return await self._engine.run(look)
        except (OSError, HostdError) as error:
            raise DesktopGone(f"the desktop {desktop_id} has ended ({error})") from error

    async def dial(self, desktop_id: str, port: DialPort) -> socket.socket:
        """A connected socket from inside the desktop's network."""
        running = await self._running_container(desktop_id)
        number = None if port == CONTROL else port
        namespace_fd = os.dup(running.namespace_fd)
        try:
            inside = Path(f"/proc/self/fd/{namespace_fd}")
            connection = await asyncio.to_thread(netns.connect, inside, number, DIAL_TIMEOUT_S)
        except OSError as error:
            if not isinstance(error, ConnectionRefusedError) or (await self._state(desktop_id)) is None:
                raise DesktopGone(f"the desktop {desktop_id} cannot be dialled ({error.strerror or error})") from error
            raise port_refused(desktop_id, port) from error
        finally:
            os.close(namespace_fd)
        return self._connections.add(desktop_id, connection)

    async def health(self, desktop_id: str) -> DesktopHealth:
        """The engine's and the kernel's view and, while the desktop runs, the agent's."""
        health = await check_health(
            partial(self._host_counters, desktop_id),
            partial(self.dial, desktop_id, CONTROL),
            agent_timeout_s=HEALTH_TIMEOUT_S,
        )
        if health.cause is HealthCause.DISK_FULL and "disk" not in self.capabilities.limits:
            return replace(health, cause=HealthCause.UNKNOWN, detail="the disk of the container engine is full")
        return health

    async def inventory(self) -> Inventory:
        """Every container with this farm's label, running or not."""
        label = f"{docker_container.LABEL_FARM}={self.farm}"
        found = await self._engine.run(lambda client: client.api.containers(all=True, filters={"label": [label]}))
        return Inventory(tuple(sorted(entry["Labels"][docker_container.LABEL_DESKTOP] for entry in found)))

    async def reap(self, keep: set[str]) -> Sequence[str]:
        """Remove this farm's containers that are not to be kept; without an engine there is nothing to look at."""
        if self._facts is None:
            return []
        removed = [name for name in (await self.inventory()).desktops if name not in keep]
        await asyncio.gather(*(self.destroy(name) for name in removed))
        return removed

    def _find_image(self, name: str) -> images.Image:
        try:
            return images.find(self._images, name)
        except HostdImageMissing as error:
            raise ImageMissing(str(error), hint=error.hint) from error

    async def _undo(self, desktop_id: str, launching: asyncio.Future[None]) -> None:
        """Remove what a create that failed has made; a container that was there before is left alone."""
        await asyncio.wait({launching})
        if launching.exception() is None:
            await self.destroy(desktop_id)

    async def _wait_booted(self, desktop_id: str) -> None:
        begin_s = time.monotonic()
        words = "no answer"
        while (waited_s := time.monotonic() - begin_s) < BOOT_TIMEOUT_S:
            try:
                reply = await guest_control.health(partial(self.dial, desktop_id, CONTROL), HEALTH_TIMEOUT_S)
                if reply.get("ready"):
                    return
                words = "its session is not up yet"
            except guest_control.AgentTimeout as error:
                words = str(error)
            except DesktopGone as error:
                raise HostFault(f"the desktop {desktop_id} ended while booting ({error})") from error
            await asyncio.sleep(max(_BOOT_POLL_S, waited_s * _BOOT_POLL_SHARE))
        raise HostFault(f"the desktop {desktop_id} was not ready in {BOOT_TIMEOUT_S:.0f} s: {words}")

    async def _harden(self, desktop_id: str) -> None:
        """Close what a desktop needed open only while it booted. The process is pinned and known by its network before it is entered."""
        running, entry = await self._running_container(desktop_id), await self._state(desktop_id)
        try:
            pid = int(entry["State"]["Pid"]) if entry is not None else 0
            pinned = os.pidfd_open(pid)
            try:
                if os.stat(f"/proc/{pid}/ns/net").st_ino != os.fstat(running.namespace_fd).st_ino:
                    raise ProcessLookupError(f"process {pid} is another")
                await asyncio.to_thread(hardening.make_proc_read_only, pinned)
            finally:
                os.close(pinned)
        except OSError as error:
            raise HostFault(f"/proc of the desktop {desktop_id} could not be closed ({error})") from error

    async def _host_counters(self, desktop_id: str) -> dict[str, Any]:
        """What the host sees now. Raises `DesktopGone` when there is no container of this id."""
        entry = await self._inspect(desktop_id)
        running = self._containers.get(desktop_id)
        group = (
            running.group if running is not None else docker_container.control_group(int(entry["State"]["Pid"] or 0))
        )
        return docker_container.health_counters(entry["State"], group)

    async def _inspect(self, desktop_id: str) -> dict[str, Any]:
        name = docker_container.container_name(self.farm, desktop_id)
        entry: dict[str, Any] = await self._engine.run(lambda client: client.api.inspect_container(name))
        return entry

    async def _state(self, desktop_id: str) -> dict[str, Any] | None:
        """The entry of a running container, None for all others."""
        try:
            entry = await self._inspect(desktop_id)
        except DesktopGone:
            return None
        return entry if entry["State"]["Running"] else None

    async def _running_container(self, desktop_id: str) -> RunningContainer:
        """The running container, found in the engine when this process has not seen it yet. Raises `DesktopGone`."""
        known = self._containers.get(desktop_id)
        if known is not None:
            return known
        entry = await self._state(desktop_id)
        if entry is None:
            raise DesktopGone(f"there is no running desktop {desktop_id}")
        pid = int(entry["State"]["Pid"])
        try:
            namespace_fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DesktopGone(f"the desktop {desktop_id} has ended") from error
        running = RunningContainer(entry["Id"], namespace_fd, docker_container.control_group(pid))
        again = await self._state(desktop_id)
        if again is None or (again["Id"], again["State"]["Pid"]) != (running.container_id, pid):
            os.close(namespace_fd)
            raise DesktopGone(f"the desktop {desktop_id} has ended")
        known = self._containers.setdefault(desktop_id, running)
        if known is not running:
            os.close(namespace_fd)
        return known

    def _forget(self, desktop_id: str) -> None:
        """Shut every connection into this desktop and let its namespace go."""
        self._connections.shut_down(desktop_id)
        running = self._containers.pop(desktop_id, None)
        if running is not None:
            os.close(running.namespace_fd)


def _launch(client: Any, options: dict[str, Any]) -> None:
    """Create and start; a container that does not start is removed."""
    container = client.containers.create(**options)
    try:
        container.start()
    except BaseException:  # interrupted, too, no container may stay; raised again
        container.remove(force=True, v=True)
        raise


def _no_snapshots() -> CapabilityMissing:
    return CapabilityMissing(
        "containers of a container engine have no memory snapshots",
        hint="use the provider `runc` for snapshots and forks",
    )
