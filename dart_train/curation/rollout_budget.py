"""Rollout budget: how many rollouts the next group of a task gets (DART's dynamic rollout number).

Role: spend fewer rollouts where the policy already succeeds. Rule: with SR the success rate over the latest rollouts, N below the
threshold, else max(min_rollouts, int((N + 1) / SR - (N - 1))), never above N. Source: DART (arXiv 2509.23866), whose code has
int(9 / SR - 7) for N = 8: 0.6 -> 8, 0.7 -> 5, 0.8 -> 4, 0.9 -> 3, 1.0 -> 2; written here for any N.
Non-goals: which task is next (`task_sampler`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from dart_agent.strict_model import StrictModel

ROUNDING_GUARD = 1e-9


class RolloutBudgetSettings(StrictModel):
    """Settings of the rollout budget; off by default: every group then has the phase's `rollouts_per_task`.

    Attributes:
        enabled: Whether groups are made smaller.
        threshold: Success rate from which a group is smaller.
        min_rollouts: Smallest size of a group.
    """

    enabled: bool = False
    threshold: float = Field(default=0.6, gt=0, le=1)
    min_rollouts: int = Field(default=2, ge=2)


def rollout_budget(full: int, recent_rewards: Sequence[float], settings: RolloutBudgetSettings) -> int:
    """Compute the size of the next group.

    Args:
        full: N, the size without reduction.
        recent_rewards: Rewards of the latest rollouts; fewer than N of them are no evidence.
        settings: Settings of the rollout budget.

    Returns:
        Number of rollouts, at most N.
    """
    if not settings.enabled or len(recent_rewards) < full:
        return full
    rate = sum(reward > 0 for reward in recent_rewards) / len(recent_rewards)
    if rate < settings.threshold:
        return full
    reduced = int((full + 1) / rate - (full - 1) + ROUNDING_GUARD)
    return min(full, max(settings.min_rollouts, reduced))
