"""Provider `libvirt`: desktops as virtual machines, with live snapshots of memory and disk inside their qcow2 disks.

Flow: create → overlay on the image's disk, a machine without network boots, the guest agent answers ready. snapshot → the agent is
quiesced, our connections are closed, the machine's own monitor saves it. restore → in place where the desktop's disk holds the snapshot
(the hypervisor stays, only its state is replaced); else a new machine on a disk that holds it, parked or copied. Afterwards the agent is
told that it is a copy. A guest without our agent is spoken to through OSWorld's own server (`osworld_guest`), over a network that leads
nowhere.
Rule: everything of ours carries this farm's prefix; machines and disks outlive the farm's process, and a farm that was started again
finds them.
Non-goals: pooling and quotas (the farm's), making disks (`vm_images`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dart_server.hostd.layout import Layout
from dart_server.providers import guest_control
from dart_server.providers.base import (
    CONTROL,
    ID_PATTERN,
    OSWORLD_PORT,
    Capabilities,
    DesktopGone,
    DesktopHealth,
    DesktopSpec,
    DialPort,
    HostFault,
    Inventory,
    SnapshotBroken,
    SnapshotInfo,
)
from dart_server.providers.connections import OpenConnections, port_refused
from dart_server.providers.health import check_health
from dart_server.providers.libvirt import calls, domain, firmware, images
from dart_server.providers.libvirt.engine import HostFacts, LibvirtConnection
from dart_server.providers.libvirt.vm import VmConnections
from dart_server.providers.libvirt.volumes import TAG, Volume, Volumes, VolumeSnapshot, used_bytes

BOOT_TIMEOUT_S = {"kvm": 60.0, "tcg": 240.0}
THIRD_PARTY_BOOT_TIMEOUT_S = 300.0
"""For a guest that is not ours: whole desktop systems take more than a minute. OSWorld's own client waits as long."""
HANDSHAKE_TIMEOUT_S = 3.0
RESTORED_TIMEOUT_S = 20.0
QUIESCE_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 5.0
_BOOT_POLL_S = 0.2


class LibvirtProvider:
    """See `base.Provider`. One instance per farm; its machines are known by a prefix made of user and runtime directory."""

    name = "libvirt"

    def __init__(self, *, home: Path, runtime_dir: Path, snapshot_dir: Path, uri: str | None = None) -> None:
        self._images = home / "images"
        self.prefix = Layout(os.getuid(), runtime_dir / "libvirt", runtime_dir, self._images, snapshot_dir).prefix
        self._vm_dir = runtime_dir / "vm"
        self._engine = LibvirtConnection(uri)
        self._host: HostFacts | None = None
        self._volumes = Volumes(snapshot_dir / f"{self.prefix}-disks")
        self._vms: dict[str, VmConnections] = {}
        self._connections = OpenConnections()
        self._writing: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def capabilities(self) -> Capabilities:
        """Everything. The processor limit is kept by whole processors."""
        limits = frozenset({"memory", "cpus", "disk"})
        accelerator = self._host.accelerator if self._host is not None else ""
        return Capabilities(
            memory_snapshot=True,
            fork=True,
            restore_in_place=True,
            tunnel=True,
            limits=limits,
            accelerator=accelerator,
        )

    async def start(self) -> None:
        """Find libvirt, and take over the disks of an earlier life. Raises CapabilityMissing with the fix."""
        self._host = await self._engine.start()
        self._vm_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        await asyncio.to_thread(self._volumes.load)

    async def aclose(self) -> None:
        """Let libvirt go; machines live on until they are destroyed or reaped."""
        for desktop_id in list(self._vms):
            await self._forget(desktop_id)
        self._engine.close()

    async def image_digest(self, image: str) -> str:
        """Digest from the image's manifest."""
        return (await asyncio.to_thread(images.find, self._images, image)).digest

    async def create(self, desktop_id: str, spec: DesktopSpec) -> None:
        """Boot a machine and wait for its agent."""
        if not ID_PATTERN.fullmatch(desktop_id):
            raise HostFault(f"{desktop_id!r} is not an id of a desktop")
        image = await asyncio.to_thread(images.find, self._images, spec.image)
        if self._volumes.find(desktop_id) is not None or await self._state(desktop_id) is not None:
            raise HostFault(f"there is a desktop {desktop_id} already")
        volume = await asyncio.to_thread(self._volumes.create, image, desktop_id, spec)
        try:
            await self._launch(desktop_id, volume, paused=False)
            await self._wait_booted(desktop_id, volume)
        except BaseException:  # cancelled, too, no machine may stay; raised again
            await asyncio.shield(self.destroy(desktop_id))
            raise

    async def snapshot(self, desktop_id: str, snapshot_id: str) -> SnapshotInfo:
        """Quiesce, hang up, save; the machine goes on."""
        volume = await self._running_volume(desktop_id)
        if not ID_PATTERN.fullmatch(snapshot_id) or snapshot_id in self._volumes.snapshots():
            raise HostFault(f"{snapshot_id!r} cannot be the id of a new snapshot")
        vm = self._vm(desktop_id, volume)
        try:
            processes = await vm.quiesce(QUIESCE_TIMEOUT_S)
        except guest_control.AgentBusy as error:
            raise HostFault(f"the desktop {desktop_id} is busy: {error}", hint="snapshot between two calls") from error
        except guest_control.AgentTimeout as error:
            raise DesktopGone(f"the desktop {desktop_id} does not answer: {error}") from error
        self._connections.shut_down(desktop_id)
        async with self._writing[volume.path]:
            await vm.drain(HANDSHAKE_TIMEOUT_S)
            started_s = time.monotonic()
            await self._engine.monitor(self._name(desktop_id), f"savevm {TAG}{snapshot_id}")
            pause_s = time.monotonic() - started_s
            size = await self._engine.run(
                partial(calls.saved_bytes, name=self._name(desktop_id), tag=TAG + snapshot_id)
            )
            volume.saved[snapshot_id] = VolumeSnapshot(size, volume.current)
            volume.current = snapshot_id
            await asyncio.to_thread(self._volumes.write, volume)
        return SnapshotInfo(snapshot_id, size, volume.image_digest, pause_s=pause_s, processes=processes)

    async def restore(self, desktop_id: str, snapshot_id: str) -> None:
        """Bring a copy to life under this id and wait for its agent."""
        self._connections.shut_down(desktop_id)
        try:
            volume = await self._replaced(desktop_id, snapshot_id)
            vm = self._vm(desktop_id, volume)
            await vm.notify_restored(RESTORED_TIMEOUT_S)
        except (guest_control.AgentTimeout, HostFault, DesktopGone) as error:
            await self.destroy(desktop_id)
            raise SnapshotBroken(f"the copy of {snapshot_id} does not come to life: {error}") from error
        except BaseException:  # cancelled, too, no half-restored machine may stay; raised again
            await asyncio.shield(self.destroy(desktop_id))
            raise

    async def destroy(self, desktop_id: str) -> None:
        """Remove the machine and its disk; a disk that holds snapshots is parked. Idempotent."""
        self._connections.shut_down(desktop_id)
        await self._forget(desktop_id)
        with suppress(DesktopGone):
            await self._engine.run(partial(calls.remove, name=self._name(desktop_id)))
        volume = self._volumes.find(desktop_id)
        if volume is not None:
            async with self._writing[volume.path]:
                await asyncio.to_thread(self._volumes.detach, volume)
        for path in self._files(desktop_id):
            path.unlink(missing_ok=True)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Take the snapshot out of every disk; idempotent."""
        for volume in self._volumes.with_snapshot(snapshot_id):
            async with self._writing[volume.path]:
                if volume.desktop is not None and await self._state(volume.desktop) is not None:
                    with suppress(DesktopGone):
                        await self._engine.monitor(self._name(volume.desktop), f"delvm {TAG}{snapshot_id}")
                await asyncio.to_thread(self._volumes.remove_snapshot, volume, snapshot_id)
        await asyncio.to_thread(self._volumes.collect_garbage)

    async def dial(self, desktop_id: str, port: DialPort) -> socket.socket:
        """A connected socket into the machine."""
        volume = await self._running_volume(desktop_id)
        vm = self._vm(desktop_id, volume)
        try:
            if port == CONTROL:
                connection = await vm.control()
            elif port == OSWORLD_PORT:
                connection = await vm.osworld()
            else:
                connection = await vm.tcp(port)
        except ConnectionRefusedError as error:
            if await self._state(desktop_id) is None:
                raise DesktopGone(f"the desktop {desktop_id} has ended") from error
            raise port_refused(desktop_id, port) from error
        except OSError as error:
            raise DesktopGone(f"the desktop {desktop_id} cannot be dialled ({error.strerror or error})") from error
        return self._connections.add(desktop_id, connection)

    async def health(self, desktop_id: str) -> DesktopHealth:
        """The hypervisor's view and, while the machine runs, the agent's."""
        return await check_health(
            partial(self._host_counters, desktop_id),
            partial(self.dial, desktop_id, CONTROL),
            agent_timeout_s=HEALTH_TIMEOUT_S,
            agent_counters=lambda agent: {"oom_kills": _count(agent, "oom_kills"), "pids": _count(agent, "processes")},
        )

    async def inventory(self) -> Inventory:
        """Machines with this farm's prefix, running or not, and disks; what lies in the disks."""
        desktops = set(await self._engine.run(partial(calls.names, prefix=f"{self.prefix}-")))
        desktops |= {volume.desktop for volume in self._volumes.all() if volume.desktop is not None}
        return Inventory(tuple(sorted(desktops)), tuple(sorted(self._volumes.snapshots())))

    async def reap(self, keep: set[str]) -> Sequence[str]:
        """Remove what is not to be kept."""
        if self._host is None:
            return []
        has = await self.inventory()
        desktops = [name for name in has.desktops if name not in keep]
        snapshots = [name for name in has.snapshots if name not in keep]
        await asyncio.gather(*(self.destroy(name) for name in desktops))
        for name in snapshots:
            await self.delete_snapshot(name)
        return [*desktops, *snapshots]

    def _name(self, desktop_id: str) -> str:
        return f"{self.prefix}-{desktop_id}"

    def _files(self, desktop_id: str) -> tuple[Path, Path]:
        """The socket of a machine's port (names of sockets are short) and the file of its console."""
        short = hashlib.sha256(desktop_id.encode()).hexdigest()[:12]
        return self._vm_dir / f"{short}.sock", self._vm_dir / f"{short}.log"

    def _vm(self, desktop_id: str, volume: Volume) -> VmConnections:
        """The connections into a desktop's machine."""
        if desktop_id not in self._vms:
            ask = partial(self._engine.monitor, self._name(desktop_id))
            self._vms[desktop_id] = VmConnections(self._files(desktop_id)[0], volume, ask)
        return self._vms[desktop_id]

    async def _forget(self, desktop_id: str) -> None:
        vm = self._vms.pop(desktop_id, None)
        if vm is not None:
            await vm.close()

    async def _launch(self, desktop_id: str, volume: Volume, *, paused: bool) -> None:
        """Define and start a machine on a disk."""
        assert self._host is not None, "start() comes first"
        image = await asyncio.to_thread(images.find, self._images, volume.spec.image)
        port, console = self._files(desktop_id)
        port.unlink(missing_ok=True)
        uefi = await asyncio.to_thread(firmware.find, image.disk) if image.kernel is None else None
        files = (volume.path, port, console, image.kernel, image.initrd)
        parts = domain.DomainFiles(*files, volume.isolated_network, uefi)
        text = domain.xml(self._name(desktop_id), volume.spec, parts, self._host)
        await self._engine.run(partial(calls.define_and_start, text=text, paused=paused))

    async def _replaced(self, desktop_id: str, snapshot_id: str) -> Volume:
        """The desktop's disk, with its machine running in the snapshot's state. Raises HostFault, SnapshotBroken, DesktopGone."""
        volume = self._volumes.find(desktop_id)
        load = f"loadvm {TAG}{snapshot_id}"
        if volume is not None and snapshot_id in volume.saved and await self._state(desktop_id) is not None:
            with suppress(
                DesktopGone
            ):  # it ended since it was looked at: the snapshot is there, and another machine takes it
                async with self._writing[volume.path]:
                    await self._vm(desktop_id, volume).drop_connections()
                    await self._engine.monitor(self._name(desktop_id), load)
                    await asyncio.to_thread(self._volumes.attach, volume, desktop_id, snapshot_id)
                return volume
        await self.destroy(desktop_id)
        volume = await self._volume_with(snapshot_id, desktop_id)
        async with self._writing[volume.path]:
            await self._launch(desktop_id, volume, paused=True)
            await self._engine.monitor(self._name(desktop_id), load)
            await self._engine.run(partial(calls.resume, name=self._name(desktop_id)))
        return volume

    async def _volume_with(self, snapshot_id: str, desktop_id: str) -> Volume:
        """A disk for a desktop that holds a snapshot: a parked one is taken, one in use is copied while its machine stands still."""
        for source in self._volumes.with_snapshot(snapshot_id):
            async with self._writing[source.path]:
                if snapshot_id not in source.saved or not source.path.exists():
                    continue
                if source.desktop is None:
                    if await asyncio.to_thread(self._volumes.attach, source, desktop_id, snapshot_id):
                        return source
                    continue
                name = self._name(source.desktop)
                with suppress(DesktopGone):
                    await self._engine.run(partial(calls.suspend, name=name))
                try:
                    copied = await asyncio.to_thread(self._volumes.copy, source, desktop_id, snapshot_id)
                finally:
                    with suppress(DesktopGone):
                        await self._engine.run(partial(calls.resume, name=name))
            await asyncio.to_thread(self._volumes.trim, copied, snapshot_id)
            return copied
        raise SnapshotBroken(f"there is no snapshot {snapshot_id}")

    async def _state(self, desktop_id: str) -> str | None:
        """`running` or `paused`; None for a machine that has ended or never was."""
        try:
            running = await self._engine.run(partial(calls.is_active, name=self._name(desktop_id)))
        except DesktopGone:
            return None
        return "running" if running else None

    async def _running_volume(self, desktop_id: str) -> Volume:
        volume = self._volumes.find(desktop_id)
        if volume is None or await self._state(desktop_id) is None:
            raise DesktopGone(f"there is no running desktop {desktop_id}")
        return volume

    async def _host_counters(self, desktop_id: str) -> dict[str, Any]:
        """What the hypervisor sees now. Raises `DesktopGone` when there is no machine of this id."""
        counters = await self._engine.run(partial(calls.health_counters, name=self._name(desktop_id)))
        volume = self._volumes.find(desktop_id)
        return counters | {"disk_bytes": used_bytes(volume) if volume is not None else 0}

    async def _wait_booted(self, desktop_id: str, volume: Volume) -> None:
        assert self._host is not None
        limit_s = THIRD_PARTY_BOOT_TIMEOUT_S if volume.isolated_network else BOOT_TIMEOUT_S[self._host.accelerator]
        deadline_s = time.monotonic() + limit_s
        vm = self._vm(desktop_id, volume)
        words = "no answer"
        while time.monotonic() < deadline_s:
            if await self._state(desktop_id) is None:
                raise HostFault(f"the desktop {desktop_id} ended while booting: {self._console_tail(desktop_id)}")
            try:
                if await vm.ready(HANDSHAKE_TIMEOUT_S):
                    await asyncio.to_thread(self._volumes.write, volume)
                    return
                words = "its session is not up yet"
            except (guest_control.AgentTimeout, OSError) as error:
                words = str(error)
            await asyncio.sleep(_BOOT_POLL_S)
        raise HostFault(
            f"the desktop {desktop_id} was not ready in {limit_s:.0f} s: {words}; {self._console_tail(desktop_id)}"
        )

    def _console_tail(self, desktop_id: str) -> str:
        """The end of a machine's console."""
        try:
            lines = self._files(desktop_id)[1].read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return "its console cannot be read"
        return f"its console ends with {' | '.join(line.strip() for line in lines[-4:] if line.strip())[-300:]!r}"


def _count(agent: Mapping[str, Any], name: str) -> int:
    value = agent.get(name)
    return value if isinstance(value, int) else 0
