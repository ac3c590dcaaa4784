"""What one desktop takes of its host: memory, and what it has written to its disk.

Role: `pss_mib` and `written_mib` of a desktop of any provider, and `measure_weight` of one that is idle. Rule: the host's own counts are
read, so it runs as root; a desktop's processes are found by the marks that its provider gives them. Non-goals: what images and snapshots
take, which are not one desktop's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_server.providers.docker import engine
from dart_server.wire import DesktopShape, SettleSpec

CGROUPS = Path("/sys/fs/cgroup")
CLAIM_S = 400.0
AT_REST = SettleSpec(quiet_ms=1_000, cap_ms=30_000)


async def measure_weight(farm: AsyncFarmClient, shape: DesktopShape, provider: str) -> dict[str, Any]:
    """`pss_per_desktop_mib` and `disk_per_desktop_mib` of an idle desktop."""
    lease = await farm.lease(shape, ttl_s=300.0, wait_s=CLAIM_S)
    try:
        await lease.step([], AT_REST)
        return {
            "pss_per_desktop_mib": round(pss_mib(provider, lease.desktop_id), 1),
            "disk_per_desktop_mib": round(await written_mib(provider, lease), 3),
        }
    finally:
        await lease.release()


def pss_mib(provider: str, desktop_id: str) -> float:
    """Proportional set size of all processes of a desktop, in MiB: pages that copies share count once among them."""
    total_kib = 0
    for pid in pids_of(provider, desktop_id):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Pss:"):
                    total_kib += int(line.split()[1])
    return total_kib / 1024


async def written_mib(provider: str, lease: AsyncLease) -> float:
    """What a desktop has written over its image, in MiB; a machine's disk holds its snapshots, too."""
    if provider == "docker":
        return float(_container(lease.desktop_id, size=True).get("SizeRw", 0)) / 2**20
    if provider == "libvirt":
        (pid,) = pids_of(provider, lease.desktop_id)
        return sum(os.stat(path).st_blocks * 512 for path in set(_disks(pid))) / 2**20
    reply = await lease.exec(["df", "--block-size=1", "--output=used", "/"])
    return int(reply.stdout.split()[-1]) / 2**20


def pids_of(provider: str, desktop_id: str) -> set[int]:
    """Ids of a desktop's processes on the host. Raises LookupError when there are none."""
    if provider == "libvirt":
        found = set(_machines(f"-{desktop_id},"))
    else:
        mark = _container(desktop_id)["Id"] if provider == "docker" else desktop_id
        members = CGROUPS.glob(f"**/*{mark}*/**/cgroup.procs")
        found = {int(pid) for path in members for pid in path.read_text(encoding="ascii").split()}
    if not found:
        raise LookupError(f"no process of the desktop {desktop_id} was found")
    return found


def _container(desktop_id: str, *, size: bool = False) -> dict[str, Any]:
    """The engine's entry of a desktop."""
    client = engine.connect()
    try:
        (entry,) = client.api.containers(filters={"name": f"-{desktop_id}$"}, size=size)
    finally:
        client.close()
    assert isinstance(entry, dict)
    return entry


def _machines(mark: str) -> Iterator[int]:
    """Processes of virtual machines with a word in their command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # the process has ended
            if words.startswith("/usr/bin/qemu-system") and mark in words:
                yield int(entry.name)


def _disks(pid: int) -> Iterator[str]:
    """Disk images that a process may write."""
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        path = os.readlink(f"/proc/{pid}/fd/{entry.name}")
        flags = next(line for line in entry.read_text(encoding="ascii").splitlines() if line.startswith("flags:"))
        if path.endswith(".qcow2") and int(flags.split()[1], 8) & os.O_ACCMODE:
            yield path
