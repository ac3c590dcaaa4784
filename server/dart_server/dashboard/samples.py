"""Numbers of the farm over time, for the page's charts: one sample every few seconds, in a ring.

Rule: a sample is plain numbers and None where nothing happened; latencies are those of what ended since the sample before. The host's
numbers are those of the machine that the farm runs on. Non-goals: metrics that others collect (`metrics`, Prometheus).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

INTERVAL_S = 5.0
SAMPLES = 720
"""One hour."""
MAX_TIMINGS = 2000
"""Timings kept between two samples; more are not needed for a quantile."""
KINDS = ("step", "claim", "reset")


@dataclass(slots=True)
class Timings:
    """Durations in seconds, by kind, since they were last taken away."""

    latest: dict[str, deque[float]] = field(default_factory=lambda: {kind: deque(maxlen=MAX_TIMINGS) for kind in KINDS})
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def add(self, kind: str, seconds: float) -> None:
        """One more of a kind."""
        self.latest[kind].append(seconds)
        self.counts[kind] += 1

    def drain(self) -> dict[str, float | int | None]:
        """For each kind `_n`, and `_p50_ms` and `_p99_ms` (None where there was none); counting begins anew."""
        numbers: dict[str, float | int | None] = {}
        for kind in KINDS:
            ordered = sorted(self.latest[kind])
            numbers[f"{kind}_n"] = self.counts[kind]
            for percent in (50, 99):
                numbers[f"{kind}_p{percent}_ms"] = _quantile_ms(ordered, percent / 100)
            self.latest[kind].clear()
            self.counts[kind] = 0
        return numbers


def _quantile_ms(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 2)


def host_metrics(disk: Path) -> dict[str, float | int]:
    """CPU since the last call, memory, and the disk that holds `disk`; bytes and percent."""
    memory, room = psutil.virtual_memory(), psutil.disk_usage(str(disk))
    return {
        "cpu_percent": psutil.cpu_percent(),
        "cpus": psutil.cpu_count() or 1,
        "load_1m": round(psutil.getloadavg()[0], 2),
        "memory_used_bytes": memory.total - memory.available,
        "memory_total_bytes": memory.total,
        "disk_used_bytes": room.total - room.free,
        "disk_total_bytes": room.total,
    }


class Samples:
    """The ring."""

    def __init__(self, timings: Timings, now: Callable[[], dict[str, Any]]) -> None:
        self._timings = timings
        self._now = now
        self._ring: deque[dict[str, Any]] = deque(maxlen=SAMPLES)
        self._number = 0

    def take(self) -> None:
        """One more sample."""
        self._number += 1
        self._ring.append({"n": self._number, **self._now(), **self._timings.drain()})

    def since(self, number: int) -> list[dict[str, Any]]:
        """The samples after one, oldest first."""
        return [sample for sample in self._ring if sample["n"] > number]
