"""Settings of the loss: which parts it is made of, and their coefficients.

Role: the schema. Rule: unknown keys and contradictions are errors; the module imports no torch. Non-goals: formulas (the other modules of
this package), which algorithm has which settings (`dart_train.objectives.algorithms`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel

AdvantageOver = Literal["group_steps", "group_trajectories"]
Aggregation = Literal["token_mean", "seq_mean_token_mean", "trajectory_mean", "constant_length"]
CorrectionKind = Literal[
    "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "decoupled", "rollout_anchor"
]
KlEstimator = Literal["k1", "k3"]


class LossSettings(StrictModel):
    """Parts and coefficients of the loss (`dart_train.objectives.policy_loss`).

    Attributes:
        surrogate: What is maximised per token: a name of `dart_train.objectives.algorithms.SURROGATES`, or `module:function`.
        clip_low: Lower clip width of the ratio.
        clip_high: Upper clip width of the ratio.
        dual_clip: Bound of the loss for negative advantages; None: no bound.
        correction: How the difference between the policy that sampled a token and the trainer's is corrected
            (`dart_train.objectives.corrections`).
        tis_cap: Upper bound of the importance weight; None: no bound, and without another correction no weight.
        correction_floor: Lower bound of the ratio that the masks keep.
        kl_coefficient: Weight of the KL term to the reference model.
        kl_estimator: How the KL divergence is estimated (`dart_train.objectives.divergence`).
        entropy_coefficient: Weight of the entropy bonus.
        sft_coefficient: Weight of the log-likelihood of tokens that are imitated (`dart_train.objectives.imitation`).
        aggregation: How token losses become one number (`dart_train.objectives.aggregation`).
        constant_length: Tokens by which `constant_length` divides.
    """

    surrogate: str = "clipped"
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    correction: CorrectionKind = "token_truncate"
    tis_cap: float | None = Field(default=2.0, gt=0)
    correction_floor: float = Field(default=0.5, ge=0)
    kl_coefficient: float = Field(default=0.0, ge=0)
    kl_estimator: KlEstimator = "k3"
    entropy_coefficient: float = Field(default=0.0, ge=0)
    sft_coefficient: float = Field(default=0.0, ge=0)
    aggregation: Aggregation = "seq_mean_token_mean"
    constant_length: int = Field(default=512, ge=1)

    @model_validator(mode="after")
    def _mask_keeps_something(self) -> LossSettings:
        masks = self.correction in ("token_mask", "sequence_mask")
        if masks and self.tis_cap is not None and self.correction_floor >= self.tis_cap:
            raise ValueError("correction_floor is not below tis_cap: the mask would keep nothing")
        return self


__all__ = ["AdvantageOver", "Aggregation", "CorrectionKind", "KlEstimator", "LossSettings"]
