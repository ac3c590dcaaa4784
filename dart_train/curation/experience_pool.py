"""Success pool: one stored success joins a group in which everything failed (DART's experience pool).

Role: give a hard task a positive example. Rule: only when all members of a group failed; the newest stored success of the same task
takes the place of the group's oldest member, if it was sampled by a policy at most `max_age` versions back; its stored log-probs
keep the importance weights honest. Source: DART (arXiv 2509.23866) and its released trainer; the age limit is ours.
Non-goals: demonstrations; they carry no sampling log-probs and never enter.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from dart_agent.strict_model import StrictModel


class ExperiencePoolSettings(StrictModel):
    """Off by default: all-failure groups are then dropped."""

    enabled: bool = False
    max_age: int = Field(
        default=32, ge=0, description="trainer version minus the oldest version that wrote the success"
    )


def select_success(ages: Sequence[int], settings: ExperiencePoolSettings) -> int | None:
    """Index of the stored success to use, None when there is none young enough.

    ages: of the stored successes of the task, newest first.
    """
    if not settings.enabled:
        return None
    return next((index for index, age in enumerate(ages) if 0 <= age <= settings.max_age), None)
