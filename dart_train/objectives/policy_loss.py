"""The loss of a micro-batch, made of the parts that the settings name.

    token loss = -weight x surrogate + b x kl(new, ref) - h x entropy
    loss = aggregate(token loss) + s x imitation

Role: correction, surrogate, KL and entropy terms per token, then one aggregation; the imitation term; the sums of the metrics. Rule: no
model, no state. Non-goals: the formulas of the parts, advantages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dart_train.objectives.aggregation import Denominators, aggregate
from dart_train.objectives.algorithms import load_surrogate
from dart_train.objectives.corrections import correct
from dart_train.objectives.divergence import estimate_kl
from dart_train.objectives.imitation import imitation_loss
from dart_train.objectives.settings import LossSettings
from dart_train.objectives.terms import TokenTerms, log_ratio, select

TARGET_METRICS = ("ratio", "mismatch_k3", "entropy")
"""Metrics that are also summed over the targets of an action head alone."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch as the loss sees it; all log-probs are those of the sampled tokens.

    Attributes:
        new_BT: Log-probs of the policy that is trained, with gradient, [B, T].
        old_BT: Log-probs of the policy before the update, [B, T].
        rollout_BT: Log-probs of the policy that sampled the tokens, [B, T].
        entropy_BT: Entropy of the policy per token, with gradient, in nats, [B, T].
        advantages_B: Advantages of the rows, [B].
        mask_BT: Tokens that are trained on, bool [B, T].
        shares_B: 1 / number of rows of the row's trajectory, [B].
        reference_BT: Log-probs of the reference model, [B, T]; None: no KL term.
        imitated_BT: Tokens that are imitated, none of which is trained on, bool [B, T]; None: there are none.
        targets_BT: What of `mask_BT` are targets of an action head and no tokens, bool [B, T]; None: there is no head.
    """

    new_BT: Tensor
    old_BT: Tensor
    rollout_BT: Tensor
    entropy_BT: Tensor
    advantages_B: Tensor
    mask_BT: Tensor
    shares_B: Tensor
    reference_BT: Tensor | None = None
    imitated_BT: Tensor | None = None
    targets_BT: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The result of `policy_loss`.

    Attributes:
        loss: Scalar with gradient.
        sums: Sums over the trained tokens of this micro-batch, to be divided by the token count of the mini-batch. `clip_fraction` counts
            tokens whose gradient the clip removes (above the range with A > 0, below it with A < 0), `dual_clip_fraction` those whose
            gradient the bound for negative advantages removes, `outside_range_fraction` all whose ratio is outside the range.
            `imitation_nll` is a sum over the imitated tokens, what begins with `target_` over the targets, which `targets` counts.
    """

    loss: Tensor
    sums: dict[str, float]


def policy_loss(batch: MicroBatch, settings: LossSettings, whole: Denominators) -> LossTerms:
    """Compute the loss of one micro-batch.

    Args:
        batch: The micro-batch.
        settings: Parts and coefficients.
        whole: Denominators of the mini-batch.

    Returns:
        The loss and the sums of the metrics.
    """
    mask_BT = batch.mask_BT
    new_BT, entropy_BT = select(batch.new_BT, mask_BT), select(batch.entropy_BT, mask_BT)
    old_BT, rollout_BT = select(batch.old_BT.detach(), mask_BT), select(batch.rollout_BT, mask_BT)
    correction = correct(old_BT, rollout_BT, mask_BT, settings)
    terms = TokenTerms(new_BT, correction.anchor_BT, batch.advantages_B, mask_BT)
    surrogate = load_surrogate(settings.surrogate)(terms, settings)
    loss_BT = -correction.weight_BT * surrogate.value_BT
    kl_BT = torch.zeros_like(new_BT)
    if batch.reference_BT is not None:
        kl_BT = estimate_kl(new_BT, select(batch.reference_BT.detach(), mask_BT), settings.kl_estimator)
        loss_BT = loss_BT + settings.kl_coefficient * kl_BT
    if settings.entropy_coefficient:
        loss_BT = loss_BT - settings.entropy_coefficient * entropy_BT
    mismatch_BT = log_ratio(old_BT, rollout_BT)
    dual_BT = surrogate.dual_clipped_BT
    per_token = {
        "ratio": terms.ratio_BT,
        "clip_fraction": surrogate.clipped_BT,
        "dual_clip_fraction": torch.zeros_like(mask_BT) if dual_BT is None else dual_BT,
        "outside_range_fraction": surrogate.outside_BT,
        "tis_weight": correction.weight_BT,
        "tis_weight_squared": correction.weight_BT.square(),
        "tis_capped_fraction": correction.bounded_BT,
        "mismatch_k1": -mismatch_BT,
        "mismatch_k3": mismatch_BT.exp() - mismatch_BT - 1,
        "update_k3": estimate_kl(old_BT, new_BT),
        "entropy": entropy_BT,
        "kl_reference": kl_BT,
    }
    with torch.no_grad():
        sums = {name: float(values.expand_as(mask_BT).float()[mask_BT].sum()) for name, values in per_token.items()}
        if batch.targets_BT is not None:
            chosen_BT = batch.targets_BT & mask_BT
            sums |= {f"target_{name}": float(per_token[name].float()[chosen_BT].sum()) for name in TARGET_METRICS}
            sums["targets"] = float(chosen_BT.sum())
    loss = aggregate(loss_BT, mask_BT, batch.shares_B, settings, whole)
    if settings.sft_coefficient and batch.imitated_BT is not None:
        imitation = imitation_loss(batch.new_BT, batch.imitated_BT, whole.imitated)
        loss = loss + settings.sft_coefficient * imitation
        sums["imitation_nll"] = float(imitation.detach()) * whole.imitated
    return LossTerms(loss=loss, sums=sums)
