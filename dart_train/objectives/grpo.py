"""The clipped surrogate of PPO and GRPO, with two clip widths and the dual clip.

    r = pi_new / pi_anchor
    value = min(r A, clip(r, 1 - e_low, 1 + e_high) A);    with the dual clip, where A < 0:    max(value, c A)

Sources: PPO (arXiv 1707.06347), GRPO (DeepSeekMath, arXiv 2402.03300), two widths: DAPO (arXiv 2503.14476), dual clip: arXiv 1912.09729.
Role: pure functions. Non-goals: advantages and aggregation, in which GRPO, Dr. GRPO and DAPO differ (`dart_train.objectives.algorithms`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dart_train.objectives.settings import LossSettings
from dart_train.objectives.terms import Surrogate, TokenTerms


def surrogate(terms: TokenTerms, settings: LossSettings) -> Surrogate:
    """Compute the clipped surrogate with the ratio of each token.

    Args:
        terms: Log-probs, advantages and mask.
        settings: `clip_low`, `clip_high` and `dual_clip` are used.

    Returns:
        The surrogate.
    """
    return clip_surrogate(terms.ratio_BT, terms.advantages_B1, settings)


def clip_surrogate(ratio_BT: Tensor, advantages_B1: Tensor, settings: LossSettings) -> Surrogate:
    """Compute the clipped surrogate of given ratios.

    Args:
        ratio_BT: Ratios r, [B, T].
        advantages_B1: Advantages A, [B, 1].
        settings: `clip_low`, `clip_high` and `dual_clip` are used.

    Returns:
        The surrogate.
    """
    low, high, bound = 1 - settings.clip_low, 1 + settings.clip_high, settings.dual_clip
    value_BT = torch.minimum(ratio_BT * advantages_B1, ratio_BT.clamp(low, high) * advantages_B1)
    below_BT, above_BT = ratio_BT < low, ratio_BT > high
    dual_BT = None
    if bound is not None:
        value_BT = torch.where(advantages_B1 < 0, torch.maximum(value_BT, bound * advantages_B1), value_BT)
        dual_BT = (ratio_BT > bound) & (advantages_B1 < 0)
    return Surrogate(
        value_BT,
        clipped_BT=above_BT & (advantages_B1 > 0) | below_BT & (advantages_B1 < 0),
        outside_BT=below_BT | above_BT,
        dual_clipped_BT=dual_BT,
    )
