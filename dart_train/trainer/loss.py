"""The policy-gradient loss, as pure functions on tensors.

Role: clipped surrogate under a truncated importance weight, with optional KL and entropy terms. Rule: no model, no state; per-token terms
first, one aggregation at the end, whose denominators are those of the whole mini-batch so that micro-batches add up exactly. What is
masked is replaced by 0 before the first arithmetic: replaced afterwards, its NaN would still be in the gradient, because 0 x NaN is NaN.
Axes: B rows (one step of one trajectory), T positions. Masks are bool and select the tokens that train.

    r = pi_new / pi_old            pi_old: the trainer's policy at the start of the update
    w = min(pi_old / mu, C)        mu: the policy that sampled the token (stored log-prob); w has no gradient
    token loss = -w * min(r A, clip(r, 1 - e_low, 1 + e_high) A) + b * k3(new, ref) - h * entropy

Sources: PPO-clip with two widths, DAPO (arXiv 2503.14476); decoupled objective and truncation, AReaL and DART (arXiv 2509.23866);
dual clip (arXiv 1912.09729); k3 estimator, Schulman 2020. Non-goals: advantages (`dart_train.trainer.advantage`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dart_train.trainer.config import Aggregation, LossSettings

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-this before exp: beyond it the sample carries no information and would overflow."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """Denominators of a whole mini-batch.

    Attributes:
        tokens: Number of tokens that are trained on.
        rows: Number of rows with at least one such token.
        trajectories: Number of trajectories: the sum of the rows' shares in theirs.
    """

    tokens: int
    rows: int
    trajectories: float = 0.0


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The result of `policy_loss`.

    Attributes:
        loss: Scalar with gradient.
        sums: Sums over the trained tokens of this micro-batch, to be divided by the token count of the mini-batch. `clip_fraction` counts
            tokens whose gradient the clip removes (above the range with A > 0, below it with A < 0), `dual_clip_fraction` those whose
            gradient the bound for negative advantages removes, `outside_range_fraction` all whose ratio is outside the range.
    """

    loss: Tensor
    sums: dict[str, float]


def log_ratio(numerator_BT: Tensor, denominator_BT: Tensor) -> Tensor:
    """Compute a clamped difference of log-probs.

    Args:
        numerator_BT: Log-probs [B, T].
        denominator_BT: Log-probs [B, T].

    Returns:
        The difference [B, T], within `MAX_LOG_RATIO` of 0.
    """
    return (numerator_BT - denominator_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def truncated_importance_weight(old_BT: Tensor, rollout_BT: Tensor, cap: float | None) -> Tensor:
    """Compute min(pi_old / mu, cap) per token, without gradient.

    Args:
        old_BT: Log-probs of the trainer's policy before the update, [B, T].
        rollout_BT: Log-probs of the policy that sampled the tokens, [B, T].
        cap: Upper bound of the weight; None: no weight.

    Returns:
        Weights [B, T]; 1 everywhere where `cap` is None.
    """
    if cap is None:
        return torch.ones_like(old_BT)
    return log_ratio(old_BT, rollout_BT).exp().clamp(max=cap).detach()


def clipped_surrogate(
    ratio_BT: Tensor, advantages_B: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """Compute min(r A, clip(r) A) per token, a value to be maximised.

    Args:
        ratio_BT: Ratio r of new to old probability, [B, T].
        advantages_B: Advantages A, [B].
        clip_low: Lower clip width.
        clip_high: Upper clip width.
        dual_clip: A factor c: where A < 0, the value is not below c A; None: no bound.

    Returns:
        The surrogate [B, T].
    """
    advantages_B1 = advantages_B.unsqueeze(-1)
    surrogate_BT = torch.minimum(ratio_BT * advantages_B1, ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_B1)
    if dual_clip is None:
        return surrogate_BT
    return torch.where(advantages_B1 < 0, torch.maximum(surrogate_BT, dual_clip * advantages_B1), surrogate_BT)


def kl_k3(new_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Estimate KL(new || reference) per token: exp(d) - d - 1 with d = log ref - log new.

    Args:
        new_BT: Log-probs of the policy, [B, T].
        reference_BT: Log-probs of the reference model, [B, T].

    Returns:
        The estimate [B, T], never negative.
    """
    difference_BT = log_ratio(reference_BT, new_BT)
    return difference_BT.exp() - difference_BT - 1


def aggregate(
    values_BT: Tensor,
    mask_BT: Tensor,
    mode: Aggregation,
    denominators: Denominators,
    trajectory_shares_B: Tensor | None = None,
) -> Tensor:
    """Compute this micro-batch's part of the mini-batch mean.

    Args:
        values_BT: Values per token, [B, T].
        mask_BT: Tokens that are trained on, bool [B, T].
        mode: `token_mean`: sum over tokens / tokens; `seq_mean_token_mean`: sum over rows of their token mean / rows; `trajectory_mean`:
            sum over trajectories of the mean of their rows' token means / trajectories.
        denominators: Denominators of the mini-batch.
        trajectory_shares_B: 1 / number of rows of the row's trajectory, [B]; for `trajectory_mean`.

    Returns:
        A scalar; the sum over the micro-batches is the mean of the mini-batch.
    """
    masked_BT = torch.where(mask_BT, values_BT, torch.zeros_like(values_BT))
    if mode == "token_mean":
        return masked_BT.sum() / denominators.tokens
    row_means_B = masked_BT.sum(-1) / mask_BT.sum(-1).clamp(min=1)
    if mode == "trajectory_mean":
        assert trajectory_shares_B is not None
        return (row_means_B * trajectory_shares_B).sum() / denominators.trajectories
    return row_means_B.sum() / denominators.rows


def policy_loss(
    new_BT: Tensor,
    old_BT: Tensor,
    rollout_BT: Tensor,
    entropy_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    settings: LossSettings,
    denominators: Denominators,
    reference_BT: Tensor | None = None,
    trajectory_shares_B: Tensor | None = None,
) -> LossTerms:
    """Compute the loss of one micro-batch; all log-probs are those of the sampled tokens.

    Args:
        new_BT: Log-probs of the policy that is trained, with gradient, [B, T].
        old_BT: Log-probs of the policy before the update, [B, T].
        rollout_BT: Log-probs of the policy that sampled the tokens, [B, T].
        entropy_BT: Entropy of the policy per token, with gradient, in nats, [B, T].
        advantages_B: Advantages of the rows, [B].
        mask_BT: Tokens that are trained on, bool [B, T].
        settings: Coefficients.
        denominators: Denominators of the mini-batch.
        reference_BT: Log-probs of the reference model, [B, T]; None: no KL term.
        trajectory_shares_B: As in `aggregate`.

    Returns:
        The loss and the sums of the metrics.
    """

    def select(values_BT: Tensor) -> Tensor:
        return torch.where(mask_BT, values_BT, torch.zeros_like(values_BT))

    new_BT, old_BT, rollout_BT, entropy_BT = map(select, (new_BT, old_BT.detach(), rollout_BT, entropy_BT))
    reference_BT = None if reference_BT is None else select(reference_BT.detach())
    ratio_BT = log_ratio(new_BT, old_BT).exp()
    weight_BT = truncated_importance_weight(old_BT, rollout_BT, settings.tis_cap)
    surrogate_BT = clipped_surrogate(ratio_BT, advantages_B, settings.clip_low, settings.clip_high, settings.dual_clip)
    loss_BT = -weight_BT * surrogate_BT
    kl_BT = torch.zeros_like(new_BT) if reference_BT is None else kl_k3(new_BT, reference_BT)
    if reference_BT is not None:
        loss_BT = loss_BT + settings.kl_coefficient * kl_BT
    if settings.entropy_coefficient:
        loss_BT = loss_BT - settings.entropy_coefficient * entropy_BT
    mismatch_BT = log_ratio(old_BT, rollout_BT)
    raw_weight_BT = mismatch_BT.exp()
    capped_BT = raw_weight_BT > (settings.tis_cap or torch.inf)
    below_BT, above_BT = ratio_BT < 1 - settings.clip_low, ratio_BT > 1 + settings.clip_high
    signs_B1 = advantages_B.sign().unsqueeze(-1)
    per_token = {
        "ratio": ratio_BT,
        "clip_fraction": above_BT & (signs_B1 > 0) | below_BT & (signs_B1 < 0),
        "dual_clip_fraction": (ratio_BT > (settings.dual_clip or torch.inf)) & (signs_B1 < 0),
        "outside_range_fraction": below_BT | above_BT,
        "tis_weight": weight_BT,
        "tis_weight_squared": weight_BT.square(),
        "tis_capped_fraction": capped_BT,
        "mismatch_k1": -mismatch_BT,
        "mismatch_k3": raw_weight_BT - mismatch_BT - 1,
        "update_k3": kl_k3(old_BT, new_BT),
        "entropy": entropy_BT,
        "kl_reference": kl_BT,
    }
    with torch.no_grad():
        sums = {name: float(values.float()[mask_BT].sum()) for name, values in per_token.items()}
    loss = aggregate(loss_BT, mask_BT, settings.aggregation, denominators, trajectory_shares_B)
    return LossTerms(loss=loss, sums=sums)
