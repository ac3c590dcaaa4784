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
FORGET_THRESHOLD = 0.1
MIN_PREDICTED_SCORE = 1.2
"""A target with less than this was asked for once, or so long ago that it is not expected again."""
MAX_ENTRIES = 1000
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

    def record(self, target: DesktopTarget) -> None:
        """A claim or a reset asked for this."""
        now_s = self._clock.monotonic()
        count = self._counts.setdefault(target, _Count(0.0, now_s))
        count.score = _decayed(count, now_s) + 1.0
        count.at_s = now_s
        if len(self._counts) > MAX_ENTRIES:
            del self._counts[min(self._counts, key=lambda known: _decayed(self._counts[known], now_s))]

    def expected(self, waiting: Iterable[DesktopTarget] = ()) -> dict[DesktopTarget, float]:
        """Scores of what will probably be asked for next: what came again and again, and what `waiting` claims want."""
        now_s = self._clock.monotonic()
        scores = {target: _decayed(count, now_s) for target, count in self._counts.items()}
        for target in [target for target, score in scores.items() if score < FORGET_THRESHOLD]:
            del self._counts[target]
        found = {target: score for target, score in scores.items() if score >= MIN_PREDICTED_SCORE}
        for target in waiting:
            found[target] = found.get(target, 0.0) + 1.0
        return found


def _decayed(count: _Count, now_s: float) -> float:
    return count.score * math.exp2((count.at_s - now_s) / HALF_LIFE_S)
