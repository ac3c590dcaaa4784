"""Group filter: a group without reward variance has no gradient under a group baseline.

Role: says why a finished group cannot be trained on. Source: DAPO's dynamic sampling (keep groups with 0 < correct < G), extended to
rewards between 0 and 1. Non-goals: groups in which every rollout failed and that the experience pool may complete (`experience_pool`).
"""

from __future__ import annotations

from collections.abc import Sequence


def uninformative_reason(rewards: Sequence[float], min_members: int) -> str | None:
    """Say why a group cannot be trained on.

    Args:
        rewards: Rewards of the members that have one; masked members are not among them.
        min_members: Members with a reward that a group needs.

    Returns:
        `too_few_members`, `all_failed`, `all_succeeded`, `no_variance`, or None where the group can be trained on.
    """
    if len(rewards) < min_members:
        return "too_few_members"
    if min(rewards) < max(rewards):
        return None
    if rewards[0] == 0:
        return "all_failed"
    return "all_succeeded" if rewards[0] == 1 else "no_variance"
