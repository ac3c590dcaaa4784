"""The one rule of what counts as a success.

Role: from a reward to yes or no, for rates, curation, demonstrations and reports alike. Rule: an episode succeeded where its reward is at
least `success_at`; an episode without a reward did not, and is in no rate either. Non-goals: where the reward came from
(`dart_agent.rewards`).
"""

from __future__ import annotations

from collections.abc import Iterable

SUCCESS_AT = 1.0
"""The default: only a task that is solved as a whole. A recipe may say otherwise (`reward.success_at`)."""


def is_success(reward: float | None, success_at: float = SUCCESS_AT) -> bool:
    """Tell whether an episode succeeded.

    Args:
        reward: Its reward in [0, 1]; None where it has none.
        success_at: Least reward of a success.

    Returns:
        Whether it did.
    """
    return reward is not None and reward >= success_at


def count_successes(rewards: Iterable[float | None], success_at: float = SUCCESS_AT) -> int:
    """Count the episodes that succeeded.

    Args:
        rewards: Their rewards in [0, 1].
        success_at: Least reward of a success.

    Returns:
        How many did.
    """
    return sum(is_success(reward, success_at) for reward in rewards)
