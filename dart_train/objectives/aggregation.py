"""From losses per token to one number.

Role: one function. Rule: the denominators are those of the whole mini-batch, so that the numbers of its micro-batches add up exactly.

    token_mean            sum over tokens / tokens                                                   DAPO (arXiv 2503.14476)
    seq_mean_token_mean   sum over rows of their token mean / rows                                   DART (arXiv 2509.23866)
    trajectory_mean       sum over trajectories of the mean of their rows' token means / trajectories
    constant_length       sum over tokens / (trajectories x `constant_length`)                       Dr. GRPO (arXiv 2503.20783)

Rows, tokens and trajectories are those that are trained on: of a trajectory that curation left two of ten steps of, the mean is over two,
and one of which nothing is left counts nowhere. Non-goals: what is averaged.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dart_train.objectives.settings import LossSettings
from dart_train.objectives.terms import row_mean, select


@dataclass(frozen=True, slots=True)
class Denominators:
    """Denominators of a whole mini-batch.

    Attributes:
        tokens: Number of tokens that are trained on.
        rows: Number of rows with at least one such token.
        trajectories: Number of trajectories with at least one such row: the sum of the rows' shares in theirs.
        imitated: Number of tokens that are imitated.
    """

    tokens: int
    rows: int
    trajectories: float
    imitated: int = 0


def aggregate(
    values_BT: Tensor, mask_BT: Tensor, shares_B: Tensor, settings: LossSettings, whole: Denominators
) -> Tensor:
    """Compute this micro-batch's part of the mini-batch mean.

    Args:
        values_BT: Values per token, [B, T].
        mask_BT: Tokens that are trained on, bool [B, T].
        shares_B: 1 / number of rows of the row's trajectory, [B].
        settings: `aggregation` and `constant_length` are used.
        whole: Denominators of the mini-batch.

    Returns:
        A scalar; the sum over the micro-batches is the mean of the mini-batch.
    """
    if settings.aggregation == "token_mean":
        return select(values_BT, mask_BT).sum() / whole.tokens
    if settings.aggregation == "constant_length":
        return select(values_BT, mask_BT).sum() / (whole.trajectories * settings.constant_length)
    means_B = row_mean(values_BT, mask_BT).squeeze(-1)
    if settings.aggregation == "trajectory_mean":
        return (means_B * shares_B).sum() / whole.trajectories
    return means_B.sum() / whole.rows
