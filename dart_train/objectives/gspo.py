"""The clipped surrogate with one ratio per response: GSPO.

    s = exp(mean over the response's tokens of log(pi_new / pi_anchor))
    value of each token = min(s_t A, clip(s_t, 1 - e_low, 1 + e_high) A),    s_t = sg[s] pi_new / sg[pi_new]

sg stops the gradient. s_t has the value of s at every token, and the mean over the tokens has the gradient of the sequence form, so that
weights per token and every aggregation still apply. A response is a row: one step of a trajectory. The widths are of the order 1e-4,
because a mean over tokens moves much less than one token.

Source: GSPO (arXiv 2507.18071), equations 5 and 13. Role: a pure function. Non-goals: advantages, aggregation.
"""

from __future__ import annotations

from dart_train.objectives.grpo import clip_surrogate
from dart_train.objectives.settings import LossSettings
from dart_train.objectives.terms import Surrogate, TokenTerms, log_ratio, row_mean


def surrogate(terms: TokenTerms, settings: LossSettings) -> Surrogate:
    """Compute the clipped surrogate with the ratio of each response.

    Args:
        terms: Log-probs, advantages and mask.
        settings: `clip_low`, `clip_high` and `dual_clip` are used.

    Returns:
        The surrogate.
    """
    sequence_B1 = row_mean(log_ratio(terms.new_BT, terms.old_BT), terms.mask_BT).detach()
    ratio_BT = (sequence_B1 + terms.new_BT - terms.new_BT.detach()).exp()
    return clip_surrogate(ratio_BT, terms.advantages_B1, settings)
