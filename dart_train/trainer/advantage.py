"""Advantages of the members of a group.

Role: pure functions from rewards to advantages; every step and token of a member has the member's advantage. Rule: the baseline is taken
over all members with a reward, including those whose tokens are excluded from training. Axis: G members of one group.
Sources: GRPO (DeepSeekMath, arXiv 2402.03300); without the deviation: Dr. GRPO (arXiv 2503.20783); leave-one-out: RLOO (arXiv 2402.14740).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dart_train.trainer.config import AdvantageKind

EPSILON = 1e-6


def group_advantages(rewards_G: Sequence[float], kind: AdvantageKind) -> NDArray[np.float64]:
    """Compute the advantages of the members of one group.

    Args:
        rewards_G: Rewards [G].
        kind: `grpo`: (R - mean) / (std + 1e-6), with the unbiased std; `no_std`: R - mean; `leave_one_out`: R - mean of the others.

    Returns:
        Advantages, float64 [G].

    Raises:
        ValueError: The group has fewer than two members.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if rewards.ndim != 1 or rewards.size < 2:
        raise ValueError("a group needs at least two rewards")
    centred_G: NDArray[np.float64] = rewards - rewards.mean()
    if kind == "grpo":
        return centred_G / float(rewards.std(ddof=1) + EPSILON)
    if kind == "leave_one_out":
        return centred_G * (rewards.size / (rewards.size - 1))
    return centred_G
