"""REINFORCE under a clipped importance weight: CISPO. No token's gradient is removed; the clip only bounds its weight.

    value = sg[clip(r, 1 - e_low, 1 + e_high)] A log pi_new,    r = pi_new / pi_anchor

sg stops the gradient. The usual setting has no lower bound (e_low = 1) and an upper one of 5 (e_high = 4).

Source: CISPO (MiniMax-M1, arXiv 2506.13585), equation 4. Role: a pure function. Non-goals: advantages, aggregation.
"""

from __future__ import annotations

from dart_train.objectives.settings import LossSettings
from dart_train.objectives.terms import Surrogate, TokenTerms


def surrogate(terms: TokenTerms, settings: LossSettings) -> Surrogate:
    """Compute the weighted log-probs.

    Args:
        terms: Log-probs, advantages and mask.
        settings: `clip_low` and `clip_high` are used.

    Returns:
        The surrogate; `clipped_BT` are the tokens whose weight is at a bound.
    """
    ratio_BT = terms.ratio_BT.detach()
    weight_BT = ratio_BT.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    outside_BT = weight_BT != ratio_BT
    return Surrogate(weight_BT * terms.advantages_B1 * terms.new_BT, clipped_BT=outside_BT, outside_BT=outside_BT)
