"""Settings of the trainer process, one JSON file.

Role: the schema. Rule: unknown keys are errors; the module imports no torch. Non-goals: the recipe (`dart_train.config`), from which
`dart_train.run.components` derives this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from dart_agent.data_client.address import DataManagerAddress
from dart_agent.strict_model import StrictModel, read_config_file
from dart_train.imitation.settings import ImitationSettings
from dart_train.model.adapters import LoraSettings
from dart_train.model.device import DeviceChoice, DtypeChoice
from dart_train.model.weights import PublishedDtype, PublishedWeightsKind
from dart_train.objectives.advantages import AdvantageName
from dart_train.objectives.settings import AdvantageOver, LossSettings

LearningRateSchedule = Literal["constant", "linear", "cosine"]


class OptimizerSettings(StrictModel):
    """AdamW; `learning_rate = 0` runs the same code and changes nothing, which is the control experiment.

    Attributes:
        learning_rate: The learning rate after its warm-up.
        lr_warmup_updates: Train steps over which the learning rate rises linearly.
        lr_schedule: What it does after that (`dart_train.trainer.schedule`).
        weight_decay: Weight decay.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of squared gradients.
        grad_clip: Greatest norm of a gradient.
        max_grad_norm: A batch with a gradient of a greater norm before it is clipped is not trained on; None: no bound.
    """

    learning_rate: float = Field(default=1e-4, ge=0)
    lr_warmup_updates: int = Field(default=0, ge=0)
    lr_schedule: LearningRateSchedule = "constant"
    weight_decay: float = Field(default=0.0, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    grad_clip: float = Field(default=1.0, gt=0)
    max_grad_norm: float | None = Field(default=None, gt=0)


class PolicyTrainingSettings(StrictModel):
    """What is trained, on what, and by which optimiser; whatever it is trained on.

    Attributes:
        checkpoints: Directory of trainer states.
        metrics: File that gets a JSON line per train step.
        start_model: The policy to start from: a directory, or a name in the local cache.
        reference_model: Model of the KL term; None: the start model.
        device: Where to train; auto: a GPU where torch finds one.
        dtype: Data type of matrix products.
        seed: Seed of everything random.
        threads: CPU threads of torch.
        micro_batch_tokens: Tokens per forward and backward pass; a longer token stream has a pass of its own.
        share_prefixes: Whether steps of a trajectory that continue each other share a token stream; without it each step has one of its
            own, with the same result, which is the control of a measurement.
        image_cache_gib: GiB of converted images that each process keeps in the memory of the host.
        gradient_checkpointing: Whether activations of layers are computed again in the backward pass instead of kept.
        freeze_vision: Whether the vision tower stays as it is.
        optimizer: Settings of the optimiser.
        loss: Parts and coefficients of the loss.
        lora: Which adapter is trained; None: all weights are.
        pointer: Whether the policy has an action head, which is trained with it on the points of its steps.
        publish: What a version is: the whole model, an adapter merged into it, or the adapter alone.
        publish_dtype: Data type of published tensors (`dart_train.model.weights`).
        keep_checkpoints: Trainer states that are kept.
        checkpoint_every: Train steps per checkpoint.
    """

    checkpoints: Path
    metrics: Path
    start_model: str
    reference_model: str | None = None
    device: DeviceChoice = "auto"
    dtype: DtypeChoice = "auto"
    seed: int = 0
    threads: int = Field(default=1, ge=1)
    micro_batch_tokens: int = Field(default=8192, ge=1)
    share_prefixes: bool = True
    image_cache_gib: float = Field(default=4.0, ge=0)
    gradient_checkpointing: bool = False
    freeze_vision: bool = False
    optimizer: OptimizerSettings = OptimizerSettings()
    loss: LossSettings = LossSettings()
    lora: LoraSettings | None = None
    pointer: bool = False
    publish: PublishedWeightsKind = "model"
    publish_dtype: PublishedDtype = "as_trained"
    keep_checkpoints: int = Field(default=2, ge=1)
    checkpoint_every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _adapter_exists(self) -> Self:
        if self.publish == "adapter" and self.lora is None:
            raise ValueError("publish = 'adapter' needs `lora`, the adapter that is trained")
        return self

    @model_validator(mode="after")
    def _head_can_be_trained(self) -> Self:
        if self.pointer and self.loss.kl_coefficient:
            raise ValueError("`pointer` trains without a KL term: leave loss.kl_coefficient out")
        if self.pointer and self.publish == "adapter":
            raise ValueError("publish = 'adapter' has no place for the head that `pointer` trains: publish = 'model'")
        return self


class TrainerConfig(PolicyTrainingSettings, DataManagerAddress):
    """Everything that the trainer process needs beside the policy.

    Attributes:
        images: Directory of image blobs, or the URL of a file system of fsspec.
        weights: Directory of published policy versions.
        max_updates: Train steps after which training ends; None: no limit.
        max_minutes: Minutes after which training ends; None: no limit.
        epochs: Passes over a batch.
        minibatches: Optimiser steps per pass.
        advantage: Formula of the advantages (`dart_train.objectives.advantages`).
        advantage_over: What its mean and deviation are taken over (`dart_train.objectives.advantages`).
        high_entropy_step_fraction: Fraction of a group's steps, those with the highest entropy, that is trained on.
        high_entropy_token_fraction: Fraction of the tokens of these steps, those with the highest entropy, that is trained on.
        imitation: Demonstrations of the imitation term, whose weight is `loss.sft_coefficient`; None: there are none.
        keep_weights: Published versions that are kept.
        max_failed_batches: Batches in a row that may fail; then training ends.
    """

    images: Path | str
    weights: Path
    max_updates: int | None = Field(default=None, ge=0)
    max_minutes: float | None = Field(default=None, gt=0)
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    advantage: AdvantageName = "grpo"
    advantage_over: AdvantageOver = "group_steps"
    high_entropy_step_fraction: float = Field(default=1.0, gt=0, le=1)
    high_entropy_token_fraction: float = Field(default=1.0, gt=0, le=1)
    imitation: ImitationSettings | None = None
    keep_weights: int = Field(default=4, ge=2)
    max_failed_batches: int = Field(default=5, ge=1)

    @model_validator(mode="after")
    def _schedule_has_an_end(self) -> Self:
        if self.optimizer.lr_schedule != "constant" and self.max_updates is None:
            raise ValueError(
                f"optimizer.lr_schedule {self.optimizer.lr_schedule!r} needs max_updates, the end of the schedule"
            )
        return self

    @model_validator(mode="after")
    def _has_something_to_imitate(self) -> Self:
        if (self.loss.sft_coefficient > 0) != (self.imitation is not None):
            raise ValueError(
                "loss.sft_coefficient and `imitation` go together: the weight of the imitation term, and what it imitates"
            )
        return self


def read_trainer_config(path: Path) -> TrainerConfig:
    """Read and check the configuration.

    Args:
        path: The JSON file.

    Returns:
        The configuration.

    Raises:
        ConfigError: The file cannot be read or has mistakes.
    """
    return read_config_file(path, TrainerConfig)
