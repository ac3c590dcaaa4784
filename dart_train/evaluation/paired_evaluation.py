"""Whether the policy learned: paired statistics of the same evaluation before and after training.

Role: pure functions from rewards of episodes to gains with confidence intervals, per family and in all. Rule: episodes are paired by their
evaluation item (task and repeat); an item without a reward in one of the evaluations is left out and counted. Non-goals: I/O, drawing.

Sources of the two-sided 95 % interval: where every reward is 0 or 1, the score interval of T. Tango (1998), Statistics in Medicine 17,
891-908, which has a width where no pair changed, too. Other rewards: for n paired differences with mean m and sample standard deviation s,
m ± 1.96 · s / sqrt(n) within ±1 (normal approximation), and no interval where fewer than `MIN_CHANGED` pairs changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from dart_train.data_manager.catalog import task_family

Z_95 = 1.959963984540054

MIN_CHANGED = 10
"""Pairs with different rewards that the normal approximation needs."""

EvalItem = tuple[str, int]
"""Task id and repeat."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean reward before and after, and the gain with its paired 95 % interval.

    Attributes:
        episodes: Number of paired episodes.
        before_percent: Mean reward before training, in percent.
        after_percent: Mean reward after training, in percent.
        gain_points: Difference in percentage points.
        gain_lower_points: Lower end of the 95 % interval; None where too few pairs changed for one.
        gain_upper_points: Upper end of the 95 % interval; None where too few pairs changed for one.
    """

    episodes: int
    before_percent: float
    after_percent: float
    gain_points: float
    gain_lower_points: float | None
    gain_upper_points: float | None

    @property
    def above_chance(self) -> bool:
        """Whether the interval lies above 0."""
        return self.gain_lower_points is not None and self.gain_lower_points > 0.0

    def describe_interval(self) -> str:
        """Format the interval, or say why there is none.

        Returns:
            Words for a table or a sentence.
        """
        if self.gain_lower_points is None or self.gain_upper_points is None:
            return "no 95 % interval: too few tasks changed"
        return f"95 % interval {self.gain_lower_points:+.1f} to {self.gain_upper_points:+.1f}"


@dataclass(frozen=True, slots=True)
class PairedEvaluation:
    """The comparison of two evaluations.

    Attributes:
        overall: The gain over all families.
        families: The gain by family.
        unpaired: Items without a reward in one of the evaluations.
        partial: Whether there is a reward between 0 and 1. The percentages are then mean rewards, and not shares of solved episodes.
    """

    overall: Gain
    families: Mapping[str, Gain]
    unpaired: int
    partial: bool = False

    @property
    def measure(self) -> str:
        """What the percentages are."""
        return "mean reward" if self.partial else "success"

    def learned(self, min_gain_points: float) -> bool:
        """Decide whether the policy learned.

        Args:
            min_gain_points: Gain in points that must be exceeded.

        Returns:
            True where the gain exceeds it and the lower end of the interval is above zero.
        """
        return self.overall.gain_points > min_gain_points and self.overall.above_chance

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
        partial=any(reward not in (0.0, 1.0) for pair in pairs.values() for reward in pair),
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
    lower, upper = _interval(pairs, differences)
    return Gain(
        episodes=n,
        before_percent=100.0 * sum(before for before, _ in pairs) / n,
        after_percent=100.0 * sum(after for _, after in pairs) / n,
        gain_points=100.0 * sum(differences) / n,
        gain_lower_points=None if lower is None else 100.0 * lower,
        gain_upper_points=None if upper is None else 100.0 * upper,
    )


def tango_interval(gained: int, lost: int, pairs: int, z: float = Z_95) -> tuple[float, float]:
    """Compute Tango's score interval of the difference of two paired proportions.

    For a difference d, let q be the likeliest share of lost pairs: the larger root of
    2n q² + ((2n - gained + lost) d - gained - lost) q - lost d (1 - d) = 0. The interval has all d with |T(d)| ≤ z, where
    T(d) = (gained - lost - n d) / sqrt(n (2 q + d (1 - d))) falls with d. With gained = lost = 0 it is ±z² / (n + z²).

    Args:
        gained: Pairs with a failure before and a success after.
        lost: Pairs with a success before and a failure after.
        pairs: All pairs, n, at least 1.
        z: Quantile of the standard normal distribution.

    Returns:
        Lower and upper end, in [-1, 1].
    """
    estimate = (gained - lost) / pairs

    def score(difference: float) -> float:
        b = (2 * pairs - gained + lost) * difference - gained - lost
        root = math.sqrt(max(0.0, b * b + 8 * pairs * lost * difference * (1 - difference)))
        variance = pairs * ((root - b) / (2 * pairs) + difference * (1 - difference))
        distance = pairs * (estimate - difference)
        return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)

    def end(outside: float) -> float:
        inside = estimate
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if abs(score(middle)) <= z else (inside, middle)
        return inside

    return end(-1.0), end(1.0)


def _interval(pairs: list[tuple[float, float]], differences: list[float]) -> tuple[float | None, float | None]:
    """The 95 % interval of the mean difference."""
    n = len(pairs)
    if all(reward in (0.0, 1.0) for pair in pairs for reward in pair):
        return tango_interval(differences.count(1.0), differences.count(-1.0), n)
    if sum(difference != 0.0 for difference in differences) < MIN_CHANGED:
        return None, None
    mean, half_width = fmean(differences), Z_95 * stdev(differences) / math.sqrt(n)
    return max(-1.0, mean - half_width), min(1.0, mean + half_width)
