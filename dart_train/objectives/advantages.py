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

A formula of one's own is an `AdvantageFunction`, named as `module:function`.

Sources: GRPO (DeepSeekMath, arXiv 2402.03300); over all steps of a group: DART (arXiv 2509.23866); without the deviation: Dr. GRPO
(arXiv 2503.20783); leave-one-out: RLOO (arXiv 2402.14740).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from dart_train.objectives.own_functions import load_function

EPSILON = 1e-6
ADVANTAGES = ("grpo", "no_std", "leave_one_out")
AdvantageFunction = Callable[[NDArray[np.float64], NDArray[np.float64] | None], NDArray[np.float64]]
"""From the rewards [G] of a group, and the number of steps of each member [G] where the advantages are over steps, to advantages [G]."""


class AdvantageError(ValueError):
    """A formula of one's own failed, or gave other than a finite number for each member; the message says for which rewards."""


@cache
def load_advantage(name: str) -> AdvantageFunction:
    """Load a formula of one's own.

    Args:
        name: `module:function`.

    Returns:
        The function.

    Raises:
        ValueError: There is no such function.
    """
    return load_function("advantage", name, ADVANTAGES)


def check_advantage(name: str) -> str:
    """Check that there is a formula of this name; returns the name. Raises ValueError where there is none."""
    if name not in ADVANTAGES:
        load_advantage(name)
    return name


AdvantageName = Annotated[str, AfterValidator(check_advantage)]
"""The name of a formula in a configuration."""


def group_advantages(
    rewards_G: Sequence[float], kind: str, steps_G: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """Compute the advantages of the members of one group.

    Args:
        rewards_G: Rewards [G].
        kind: `grpo`: (R - mean) / (std + 1e-6), with the unbiased std; `no_std`: R - mean; `leave_one_out`: R - mean of the others;
            `module:function`: an `AdvantageFunction`.
        steps_G: Steps of each member [G]: mean and std are those over all steps of the group; None: those over its members.

    Returns:
        Advantages, float64 [G].

    Raises:
        ValueError: The group has fewer than two members, `leave_one_out` is asked for over steps, or a function of one's own cannot be
            loaded.
        AdvantageError: A function of one's own fails, or gives other than G finite numbers.
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
    if kind not in ADVANTAGES:
        return _own_advantages(kind, rewards, None if steps_G is None else counts_G)
    centred_G: NDArray[np.float64] = rewards - float((counts_G * rewards).sum()) / count
    if kind == "grpo":
        variance = float((counts_G * centred_G**2).sum()) / max(count - 1, 1)
        return centred_G / float(np.sqrt(variance) + EPSILON)
    if kind == "leave_one_out":
        return centred_G * (count / (count - 1))
    return centred_G


def _own_advantages(
    name: str, rewards_G: NDArray[np.float64], steps_G: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    function = load_advantage(name)
    try:
        found = np.asarray(function(rewards_G.copy(), steps_G), dtype=np.float64)
    except Exception as error:
        raise AdvantageError(
            f"the advantage {name!r} failed for the rewards {rewards_G.tolist()}: {type(error).__name__}: {error}"
        ) from error
    if found.shape != rewards_G.shape or not np.isfinite(found).all():
        raise AdvantageError(
            f"the advantage {name!r} gave {found.tolist()} for the rewards {rewards_G.tolist()}: let it give a finite number for each"
        )
    return found
