"""How much memory a benchmark takes from its host. Rule: the host's own count, tmpfs included; what ran before does not count."""

from __future__ import annotations

import threading
from pathlib import Path

SAMPLE_EVERY_S = 0.5
GIB = 2**20
"""KiB per GiB: the unit of /proc/meminfo."""


def used_kib() -> int:
    """Memory of the host that is not available any more, in KiB; tmpfs counts."""
    found = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        key, value = line.split(":")
        found[key] = int(value.split()[0])
    return found["MemTotal"] - found["MemAvailable"]


class MemoryPeak:
    """Samples the host's used memory in a thread; `peak_gib` is the highest rise above the start."""

    def __init__(self) -> None:
        self.peak_gib = 0.0
        self._base_kib = used_kib()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S):
            self.peak_gib = max(self.peak_gib, (used_kib() - self._base_kib) / GIB)
