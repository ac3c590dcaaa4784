"""Whether the host bears one more desktop: memory, disk and load as they are now, not as somebody once reckoned.

Rule: before a desktop is made that adds to those that live, its host must keep a reserve of memory and of room for snapshots beside what a
desktop of this farm has been seen to use, those on their way included; and its processors must not be swamped. What is refused waits, with
the reason in one sentence. The readings come from a `Host`, so that tests say what there is.
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
USUAL_MEMORY_BYTES = 256 * MIB
"""What a desktop is reckoned to use before one was looked at; more than 40 % of what are seen use."""
USUAL_FILES_BYTES = 64 * MIB
"""What a desktop is reckoned to write."""
FRESH_S = 0.25
"""Readings are taken again after this long."""


@dataclass(frozen=True, slots=True)
class HostReadings:
    """A host at one moment. Bytes; `load`: processes that ran or waited for a processor or a disk, averaged over a minute;
    `pressure`: percent of the last ten seconds in which some process waited for a processor, None where the kernel does not say."""

    memory_available_bytes: int
    memory_total_bytes: int
    files_free_bytes: int
    files_in_memory: bool
    """The snapshot directory lies in memory: what is written there is taken from what is available."""
    load: float
    processors: int
    pressure: float | None = None


class Host(Protocol):
    """Where readings come from."""

    def read(self) -> HostReadings: ...


class SystemHost:
    """This machine, as the kernel and the control group of this process tell. `place`: the snapshot directory."""

    def __init__(self, place: Path, root: Path = Path("/")) -> None:
        self._place = place
        self._root = root

    def read(self) -> HostReadings:
        memory = _numbers(self._root / "proc/meminfo")
        total, available = memory.get("MemTotal:", 0) * 1024, memory.get("MemAvailable:", 0) * 1024
        limit, used = self._own_limit()
        if limit is not None and limit < total:
            total, available = limit, min(available, max(0, limit - used))
        place = self._place
        while not place.exists():
            place = place.parent
        return HostReadings(
            memory_available_bytes=available,
            memory_total_bytes=total,
            files_free_bytes=shutil.disk_usage(place).free,
            files_in_memory=self._in_memory(place),
            load=os.getloadavg()[0],
            processors=len(os.sched_getaffinity(0)),
            pressure=self._pressure(),
        )

    def _own_limit(self) -> tuple[int | None, int]:
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

    def _in_memory(self, place: Path) -> bool:
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
    """Says yes, or why not. `limited`: whether desktops take anything of this host; where they do not, the answer is always yes."""

    def __init__(
        self,
        host: Host,
        clock: Clock,
        *,
        limited: Callable[[], bool],
        seen_memory_bytes: Callable[[], int],
        reserve_memory_bytes: int,
        reserve_files_bytes: int,
        most_load: float,
    ) -> None:
        self._host = host
        self._clock = clock
        self._limited = limited
        self._seen_memory_bytes = seen_memory_bytes
        self._reserve_memory_bytes = reserve_memory_bytes
        self._reserve_files_bytes = reserve_files_bytes
        self._most_load = most_load
        self._latest: HostReadings | None = None
        self._latest_s = 0.0
        self.refusal: str | None = None
        """Why the latest desktop that was wanted could not be begun; None when it could."""

    def readings(self) -> HostReadings | None:
        """The host as it is, at most a moment old; None where desktops take nothing of it."""
        if not self._limited():
            return None
        now_s = self._clock.monotonic()
        if self._latest is None or now_s - self._latest_s >= FRESH_S:
            self._latest, self._latest_s = self._host.read(), now_s
        return self._latest

    def admits(self, coming: int, *, ahead: bool) -> bool:
        """Whether one desktop more may be begun beside `coming` ones that are on their way. One that is made `ahead` of need must leave
        room for another that somebody asks for."""
        reason = self._reason(coming + ahead)
        if reason is not None or not ahead:
            self.refusal = reason
        return reason is None

    def _reason(self, coming: int) -> str | None:
        now = self.readings()
        if now is None:
            return None
        memory = max(USUAL_MEMORY_BYTES, self._seen_memory_bytes())
        needed = self._reserve_memory_bytes + (coming + 1) * (memory + USUAL_FILES_BYTES * now.files_in_memory)
        if now.memory_available_bytes < needed:
            return (
                f"the host is short of memory: {now.memory_available_bytes // MIB} MiB available, {needed // MIB} MiB needed "
                f"for one desktop more and the reserve"
            )
        needed = self._reserve_files_bytes + (coming + 1) * USUAL_FILES_BYTES
        if now.files_free_bytes < needed:
            return (
                f"the host is short of room for what desktops write: {now.files_free_bytes // MIB} MiB free, "
                f"{needed // MIB} MiB needed for one desktop more and the reserve"
            )
        if now.load > self._most_load * now.processors:
            return f"the host is overloaded: a load of {now.load:.0f} on {now.processors} processors"
        return None


def estimate_capacity(now: HostReadings, *, reserve_memory_bytes: int, reserve_files_bytes: int) -> int:
    """How many desktops of the usual size this host bears beside the reserve, when none lives."""
    each = USUAL_MEMORY_BYTES + USUAL_FILES_BYTES * now.files_in_memory
    by_memory = (now.memory_available_bytes - reserve_memory_bytes) // each
    by_files = (now.files_free_bytes - reserve_files_bytes) // USUAL_FILES_BYTES
    return max(0, min(by_memory, by_files))
