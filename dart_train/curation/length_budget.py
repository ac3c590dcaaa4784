"""Length budget: how many steps an episode may take (DART's dynamic trajectory length).

Role: stop early where past successes were short. Rule: the longest success of the task's family so far plus a margin, never
above the phase's own limit; no reduction before `min_successes`. Source: DART (arXiv 2509.23866), which states the rule per task; here per
family, because variations of a family are rarely repeated. Non-goals: rewarding short episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from dart_agent.strict_model import StrictModel


class LengthBudgetSettings(StrictModel):
    """Settings of the length budget; off by default: every episode then has the phase's `max_steps`.

    Attributes:
        enabled: Whether episodes are shortened.
        margin_steps: Steps on top of the longest success.
        min_successes: Successes of a family before its episodes are shortened.
    """

    enabled: bool = False
    margin_steps: int = Field(default=1, ge=0)
    min_successes: int = Field(default=8, ge=1)


def length_budget(limit: int, success_lengths: Sequence[int], settings: LengthBudgetSettings) -> int:
    """Compute the step limit of an episode.

    Args:
        limit: Step limit of the phase.
        success_lengths: Steps of each success so far.
        settings: Settings of the length budget.

    Returns:
        The step limit, at most `limit`.
    """
    if not settings.enabled or len(success_lengths) < settings.min_successes:
        return limit
    return min(limit, max(success_lengths) + settings.margin_steps)
