"""Estimates of the KL divergence from one sample per token.

    d = log ref - log new;    k1 = -d;    k3 = exp(d) - d - 1

Both are unbiased for KL(new || ref) under samples of the new policy; k3 is never negative and has the smaller variance. As a term of
the loss k3 pulls the policy to the reference. k1 does not: the expectation of its gradient is 0. It is offered because other trainers
have it, and for metrics.

Source: J. Schulman, Approximating KL Divergence, 2020. Role: pure functions. Non-goals: the reference model.
"""

from __future__ import annotations

from torch import Tensor

from dart_train.objectives.settings import KlEstimator
from dart_train.objectives.terms import log_ratio


def estimate_kl(new_BT: Tensor, reference_BT: Tensor, estimator: KlEstimator = "k3") -> Tensor:
    """Estimate KL(new || reference) per token.

    Args:
        new_BT: Log-probs of the policy, [B, T].
        reference_BT: Log-probs of the reference model, [B, T].
        estimator: Which estimate.

    Returns:
        The estimate [B, T].
    """
    difference_BT = log_ratio(reference_BT, new_BT)
    return -difference_BT if estimator == "k1" else difference_BT.exp() - difference_BT - 1
