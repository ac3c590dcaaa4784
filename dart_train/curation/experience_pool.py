"""Experience pool: one stored success joins a group in which every rollout failed (DART's experience pool).

Role: give a hard task a positive example. Rule: only when all members of a group failed. The newest stored success of the same task
replaces the oldest member of the group, if

- the oldest version that sampled it is at most `max_age` versions back,
- it, and every success with the same sampled tokens, joined groups of fewer than `max_uses` batches,
- neither it nor one with the same sampled tokens is in the batch already, as a member of its own group or of another, and
- whoever asks has all that training on it needs.

Its stored log-probs keep the importance weights correct. Sources: DART (arXiv 2509.23866) and its released trainer, which takes the newest
success whatever its age and however often it was used; age and use limits and the identity by content are ours. Non-goals:
demonstrations; they have no sampling log-probs and never enter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pydantic import Field

from dart_agent.strict_model import StrictModel


class ExperiencePoolSettings(StrictModel):
    """Settings of the experience pool; off by default: groups in which every rollout failed are then dropped.

    Attributes:
        enabled: Whether stored successes are used.
        max_age: Limit of the trainer version minus the oldest version that sampled the success; None: no limit.
        max_uses: Batches that a success may be used in; None: no limit.
    """

    enabled: bool = False
    max_age: int | None = Field(default=32, ge=0)
    max_uses: int | None = Field(default=4, ge=1)


@dataclass(frozen=True, slots=True)
class StoredSuccess:
    """A success that may join a group.

    Attributes:
        rollout_id: Its rollout.
        content: What identifies its sampled tokens.
        age: Trainer version minus the oldest version that sampled it.
        uses: Batches that it was used in, as a member of a group that had failed.
    """

    rollout_id: str
    content: str
    age: int
    uses: int = 0


def select_success(
    successes: Sequence[StoredSuccess],
    settings: ExperiencePoolSettings,
    taken: Collection[str] = (),
    is_complete: Callable[[StoredSuccess], bool] = lambda success: True,
) -> StoredSuccess | None:
    """Choose a stored success.

    Args:
        successes: The stored successes of the task, newest first.
        settings: Settings of the experience pool.
        taken: Contents of what is in the batch already.
        is_complete: Whether a success can be trained on; asked last, and of as few as possible.

    Returns:
        The success, None where none may be used.
    """
    if not settings.enabled:
        return None
    uses: Counter[str] = Counter()
    for success in successes:
        uses[success.content] += success.uses
    for success in successes:
        young = success.age >= 0 and (settings.max_age is None or success.age <= settings.max_age)
        rested = settings.max_uses is None or uses[success.content] < settings.max_uses
        if young and rested and success.content not in taken and is_complete(success):
            return success
    return None
