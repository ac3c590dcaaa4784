"""Whether the host bears one more desktop: memory, disk and load as they are now, not as somebody once reckoned.

Rule: before a desktop is made that adds to those that live, its host must keep a reserve of memory and of room for snapshots beside what a
desktop of this farm has been seen to use, those on their way included; and its processors must not be swamped. What is refused waits, with
the reason in one sentence. The readings come from a `HostMonitor`, so that tests say what there is.
Non-goals: desktops that take another's place (a reset), the limits of one desktop, the byte quota of snapshots.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dart_server.wire import Clock

MIB = 1024**2
TYPICAL_MEMORY_BYTES = 256 * MIB
"""What a desktop is reckoned to use before one was looked at; more than 40 % of what are seen use."""
TYPICAL_DISK_BYTES = 64 * MIB
"""What a desktop is reckoned to write."""
READING_MAX_AGE_S = 0.25
"""Readings are taken again after this long."""


@dataclass(frozen=True, slots=True)
class HostReadings:
    """A host at one moment.

    Bytes; `load`: processes that ran or waited for a processor or a disk, averaged over a minute; `pressure`: percent of the last ten
    seconds in which some process waited for a processor, None where the kernel does not say.
    """

    memory_available_bytes: int
    memory_total_bytes: int
    disk_free_bytes: int
    files_on_tmpfs: bool
    """The snapshot directory lies in memory: what is written there is taken from what is available."""
    load: float
    processors: int
    pressure: float | None = None


class HostMonitor(Protocol):
    """Where readings come from."""

    def read(self) -> HostReadings: ...


class SystemHostMonitor:
    """This machine, as the kernel and the control group of this process tell. `snapshot_dir`: the snapshot directory."""

    def __init__(self, snapshot_dir: Path, root: Path = Path("/")) -> None:
        self._snapshot_dir = snapshot_dir
        self._root = root

    def read(self) -> HostReadings:
        memory = _numbers(self._root / "proc/meminfo")
        total, available = memory.get("MemTotal:", 0) * 1024, memory.get("MemAvailable:", 0) * 1024
        limit, used = self._cgroup_memory_limit()
        if limit is not None and limit < total:
            total, available = limit, min(available, max(0, limit - used))
        place = self._snapshot_dir
        while not place.exists():
            place = place.parent
        return HostReadings(
            memory_available_bytes=available,
            memory_total_bytes=total,
            disk_free_bytes=shutil.disk_usage(place).free,
            files_on_tmpfs=self._is_on_tmpfs(place),
            load=os.getloadavg()[0],
            processors=len(os.sched_getaffinity(0)),
            pressure=self._pressure(),
        )

    def _cgroup_memory_limit(self) -> tuple[int | None, int]:
        """(limit, use) of the memory of this process's own control group, where it is visible at the top: in a container."""
        top = self._root / "sys/fs/cgroup"
        for limit, use in (
            (top / "memory.max", top / "memory.current"),
            (top / "memory/memory.limit_in_bytes", top / "memory/memory.usage_in_bytes"),
        ):
            try:
                return int(limit.read_text(encoding="ascii")), int(use.read_text(encoding="ascii"))
            except (OSError, ValueError):
                continue
        return None, 0

    def _is_on_tmpfs(self, place: Path) -> bool:
        try:
            lines = (self._root / "proc/mounts").read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        mounts = [words for words in map(str.split, lines) if place.resolve().is_relative_to(words[1])]
        return max(mounts, key=lambda words: len(words[1]), default=["", "/", ""])[2] in ("tmpfs", "ramfs")

    def _pressure(self) -> float | None:
        try:
            words = (self._root / "proc/pressure/cpu").read_text(encoding="ascii").split()
            return float(words[1].removeprefix("avg10="))
        except (OSError, ValueError, IndexError):
            return None


def _numbers(path: Path) -> dict[str, int]:
    """`Name: number` lines."""
    found = {}
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            words = line.split()
            if len(words) >= 2 and words[1].isdigit():
                found[words[0]] = int(words[1])
    except OSError:
        return {}
    return found


class Admission:
    """Says yes, or why not. `uses_host`: whether desktops take anything of this host; where they do not, the answer is always yes."""

    def __init__(
        self,
        host: HostMonitor,
        clock: Clock,
        *,
        uses_host: Callable[[], bool],
        measured_memory_bytes: Callable[[], int],
        reserve_memory_bytes: int,
        reserve_files_bytes: int,
        max_load_per_cpu: float,
    ) -> None:
        self._host = host
        self._clock = clock
        self._uses_host = uses_host
        self._measured_memory_bytes = measured_memory_bytes
        self._reserve_memory_bytes = reserve_memory_bytes
        self._reserve_files_bytes = reserve_files_bytes
        self._max_load_per_cpu = max_load_per_cpu
        self._latest: HostReadings | None = None
        self._latest_s = 0.0
        self.refusal: str | None = None
        """Why the latest desktop that was wanted could not be begun; None when it could."""

    def readings(self) -> HostReadings | None:
        """The host as it is, at most a moment old; None where desktops take nothing of it."""
        if not self._uses_host():
            return None
        now_s = self._clock.monotonic()
        if self._latest is None or now_s - self._latest_s >= READING_MAX_AGE_S:
            self._latest, self._latest_s = self._host.read(), now_s
        return self._latest

    def admits(self, pending: int, *, prewarm: bool) -> bool:
        """Whether one desktop more may be begun beside `pending` ones that are on their way.

        One that is made `prewarm` must leave room for another that somebody asks for.
        """
        reason = self._reason(pending + prewarm)
        if reason is not None or not prewarm:
            self.refusal = reason
        return reason is None

    def _reason(self, pending: int) -> str | None:
        now = self.readings()
        if now is None:
            return None
        memory = max(TYPICAL_MEMORY_BYTES, self._measured_memory_bytes())
        needed = self._reserve_memory_bytes + (pending + 1) * (memory + TYPICAL_DISK_BYTES * now.files_on_tmpfs)
        if now.memory_available_bytes < needed:
            return (
                f"the host is short of memory: {now.memory_available_bytes // MIB} MiB available, {needed // MIB} MiB needed "
                f"for one desktop more and the reserve"
            )
        needed = self._reserve_files_bytes + (pending + 1) * TYPICAL_DISK_BYTES
        if now.disk_free_bytes < needed:
            return (
                f"the host is short of room for what desktops write: {now.disk_free_bytes // MIB} MiB free, "
                f"{needed // MIB} MiB needed for one desktop more and the reserve"
            )
        if now.load > self._max_load_per_cpu * now.processors:
            return f"the host is overloaded: a load of {now.load:.0f} on {now.processors} processors"
        return None


def estimate_capacity(now: HostReadings, *, reserve_memory_bytes: int, reserve_files_bytes: int) -> int:
    """How many desktops of the usual size this host bears beside the reserve, when none lives."""
    each = TYPICAL_MEMORY_BYTES + TYPICAL_DISK_BYTES * now.files_on_tmpfs
    by_memory = (now.memory_available_bytes - reserve_memory_bytes) // each
    by_files = (now.disk_free_bytes - reserve_files_bytes) // TYPICAL_DISK_BYTES
    return max(0, min(by_memory, by_files))
