"""Advantages of the members of a group.

Role: pure functions from rewards to advantages; every step and token of a member has the member's advantage. Rule: the baseline is taken
over all members with a reward, including those whose tokens are excluded from training. Axis: G members of one group.

The mean and the deviation are taken over what the loss averages over. Otherwise the advantages do not cancel in the loss, and the mere
number of steps pushes all probabilities up or down: with two successes of 5 steps and six failures of 30, advantages that are centred
over the members have the mean -0.43 over the steps.

    advantage_over        each member counts          centred under the aggregation
    group_steps           once per step               seq_mean_token_mean (a mean over steps)
    group_trajectories    once                        trajectory_mean (a mean over trajectories)

Under `token_mean` neither is exactly centred, because responses differ in length.

Sources: GRPO (DeepSeekMath, arXiv 2402.03300); over all steps of a group: DART (arXiv 2509.23866); without the deviation: Dr. GRPO
(arXiv 2503.20783); leave-one-out: RLOO (arXiv 2402.14740).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dart_train.objectives.settings import AdvantageKind

EPSILON = 1e-6


def group_advantages(
    rewards_G: Sequence[float], kind: AdvantageKind, steps_G: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """Compute the advantages of the members of one group.

    Args:
        rewards_G: Rewards [G].
        kind: `grpo`: (R - mean) / (std + 1e-6), with the unbiased std; `no_std`: R - mean; `leave_one_out`: R - mean of the others.
        steps_G: Steps of each member [G]: mean and std are those over all steps of the group; None: those over its members.

    Returns:
        Advantages, float64 [G].

    Raises:
        ValueError: The group has fewer than two members, or `leave_one_out` is asked for over steps.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if rewards.ndim != 1 or rewards.size < 2:
        raise ValueError("a group needs at least two rewards")
    if steps_G is not None and kind == "leave_one_out":
        raise ValueError("leave_one_out leaves out whole trajectories: it has no form over steps")
    counts_G = np.asarray([1] * rewards.size if steps_G is None else steps_G, dtype=np.float64)
    count = float(counts_G.sum())
    if count == 0:
        return np.zeros_like(rewards)
    centred_G: NDArray[np.float64] = rewards - float((counts_G * rewards).sum()) / count
    if kind == "grpo":
        variance = float((counts_G * centred_G**2).sum()) / max(count - 1, 1)
        return centred_G / float(np.sqrt(variance) + EPSILON)
    if kind == "leave_one_out":
        return centred_G * (count / (count - 1))
    return centred_G
