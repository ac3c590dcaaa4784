"""Intervals of success rates, of pass@k, and of means over training seeds.

Role: pure functions from rewards to an estimate with a two-sided 95 % interval. Rule: the unit is the task; repeats of one task are not
independent, so they never narrow an interval as more tasks would. Non-goals: paired gains (`dart_train.evaluation.paired_evaluation`), I/O.

Sources: the score interval is E. B. Wilson (1927); its use with an effective sample size for clustered data is E. L. Korn and
B. I. Graubard (1998) and C. Franco et al. (2019); pass@k is arXiv 2107.03374; the cumulative distribution of Student's t with whole degrees
of freedom is M. Abramowitz and I. A. Stegun (1964), 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dart_envs.evaluation.report import wilson_interval
from dart_envs.success import SUCCESS_AT, count_successes
from dart_train.report.pass_at_k import pass_at_k

SMALL_SAMPLE_SEEDS = 5
"""With fewer training seeds a t interval rests on the assumption that the means of seeds are normally distributed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its 95 % interval.

    Attributes:
        value: The estimate.
        lower: Lower end; None where one observation gives no interval.
        upper: Upper end; None where one observation gives no interval.
        count: Independent observations: tasks, or training seeds.
    """

    value: float
    lower: float | None
    upper: float | None
    count: int


def success_rate(rewards_by_task: Mapping[str, Sequence[float]], success_at: float = SUCCESS_AT) -> Estimate | None:
    """Estimate the share of solved episodes, each task with the same weight.

    Args:
        rewards_by_task: Rewards in [0, 1] of the episodes of each task.
        success_at: Least reward of a solved episode.

    Returns:
        The estimate, None without an episode.
    """
    return pass_rate(rewards_by_task, 1, success_at)


def pass_rate(
    rewards_by_task: Mapping[str, Sequence[float]], k: int, success_at: float = SUCCESS_AT
) -> Estimate | None:
    """Estimate pass@k: the share of tasks of which at least one of k episodes is solved.

    With the estimates x_1 … x_m of m tasks, their mean p and their variance v = Σ (x_i - p)² / m, the interval is Wilson's with the
    effective sample size n = p (1 - p) m / v. It lies between m, which one episode per task gives, and the number of disjoint sets of k
    episodes.

    Args:
        rewards_by_task: Rewards in [0, 1] of the episodes of each task.
        k: Episodes of which one has to be solved, at least 1.
        success_at: Least reward of a solved episode.

    Returns:
        The estimate over the tasks that have k episodes, None where there is none.
    """
    chosen = [rewards for rewards in rewards_by_task.values() if len(rewards) >= k]
    if not chosen:
        return None
    values = [pass_at_k(len(each), count_successes(each, success_at), k) for each in chosen]
    ntasks, mean = len(values), fmean(values)
    variance = fmean((value - mean) ** 2 for value in values)
    sets = sum(len(each) // k for each in chosen)
    size = ntasks if variance == 0 else min(max(mean * (1 - mean) * ntasks / variance, ntasks), sets)
    lower, upper = wilson_interval(mean, size)
    return Estimate(mean, lower, upper, ntasks)


def mean_over_seeds(values: Sequence[float]) -> Estimate:
    """Estimate the mean over training seeds: m ± t · s / √n, with t the 97.5 % quantile of Student's t with n - 1 degrees of freedom.

    Args:
        values: One value per training seed, at least one.

    Returns:
        The mean; one seed gives no interval.
    """
    mean, n = fmean(values), len(values)
    if n == 1:
        return Estimate(mean, None, None, 1)
    half = student_t_quantile(n - 1) * stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def student_t_quantile(degrees: int) -> float:
    """Compute the 97.5 % quantile of Student's t.

    Args:
        degrees: Degrees of freedom, at least 1.

    Returns:
        The value that |T| stays below with a probability of 0.95.
    """
    low, high = 0.0, 16.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, degrees) < 0.95 else (low, middle)
    return high


def _share_within(t: float, degrees: int) -> float:
    """P(|T| < t): 26.7.3 for odd and 26.7.4 for even degrees of freedom."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for power in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine**2 * (power - 1) / power
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
