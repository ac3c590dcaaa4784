"""What the parts of the loss are computed from, and how ratios are taken.

Role: the values that surrogates, corrections and the aggregation share. Rule: no model, no state. What is masked is replaced by 0 before
the first arithmetic: replaced afterwards, its NaN would still be in the gradient, because 0 x NaN is NaN. Axes: B rows (one step of one
trajectory), T positions. Masks are bool and select the tokens that train. Non-goals: formulas of algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-this before exp: beyond it the sample carries no information and would overflow."""


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """Log-probs of the sampled tokens under the policies of the loss; 0 where the mask is False.

    Attributes:
        new_BT: Under the policy that is trained, with gradient, [B, T].
        old_BT: Under the anchor of the ratio, without gradient, [B, T].
        advantages_B: Advantages of the rows, [B].
        mask_BT: Tokens that are trained on, bool [B, T].
    """

    new_BT: Tensor
    old_BT: Tensor
    advantages_B: Tensor
    mask_BT: Tensor

    @property
    def ratio_BT(self) -> Tensor:
        """Ratio of new to anchor probability, [B, T]."""
        return log_ratio(self.new_BT, self.old_BT).exp()

    @property
    def advantages_B1(self) -> Tensor:
        """Advantages with an axis for positions, [B, 1]."""
        return self.advantages_B.unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A value per token, to be maximised.

    Attributes:
        value_BT: The value, [B, T].
        clipped_BT: Tokens whose gradient the clip removes or bounds, bool [B, T].
        outside_BT: Tokens whose ratio is outside the clip range, bool [B, T].
        dual_clipped_BT: Tokens whose gradient the bound for negative advantages removes, bool [B, T]; None: there is no such bound.
    """

    value_BT: Tensor
    clipped_BT: Tensor
    outside_BT: Tensor
    dual_clipped_BT: Tensor | None = None


def log_ratio(numerator_BT: Tensor, denominator_BT: Tensor) -> Tensor:
    """Compute a clamped difference of log-probs.

    Args:
        numerator_BT: Log-probs [B, T].
        denominator_BT: Log-probs [B, T].

    Returns:
        The difference [B, T], within `MAX_LOG_RATIO` of 0.
    """
    return (numerator_BT - denominator_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def select(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Replace what is masked by 0, in values and gradient.

    Args:
        values_BT: Values [B, T]; anything, NaN included, where the mask is False.
        mask_BT: Tokens to keep, bool [B, T].

    Returns:
        Values [B, T].
    """
    return torch.where(mask_BT, values_BT, torch.zeros_like(values_BT))


def row_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Average over the selected tokens of each row.

    Args:
        values_BT: Values [B, T].
        mask_BT: Tokens to average over, bool [B, T].

    Returns:
        Means [B, 1]; 0 where a row has no token.
    """
    return select(values_BT, mask_BT).sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)


__all__ = ["MAX_LOG_RATIO", "Surrogate", "TokenTerms", "log_ratio", "row_mean", "select"]
