"""Group filter: a group without reward variance teaches nothing under a group baseline.

Role: says why a finished group cannot train. Source: DAPO's dynamic sampling (keep groups with 0 < correct < G), extended to rewards
between 0 and 1. Non-goals: all-failure groups that the success pool may rescue (`experience_pool`).
"""

from __future__ import annotations

from collections.abc import Sequence


def uninformative_reason(rewards: Sequence[float], min_members: int) -> str | None:
    """`too_few_members`, `all_failed`, `all_succeeded`, `no_variance`, or None when the group can train.

    rewards: of the members that have a verdict; masked members are not among them.
    """
    if len(rewards) < min_members:
        return "too_few_members"
    if min(rewards) < max(rewards):
        return None
    if rewards[0] == 0:
        return "all_failed"
    return "all_succeeded" if rewards[0] == 1 else "no_variance"
