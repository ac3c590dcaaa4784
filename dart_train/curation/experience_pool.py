"""Experience pool: one stored success joins a group in which every rollout failed (DART's experience pool).

Role: give a hard task a positive example. Rule: only when all members of a group failed; the newest stored success of the same task
replaces the oldest member of the group, if it was sampled by a policy at most `max_age` versions back; its stored log-probs
keep the importance weights correct. Source: DART (arXiv 2509.23866) and its released trainer; the age limit is ours.
Non-goals: demonstrations; they have no sampling log-probs and never enter.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from dart_agent.strict_model import StrictModel


class ExperiencePoolSettings(StrictModel):
    """Settings of the experience pool; off by default: groups in which every rollout failed are then dropped.

    Attributes:
        enabled: Whether stored successes are used.
        max_age: Limit of the trainer version minus the oldest version that sampled the success.
    """

    enabled: bool = False
    max_age: int = Field(default=32, ge=0)


def select_success(ages: Sequence[int], settings: ExperiencePoolSettings) -> int | None:
    """Choose a stored success.

    Args:
        ages: Ages of the stored successes of the task in versions, newest first.
        settings: Settings of the experience pool.

    Returns:
        Index of the success, None where none is recent enough.
    """
    if not settings.enabled:
        return None
    return next((index for index, age in enumerate(ages) if 0 <= age <= settings.max_age), None)
