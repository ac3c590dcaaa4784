"""Length budget: how many steps an episode may take.

Role: stop early where past successes were short. Rule: the longest success of the task so far plus a margin, never above the phase's own
limit; no reduction before `min_successes`. So that a short habit cannot hide a longer and better way for good, a fraction of the groups
keeps the full length, and so does a task whose latest rollouts all failed. Source: DART's dynamic trajectory length (arXiv 2509.23866) is
the longest success itself; margin and full-length groups are ours. Non-goals: rewarding short episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from dart_agent.strict_model import StrictModel
from dart_envs.success import SUCCESS_AT, count_successes


class LengthBudgetSettings(StrictModel):
    """Settings of the length budget; off by default: every episode then has the phase's `max_steps`.

    Attributes:
        enabled: Whether episodes are shortened.
        margin_steps: Steps on top of the longest success.
        min_successes: Successes of a task before its episodes are shortened.
        full_length_fraction: Fraction of the groups whose episodes are not shortened.
    """

    enabled: bool = False
    margin_steps: int = Field(default=1, ge=0)
    min_successes: int = Field(default=8, ge=1)
    full_length_fraction: float = Field(default=0.1, ge=0, le=1)


def length_budget(
    limit: int,
    success_lengths: Sequence[int],
    settings: LengthBudgetSettings,
    *,
    recent_rewards: Sequence[float] = (),
    chance: float = 1.0,
    success_at: float = SUCCESS_AT,
) -> int:
    """Compute the step limit of the episodes of a group.

    Args:
        limit: Step limit of the phase.
        success_lengths: Steps of each success so far.
        settings: Settings of the length budget.
        recent_rewards: Rewards of the latest rollouts; if all of them failed, nothing is shortened.
        chance: A number drawn uniformly from [0, 1) for this group.
        success_at: Least reward of a success.

    Returns:
        The step limit, at most `limit`.
    """
    if not settings.enabled or len(success_lengths) < settings.min_successes:
        return limit
    failing = bool(recent_rewards) and not count_successes(recent_rewards, success_at)
    failing = failing and settings.full_length_fraction > 0
    if failing or chance < settings.full_length_fraction:
        return limit
    return min(limit, max(success_lengths) + settings.margin_steps)
