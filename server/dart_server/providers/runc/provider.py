"""Provider `runc`: desktops as containers with live memory snapshots and forks, through the root helper dart-hostd.

Flow: create → helper boots the container, the guest agent answers ready. snapshot → the agent is quiesced, our
connections are closed, the helper saves processes and files, the desktop goes on. restore → the helper brings the copy
to life, the agent is told that it is one, and answers ready.
Non-goals: anything as root (the helper's), leases and quotas (the farm's).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dart_server.providers import guest_control
from dart_server.providers.base import (
    CONTROL,
    Capabilities,
    DesktopGone,
    DesktopHealth,
    DesktopSpec,
    DialPort,
    HostFault,
    ImageMissing,
    Inventory,
    SnapshotBroken,
    SnapshotInfo,
)
from dart_server.providers.connections import OpenConnections
from dart_server.providers.egress import PROXY_PORT, Destination, EgressProxy, parse_network
from dart_server.providers.health import check_health
from dart_server.providers.runc.hostd_client import HostdClient, HostdPaths
from dart_server.wire.evidence import MAX_EVIDENCE_NBYTES

BOOT_TIMEOUT_S = 60.0
RESTORED_TIMEOUT_S = 10.0
QUIESCE_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 3.0
_VERB_TIMEOUT_S = 180.0
_BOOT_POLL_S = 0.03
_ZOMBIE_TRIES = 10
_ZOMBIE_POLL_S = 0.05


class RuncProvider:
    """See `base.Provider`. One instance per farm; the helper is found by its socket in `runtime_dir`.

    `wall_clock`: the time of day (seconds since 1970) that restored desktops follow unless a task declares another.
    `desktops_without_farm_s`: how long a helper that this provider starts keeps desktops while no farm is attached to it.
    """

    name = "runc"

    def __init__(
        self,
        *,
        home: Path,
        runtime_dir: Path,
        snapshot_dir: Path,
        wall_clock: Callable[[], float] = time.time,
        egress: Sequence[str] = (),
        egress_networks: Sequence[str] = (),
        desktops_without_farm_s: float = 60.0,
    ) -> None:
        self._allowed = [Destination.parse(text) for text in egress]
        self._egress_networks = [parse_network(text) for text in egress_networks]
        self._egress_proxies: dict[str, EgressProxy] = {}
        self._wall_clock = wall_clock
        self._images = home / "images"
        paths = HostdPaths(runtime=runtime_dir, images=self._images, store=snapshot_dir)
        self._hostd = HostdClient(paths, idle_timeout_s=desktops_without_farm_s)
        self._limits = frozenset({"memory", "pids", "cpus", "disk"})
        self._connections = OpenConnections()

    @property
    def capabilities(self) -> Capabilities:
        """Everything; the disk limit only while written files are kept in memory."""
        return Capabilities(
            memory_snapshot=True,
            fork=True,
            restore_in_place=True,
            tunnel=True,
            freeze=True,
            evidence="host",
            limits=self._limits,
        )

    async def start(self) -> None:
        """Find or start the helper. Raises CapabilityMissing with the fix when the host cannot run it."""
        answer = await self._hostd.attach()
        if not answer["disk_limit"]:
            self._limits = self._limits - {"disk"}

    async def aclose(self) -> None:
        """Let the helper go; one that was started here removes all it made."""
        for desktop_id in list(self._egress_proxies):
            self._close_proxy(desktop_id)
        await self._hostd.detach()

    async def image_digest(self, image: str) -> str:
        """Digest from the image's manifest."""
        manifest = self._images / image / "current" / "manifest.json"
        try:
            digest = json.loads(await asyncio.to_thread(manifest.read_text, encoding="utf-8"))["digest"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = f"build it: `dart-farm images build {image}`"
            raise ImageMissing(f"there is no image {image!r} in {self._images}", hint=hint) from error
        return str(digest) if str(digest).startswith("sha256:") else f"sha256:{digest}"

    async def create(self, desktop_id: str, spec: DesktopSpec) -> None:
        """Boot from the image and wait for the agent."""
        await self._ask(
            "create",
            desktop_id=desktop_id,
            image=spec.image,
            resolution=list(spec.resolution),
            font_size=spec.font_size,
            memory_mib=spec.memory_mib,
            pids=spec.pids,
            cpus=spec.cpus,
            disk_mib=spec.disk_mib,
            proxy_port=PROXY_PORT if self._allowed else None,
        )
        try:
            await self._open_proxy(desktop_id)
            await self._wait_booted(desktop_id)
            await self._ask("harden", desktop_id=desktop_id)
        except BaseException:  # cancelled, too, no desktop may stay; raised again
            await asyncio.shield(self.destroy(desktop_id))
            raise

    async def snapshot(self, desktop_id: str, snapshot_id: str) -> SnapshotInfo:
        """Quiesce, hang up, save; the desktop goes on."""
        dial = partial(self.dial, desktop_id, CONTROL)
        try:
            for _ in range(_ZOMBIE_TRIES):
                if not (await guest_control.quiesce(dial, QUIESCE_TIMEOUT_S)).get("zombies"):
                    break
                await asyncio.sleep(_ZOMBIE_POLL_S)
        except guest_control.AgentBusy as error:
            raise HostFault(f"the desktop {desktop_id} is busy: {error}", hint="snapshot between two calls") from error
        except guest_control.AgentTimeout as error:
            if (await self._ask("health", desktop_id=desktop_id)).get("frozen"):
                raise HostFault(f"the desktop {desktop_id} is frozen", hint="thaw it first") from error
            raise DesktopGone(f"the desktop {desktop_id} does not answer: {error}") from error
        self._connections.shut_down(desktop_id)
        if desktop_id in self._egress_proxies:
            self._egress_proxies[desktop_id].close_connections()
        saved = await self._ask("checkpoint", desktop_id=desktop_id, snapshot_id=snapshot_id)
        return SnapshotInfo(
            snapshot_id,
            saved["bytes"],
            saved["image_digest"],
            files_bytes=saved["files_bytes"],
            pause_s=saved["pause_s"],
            processes=saved["processes"],
        )

    async def restore(self, desktop_id: str, snapshot_id: str) -> None:
        """Bring a copy to life under this id and wait for its agent."""
        self._connections.shut_down(desktop_id)
        self._close_proxy(desktop_id)
        await self._ask("restore", desktop_id=desktop_id, snapshot_id=snapshot_id)
        try:
            await self._open_proxy(desktop_id)
            reply = await self._notify_restored(desktop_id)
            if not reply.get("ready"):
                raise guest_control.AgentTimeout("its session is not ready")
        except guest_control.AgentTimeout as error:
            await self.destroy(desktop_id)
            raise SnapshotBroken(f"the copy of {snapshot_id} does not answer: {error}") from error
        except BaseException:  # cancelled, too, no half-restored desktop may stay; raised again
            await asyncio.shield(self.destroy(desktop_id))
            raise

    async def freeze(self, desktop_id: str) -> None:
        """See `base.SupportsFreeze`."""
        await self._ask("freeze", desktop_id=desktop_id)

    async def thaw(self, desktop_id: str) -> None:
        """See `base.SupportsFreeze`."""
        await self._ask("thaw", desktop_id=desktop_id)

    async def evidence(self, desktop_id: str, queries: Sequence[Mapping[str, Any]]) -> bytes:
        """See `base.SupportsHostEvidence`; the helper reads the frozen desktop through the root directory of its init."""
        descriptor = await self._ask("evidence", desktop_id=desktop_id, queries=list(queries))
        return await asyncio.to_thread(_read_memory_file, descriptor)

    async def destroy(self, desktop_id: str) -> None:
        """Remove the desktop; idempotent."""
        self._connections.shut_down(desktop_id)
        self._close_proxy(desktop_id)
        await self._ask("destroy", desktop_id=desktop_id)

    async def quarantine(self, snapshot_id: str) -> str | None:
        """See `base.SupportsQuarantine`; the files are in the helper's own mounts, which root reaches through its /proc entry."""
        place: str | None = (await self._ask("quarantine", snapshot_id=snapshot_id))["path"]
        return place

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove the snapshot; idempotent."""
        await self._ask("delete_snapshot", snapshot_id=snapshot_id)

    async def dial(self, desktop_id: str, port: DialPort) -> socket.socket:
        """A connected socket from inside the desktop's network."""
        connection = await self._ask("dial", desktop_id=desktop_id, port=port)
        assert isinstance(connection, socket.socket)
        return self._connections.add(desktop_id, connection)

    async def health(self, desktop_id: str) -> DesktopHealth:
        """The host's view and, while the desktop runs, the agent's."""
        return await check_health(
            partial(self._host_counters, desktop_id),
            partial(self.dial, desktop_id, CONTROL),
            agent_timeout_s=HEALTH_TIMEOUT_S,
        )

    async def _host_counters(self, desktop_id: str) -> dict[str, Any]:
        """Read the helper's counters. Raises `DesktopGone` when there is no container of this id."""
        counters: dict[str, Any] = await self._ask("health", desktop_id=desktop_id)
        if counters["state"] == "absent":
            raise DesktopGone(f"there is no desktop {desktop_id}")
        return counters

    async def inventory(self) -> Inventory:
        """Everything the helper has."""
        counters = await self._ask("inventory")
        return Inventory(tuple(counters["desktops"]), tuple(counters["snapshots"]))

    async def reap(self, keep: set[str]) -> Sequence[str]:
        """Remove what is not to be kept."""
        removed: list[str] = (await self._ask("reap", keep=sorted(keep)))["removed"]
        return removed

    async def _ask(self, verb: str, **arguments: Any) -> Any:
        return await self._hostd.request(verb, timeout_s=_VERB_TIMEOUT_S, **arguments)

    async def _open_proxy(self, desktop_id: str) -> None:
        """Serve the named destinations to a desktop, if there are any."""
        if not self._allowed:
            return
        listener = await self._ask("listen", desktop_id=desktop_id, port=PROXY_PORT)
        proxy = self._egress_proxies[desktop_id] = EgressProxy(self._allowed, self._egress_networks)
        await proxy.open(listener)

    def _close_proxy(self, desktop_id: str) -> None:
        proxy = self._egress_proxies.pop(desktop_id, None)
        if proxy is not None:
            proxy.close()

    async def _wait_booted(self, desktop_id: str) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        words = "no answer"
        while time.monotonic() < deadline:
            try:
                reply = await guest_control.health(partial(self.dial, desktop_id, CONTROL), HEALTH_TIMEOUT_S)
                if reply.get("ready"):
                    return
                words = "its session is not up yet"
            except guest_control.AgentTimeout as error:
                words = str(error)
                counters = await self._ask("health", desktop_id=desktop_id)
                if counters["state"] != "running":
                    raise HostFault(
                        f"the desktop {desktop_id} ended while booting ({counters.get('exit_status')})"
                    ) from error
            await asyncio.sleep(_BOOT_POLL_S)
        raise HostFault(f"the desktop {desktop_id} was not ready in {BOOT_TIMEOUT_S:.0f} s: {words}")

    async def _notify_restored(self, desktop_id: str) -> dict[str, Any]:
        """The agent's answer to `/v1/restored`; its socket answers as soon as the copy runs."""
        return await guest_control.notify_restored(
            partial(self.dial, desktop_id, CONTROL), self._wall_clock(), RESTORED_TIMEOUT_S
        )


def _read_memory_file(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        if (nbytes := os.fstat(descriptor).st_size) > MAX_EVIDENCE_NBYTES:
            raise HostFault(
                f"dart-hostd handed over {nbytes} bytes of evidence, and {MAX_EVIDENCE_NBYTES} are its limit"
            )
        file.seek(0)
        return file.read()
