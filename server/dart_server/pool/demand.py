"""What has been asked for lately: the wants of claims and resets, counted with a half-life, for making copies ahead of need.

Rule: counting only, on the injected clock, for a bounded number of wants. One that was asked for once is not predicted: it has to come
again. Non-goals: how many copies are kept (`pool.plan`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dart_server.records import DesktopTarget
from dart_server.wire import Clock

HALF_LIFE_S = 300.0
FORGOTTEN_BELOW = 0.1
AGAIN = 1.2
"""A want with less than this was asked for once, or so long ago that it is not expected again."""
REMEMBERED = 1000
"""Wants; the least asked for are forgotten first."""


@dataclass(slots=True)
class _Count:
    score: float
    at_s: float


class Demand:
    """Recent wants of one farm."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[DesktopTarget, _Count] = {}

    def asked(self, want: DesktopTarget) -> None:
        """A claim or a reset asked for this."""
        now_s = self._clock.monotonic()
        count = self._counts.setdefault(want, _Count(0.0, now_s))
        count.score = _decayed(count, now_s) + 1.0
        count.at_s = now_s
        if len(self._counts) > REMEMBERED:
            del self._counts[min(self._counts, key=lambda known: _decayed(self._counts[known], now_s))]

    def expected(self, waiting: Iterable[DesktopTarget] = ()) -> dict[DesktopTarget, float]:
        """Scores of what will probably be asked for next: what came again and again, and what `waiting` claims want."""
        now_s = self._clock.monotonic()
        scores = {want: _decayed(count, now_s) for want, count in self._counts.items()}
        for want in [want for want, score in scores.items() if score < FORGOTTEN_BELOW]:
            del self._counts[want]
        found = {want: score for want, score in scores.items() if score >= AGAIN}
        for want in waiting:
            found[want] = found.get(want, 0.0) + 1.0
        return found


def _decayed(count: _Count, now_s: float) -> float:
    return count.score * math.exp2((count.at_s - now_s) / HALF_LIFE_S)
