"""Group filter: a group without reward variance has no gradient under a group baseline.

Role: says why a finished group cannot be trained on. Source: DAPO's dynamic sampling (keep groups with 0 < correct < G), extended to
rewards between 0 and 1: where they differ, there is something to learn, also without a success. Non-goals: groups in which every rollout
failed and that the experience pool may complete (`experience_pool`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dart_envs.success import SUCCESS_AT, is_success

UninformativeReason = Literal["too_few_members", "all_failed", "all_succeeded"]


def uninformative_reason(
    rewards: Sequence[float], min_members: int, success_at: float = SUCCESS_AT
) -> UninformativeReason | None:
    """Say why a group cannot be trained on.

    Args:
        rewards: Rewards of the members that have one; masked members are not among them.
        min_members: Members with a reward that a group needs.
        success_at: Least reward of a success.

    Returns:
        `too_few_members`, `all_failed`, `all_succeeded`, or None where the group can be trained on.
    """
    if len(rewards) < min_members:
        return "too_few_members"
    if min(rewards) < max(rewards):
        return None
    return "all_succeeded" if is_success(rewards[0], success_at) else "all_failed"
