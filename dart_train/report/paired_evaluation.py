"""Did the policy learn: paired statistics of the same evaluation before and after training.

Role: pure functions from per-episode rewards to gains with confidence bounds, per family and in all. Rule: episodes are paired by their
evaluation item (task and repeat); an item without a verdict on either side is left out and counted. Non-goals: no I/O, no drawing.

Source of the bound: for n paired differences d_i with mean m and sample standard deviation s, the two-sided 95 % interval is
m ± 1.96 · s / sqrt(n) (normal approximation; n is 300 in the demo), within the ±100 points that a gain can be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dart_train.data_manager.catalog import task_family

Z_95 = 1.959963984540054

EvalItem = tuple[str, int]
"""Task id and repeat."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Success before and after in percent, the gain in points with its paired 95 % interval."""

    episodes: int
    before_percent: float
    after_percent: float
    gain_points: float
    gain_lower_points: float
    gain_upper_points: float


@dataclass(frozen=True, slots=True)
class PairedEvaluation:
    """The whole comparison. `unpaired` items had no verdict on one side."""

    overall: Gain
    families: Mapping[str, Gain]
    unpaired: int

    def learned(self, min_gain_points: float) -> bool:
        """True where the gain exceeds the asked minimum and its lower bound is above zero."""
        return self.overall.gain_points > min_gain_points and self.overall.gain_lower_points > 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def compare_evaluations(
    before: Mapping[EvalItem, float | None], after: Mapping[EvalItem, float | None]
) -> PairedEvaluation | None:
    """Pair two evaluations of the same items; None when no item has a verdict on both sides."""
    items = sorted(set(before) | set(after))
    pairs: dict[EvalItem, tuple[float, float]] = {}
    for item in items:
        first, second = before.get(item), after.get(item)
        if first is not None and second is not None:
            pairs[item] = (first, second)
    if not pairs:
        return None
    families = sorted({task_family(task_id) for task_id, _ in pairs})
    return PairedEvaluation(
        overall=gain(list(pairs.values())),
        families={
            name: gain([pair for (task_id, _), pair in pairs.items() if task_family(task_id) == name])
            for name in families
        },
        unpaired=len(items) - len(pairs),
    )


def gain(pairs: list[tuple[float, float]]) -> Gain:
    """Mean success before and after, and the paired interval of the difference, all in percent or points."""
    n = len(pairs)
    differences = [after - before for before, after in pairs]
    mean = sum(differences) / n
    variance = sum((d - mean) ** 2 for d in differences) / (n - 1) if n > 1 else math.inf
    half_width = Z_95 * math.sqrt(variance / n)
    return Gain(
        episodes=n,
        before_percent=100.0 * sum(before for before, _ in pairs) / n,
        after_percent=100.0 * sum(after for _, after in pairs) / n,
        gain_points=100.0 * mean,
        gain_lower_points=100.0 * max(-1.0, mean - half_width),
        gain_upper_points=100.0 * min(1.0, mean + half_width),
    )
