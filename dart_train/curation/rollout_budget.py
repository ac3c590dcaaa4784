"""Rollout budget: how many rollouts the next group of a task gets.

Role: spend fewer rollouts where the policy already succeeds. SR is the success rate over the latest rollouts, N the full size.

    dart      SR over the latest N rollouts; N below the threshold, else max(min_rollouts, int((N + 1) / SR - (N - 1))), never above N.
              DART's dynamic rollout number (arXiv 2509.23866); its code has int(9 / SR - 7) for N = 8: 0.6 -> 8, 0.7 -> 5, 0.8 -> 4,
              0.9 -> 3, 1.0 -> 2; written here for any N. Fewer than N rollouts are no evidence.
    smooth    p = (successes + 1) / (rollouts + 2) over the latest 4 N rollouts; min_rollouts + (N - min_rollouts) 4 p (1 - p) where
              p > 1/2, else N, rounded. The variance of a Bernoulli reward relative to its greatest value; the mean of its Beta
              posterior makes little evidence change little, and there is no step at a threshold. The shape is ours.

Rule: pure; both rules give N to a task without evidence. Non-goals: which task is next (`task_sampler`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from dart_agent.strict_model import StrictModel
from dart_envs.success import SUCCESS_AT, count_successes

RolloutRule = Literal["dart", "smooth"]
SMOOTH_WINDOW = 4
"""Full groups that the smooth rule looks back on."""
ROUNDING_GUARD = 1e-9


class RolloutBudgetSettings(StrictModel):
    """Settings of the rollout budget; off by default: every group then has the phase's `rollouts_per_task`.

    Attributes:
        enabled: Whether groups are made smaller.
        rule: How the size follows from the success rate.
        threshold: Success rate from which a group is smaller, of the rule `dart`.
        min_rollouts: Smallest size of a group.
    """

    enabled: bool = False
    rule: RolloutRule = "dart"
    threshold: float = Field(default=0.6, gt=0, le=1)
    min_rollouts: int = Field(default=2, ge=2)


def evidence_size(full: int, settings: RolloutBudgetSettings) -> int:
    """Return how many of the latest rollouts the rule looks at.

    Args:
        full: N, the size without reduction.
        settings: Settings of the rollout budget.
    """
    return full if settings.rule == "dart" else SMOOTH_WINDOW * full


def rollout_budget(
    full: int, recent_rewards: Sequence[float], settings: RolloutBudgetSettings, success_at: float = SUCCESS_AT
) -> int:
    """Compute the size of the next group.

    Args:
        full: N, the size without reduction.
        recent_rewards: Rewards of the latest `evidence_size` rollouts.
        settings: Settings of the rollout budget.
        success_at: Least reward of a success.

    Returns:
        Number of rollouts, at most N.
    """
    if not settings.enabled:
        return full
    successes = count_successes(recent_rewards, success_at)
    if settings.rule == "smooth":
        rate = (successes + 1) / (len(recent_rewards) + 2)
        share = 1.0 if rate <= 0.5 else 4 * rate * (1 - rate)
        wanted = int(settings.min_rollouts + (full - settings.min_rollouts) * share + 0.5)
    else:
        rate = successes / len(recent_rewards) if recent_rewards else 0.0
        if len(recent_rewards) < full or rate < settings.threshold:
            return full
        wanted = int((full + 1) / rate - (full - 1) + ROUNDING_GUARD)
    return min(full, max(settings.min_rollouts, wanted))
