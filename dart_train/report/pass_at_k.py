"""pass@k: the chance that at least one of k rollouts of a task succeeds.

    of n >= k rollouts with c successes:    1 - C(n - c, k) / C(n, k),    averaged over tasks

Role: the unbiased estimate, and its mean over tasks. Rule: a task with fewer than k rollouts says nothing about k and is left out; rollouts
without a reward are none. Source: arXiv 2107.03374. Non-goals: who samples the rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb

from dart_envs.success import SUCCESS_AT, count_successes


def pass_at_k(rollouts: int, successes: int, k: int) -> float:
    """Estimate pass@k of one task.

    Args:
        rollouts: n, its rollouts.
        successes: c, those that succeeded.
        k: Rollouts of which one has to succeed.

    Returns:
        The estimate, in [0, 1].

    Raises:
        ValueError: There are fewer rollouts than k, or k is not positive.
    """
    if not 1 <= k <= rollouts:
        raise ValueError(f"pass@{k} cannot be estimated from {rollouts} rollouts: give 1 <= k <= {rollouts}")
    return 1 - comb(rollouts - successes, k) / comb(rollouts, k)


def mean_pass_at_k(rewards_by_task: Iterable[Sequence[float]], k: int, success_at: float = SUCCESS_AT) -> float | None:
    """Average pass@k over tasks.

    Args:
        rewards_by_task: Rewards of the rollouts of each task.
        k: Rollouts of which one has to succeed.
        success_at: Least reward of a success.

    Returns:
        The mean, None where no task has k rollouts.
    """
    found = [
        pass_at_k(len(rewards), count_successes(rewards, success_at), k)
        for rewards in rewards_by_task
        if len(rewards) >= k
    ]
    return sum(found) / len(found) if found else None
