"""The recipe's section `train`: the loss, the optimiser and the batches.

Role: the schema. Rule: keys that the recipe leaves out have the values of the named algorithm. Non-goals: the settings of the process
(`dart_train.trainer.config`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, model_validator

from dart_agent.strict_model import StrictModel
from dart_train.model.adapters import LoraSettings
from dart_train.objectives.advantages import AdvantageName
from dart_train.objectives.algorithms import DUAL_CLIPPED, SURROGATES, find_algorithm, load_surrogate
from dart_train.objectives.settings import (
    AdvantageOver,
    Aggregation,
    CorrectionKind,
    KlEstimator,
    LossSettings,
)

UNBOUNDED = ("dual_clip", "max_grad_norm", "tis_cap")
"""Keys of the section `train` that may have no value."""


class TrainSection(StrictModel):
    """GRPO; `learning_rate = 0` runs the same code and changes nothing, which is the control experiment.

    Attributes:
        updates: Policy versions to make; 0: the policy is evaluated once, and nothing is trained.
        max_minutes: Minutes after which training ends.
        groups_per_batch: Groups per train step.
        epochs: Passes over a batch.
        minibatches: Optimiser steps per pass.
        learning_rate: Learning rate after its warm-up.
        lr_warmup_updates: Train steps over which the learning rate rises.
        lr_schedule: What the learning rate does after that, up to the train step `updates`: `constant`, or `linear` or `cosine` down to 0.
        beta1: AdamW's decay of the mean of gradients.
        beta2: Its decay of the mean of squared gradients.
        weight_decay: Weight decay.
        grad_clip: Greatest norm of a gradient.
        max_grad_norm: A batch whose gradient has a greater norm before it is clipped is not trained on, and its trajectories are
            quarantined; "none": no bound. At least `grad_clip`.
        algorithm: Which settings the keys below have unless the recipe says otherwise (`dart_train.objectives.algorithms`): `grpo`,
            `grpo-trajectory`, `dr-grpo`, `rloo`, `dapo`, `gspo`, `cispo`, or one of a package.
        surrogate: What is maximised per token: `clipped`, `sequence_clipped`, `weighted`, `policy_gradient`, or your own `module:function`.
        clip_low: Lower clip width of the ratio.
        clip_high: Upper clip width of the ratio.
        dual_clip: Bound of the loss for negative advantages, as a factor of the advantage; "none": no bound. `weighted` and
            `policy_gradient` do not have it.
        correction: How the difference between sampling policy and trainer is corrected (`dart_train.objectives.corrections`).
        tis_cap: Upper bound of the importance weight; "none": no bound, and under `token_truncate` no weight.
        correction_floor: Lower bound of the ratio that the masks keep.
        kl_coefficient: Weight of the KL term to the reference model.
        reference_model: Path of that model, or its name in the local cache; None: the policy that training starts from.
        kl_estimator: `k3`, or `k1`, whose gradient vanishes in expectation.
        entropy_coefficient: Weight of the entropy bonus.
        sft_coefficient: Weight of the imitation term: the mean negative log-likelihood of demonstrated answers (`demos.path`, and
            `demos.per_family`, which a run with a warm start collects). They have no log-probs of the policy that sampled them, so that
            they never take part in ratios or advantages.
        sft_steps_per_update: Demonstrated steps that each optimiser step imitates.
        advantage: Formula of the advantages: `grpo`, (reward - mean) / deviation; `no_std`, without the deviation; `leave_one_out`, minus
            the mean of the other trajectories; or your own `module:function`.
        advantage_over: What that mean and deviation are taken over: `group_steps`, all steps of a group (DART), or `group_trajectories`,
            its trajectories. The default is the one whose advantages cancel in the default aggregation.
        aggregation: How token losses become one number: `seq_mean_token_mean`, every step counts once (goes with `group_steps`);
            `trajectory_mean`, every trajectory counts once (goes with `group_trajectories`); `token_mean`, every token counts once;
            `constant_length`, every token counts once, and the number of trajectories times `constant_length` divides.
        constant_length: Tokens by which `constant_length` divides.
        micro_batch_tokens: Tokens per forward and backward pass; lower it where memory is short.
        image_cache_gib: GiB of converted screenshots that each process keeps in the memory of the host; where those of a batch fit, each is
            converted once per batch, else about once per pass over the batch.
        gradient_checkpointing: Keep only the inputs of layers for the backward pass and compute the rest again: less memory, more time.
        freeze_vision: Train the language model only, not the vision tower.
        lora_rank: Rank of a LoRA adapter on the language model, which is then all that is trained; None: all weights are trained.
        lora_alpha: The adapter's product is scaled by lora_alpha / lora_rank; None: by 2.
        lora_targets: Linear layers of the language model that get an adapter, such as `q_proj`; None: all of them.
        device: Where the trainer and the warm start run; auto: a GPU where torch finds one.
        dtype: Data type of matrix products; auto: bfloat16 on a GPU, else float32; in the warm start bfloat16 on a CPU with
            instructions for it, too.
        processes: Processes that share parameters and batches (FSDP2, started by torchrun): the number of GPUs to train on.
        devices: Numbers of the GPUs that train, among those that the run sees, one per process; None: from the first one on.
        threads: CPU threads of each.
        checkpoint_every: Train steps per checkpoint; a run has one of its first train step, too.
        keep_checkpoints: Newest checkpoints that are kept; a run goes on from the one before where the newest is damaged.
        keep_versions: Newest published versions that are kept, beside the best ones (`eval.keep_best`).
        max_failed_batches: Batches that fail one after the other until the run ends.
        share_prefixes: Whether steps of a trajectory that continue each other share a token stream; without it the result is the same and
            takes longer, which is the control of a measurement.
    """

    updates: int = Field(default=60, ge=0)
    max_minutes: float = Field(default=25.0, gt=0)
    groups_per_batch: int = Field(default=8, ge=1)
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-4, ge=0)
    lr_warmup_updates: int = Field(default=5, ge=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    max_grad_norm: float | None = Field(default=None, gt=0)
    algorithm: str = "grpo"
    surrogate: str = "clipped"
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    correction: CorrectionKind = "token_truncate"
    tis_cap: float | None = Field(default=2.0, gt=0)
    correction_floor: float = Field(default=0.5, ge=0)
    kl_coefficient: float = Field(default=0.0, ge=0)
    reference_model: str | None = None
    kl_estimator: KlEstimator = "k3"
    entropy_coefficient: float = Field(default=0.0, ge=0)
    sft_coefficient: float = Field(default=0.0, ge=0)
    sft_steps_per_update: int = Field(default=32, ge=1)
    advantage: AdvantageName = "grpo"
    advantage_over: AdvantageOver = "group_steps"
    aggregation: Aggregation = "seq_mean_token_mean"
    constant_length: int = Field(default=512, ge=1)
    micro_batch_tokens: int = Field(default=8192, ge=1)
    image_cache_gib: float = Field(default=4.0, ge=0)
    gradient_checkpointing: bool = False
    freeze_vision: bool = False
    lora_rank: int | None = Field(default=None, ge=1, le=512)
    lora_alpha: float | None = Field(default=None, gt=0)
    lora_targets: tuple[str, ...] | None = Field(default=None, min_length=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
    )
    processes: int = Field(default=1, ge=1)
    devices: tuple[NonNegativeInt, ...] | None = None
    threads: int = Field(default=1, ge=1)
    checkpoint_every: int = Field(default=1, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    keep_versions: int = Field(default=4, ge=2)
    max_failed_batches: int = Field(default=5, ge=1)
    share_prefixes: bool = True

    @model_validator(mode="before")
    @classmethod
    def _begin_with_the_algorithm(cls, section: Any) -> Any:
        """The algorithm's settings, and over them what the recipe says; TOML has no null, so that "none" stands for it."""
        if not isinstance(section, dict):
            return section
        name = section.get("algorithm", "grpo")
        settings = {**find_algorithm(name).settings, **section} if isinstance(name, str) else section
        return {key: None if key in UNBOUNDED and value == "none" else value for key, value in settings.items()}

    @property
    def corrects(self) -> bool:
        """Whether the difference between sampling policy and trainer is corrected at all."""
        return self.correction != "none" and not (self.correction == "token_truncate" and self.tis_cap is None)

    @property
    def lora(self) -> LoraSettings | None:
        """The adapter that is trained, None where all weights are."""
        if self.lora_rank is None:
            return None
        return LoraSettings(rank=self.lora_rank, alpha=self.lora_alpha, targets=self.lora_targets)

    @model_validator(mode="after")
    def _bound_of_the_gradient_is_above_the_clip(self) -> TrainSection:
        if self.max_grad_norm is not None and self.max_grad_norm < self.grad_clip:
            raise ValueError(
                f"max_grad_norm = {self.max_grad_norm:g} is below grad_clip = {self.grad_clip:g}, so that what is only to be clipped would "
                "not be trained on: raise it, a hundred times the usual gradient norm is a good value"
            )
        return self

    @model_validator(mode="after")
    def _adapter_is_complete(self) -> TrainSection:
        if self.lora_rank is None and (self.lora_alpha is not None or self.lora_targets is not None):
            raise ValueError("lora_alpha and lora_targets are settings of an adapter: set lora_rank with them")
        return self

    @model_validator(mode="after")
    def _each_process_has_a_device(self) -> TrainSection:
        if self.devices is not None and len(set(self.devices)) != self.processes:
            raise ValueError(
                f"devices names {len(set(self.devices))} different GPUs for {self.processes} processes: name one for each"
            )
        return self

    @model_validator(mode="after")
    def _loss_can_be_made(self) -> TrainSection:
        if self.reference_model is not None and not self.kl_coefficient:
            raise ValueError("reference_model is that of the KL term: set kl_coefficient above 0 with it")
        self.loss_settings()
        if self.surrogate not in SURROGATES:
            load_surrogate(self.surrogate)
        elif self.dual_clip is not None and self.surrogate not in DUAL_CLIPPED:
            raise ValueError(
                f'dual_clip has no effect on surrogate = "{self.surrogate}" (algorithm = "{self.algorithm}"): set dual_clip = "none", or '
                f"as surrogate one of {', '.join(DUAL_CLIPPED)}"
            )
        if self.advantage == "leave_one_out" and self.advantage_over == "group_steps":
            raise ValueError(
                'advantage = "leave_one_out" leaves out whole trajectories: set advantage_over = "group_trajectories" and '
                'aggregation = "trajectory_mean" with it'
            )
        return self

    def loss_settings(self) -> LossSettings:
        """Return the settings of the loss with the same values."""
        return LossSettings.model_validate(
            {name: getattr(self, name) for name in LossSettings.model_fields if name in type(self).model_fields}
        )
