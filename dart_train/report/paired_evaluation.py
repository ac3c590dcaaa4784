"""Whether the policy learned: paired statistics of the same evaluation before and after training.

Role: pure functions from rewards of episodes to gains with confidence intervals, per family and in all. Rule: episodes are paired by their
evaluation item (task and repeat); an item without a reward in one of the evaluations is left out and counted. Non-goals: I/O, drawing.

Source of the interval: for n paired differences d_i with mean m and sample standard deviation s, the two-sided 95 % interval is
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
    """Success before and after, and the gain with its paired 95 % interval.

    Attributes:
        episodes: Number of paired episodes.
        before_percent: Mean reward before training, in percent.
        after_percent: Mean reward after training, in percent.
        gain_points: Difference in percentage points.
        gain_lower_points: Lower end of the 95 % interval.
        gain_upper_points: Upper end of the 95 % interval.
    """

    episodes: int
    before_percent: float
    after_percent: float
    gain_points: float
    gain_lower_points: float
    gain_upper_points: float


@dataclass(frozen=True, slots=True)
class PairedEvaluation:
    """The comparison of two evaluations.

    Attributes:
        overall: The gain over all families.
        families: The gain by family.
        unpaired: Items without a reward in one of the evaluations.
    """

    overall: Gain
    families: Mapping[str, Gain]
    unpaired: int

    def learned(self, min_gain_points: float) -> bool:
        """Decide whether the policy learned.

        Args:
            min_gain_points: Gain in points that must be exceeded.

        Returns:
            True where the gain exceeds it and the lower end of the interval is above zero.
        """
        return self.overall.gain_points > min_gain_points and self.overall.gain_lower_points > 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def compare_evaluations(
    before: Mapping[EvalItem, float | None], after: Mapping[EvalItem, float | None]
) -> PairedEvaluation | None:
    """Pair two evaluations of the same items.

    Args:
        before: Rewards by item before training; None: no reward.
        after: Rewards by item after training; None: no reward.

    Returns:
        The comparison, None where no item has a reward in both.
    """
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
    """Compute mean success before and after, and the paired interval of the difference.

    Args:
        pairs: Rewards before and after, in [0, 1].

    Returns:
        The gain, in percent and points.
    """
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
