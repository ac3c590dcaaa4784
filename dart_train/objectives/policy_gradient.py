"""The policy gradient without a clip, as RLOO uses it.

    value = r A,    r = pi_new / pi_anchor

At the anchor its gradient is A grad log pi: REINFORCE. Further passes over a batch are importance-weighted.

Sources: REINFORCE (Williams 1992), RLOO (arXiv 2402.14740). Role: a pure function. Non-goals: advantages, aggregation.
"""

from __future__ import annotations

import torch

from dart_train.objectives.settings import LossSettings
from dart_train.objectives.terms import Surrogate, TokenTerms


def surrogate(terms: TokenTerms, settings: LossSettings) -> Surrogate:
    """Compute the importance-weighted advantages.

    Args:
        terms: Log-probs, advantages and mask.
        settings: Not used.

    Returns:
        The surrogate; nothing is clipped.
    """
    nothing_BT = torch.zeros_like(terms.mask_BT)
    return Surrogate(terms.ratio_BT * terms.advantages_B1, clipped_BT=nothing_BT, outside_BT=nothing_BT)
