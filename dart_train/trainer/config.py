"""Settings of the trainer process, one JSON file.

Role: the schema. Rule: unknown keys are errors; imports no torch. Non-goals: the recipe (`dart_train.config`), from which the launcher
derives this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from dart_agent.errors import ConfigError
from dart_agent.strict_model import StrictModel
from dart_train.model.device import DeviceChoice, DtypeChoice

AdvantageKind = Literal["grpo", "no_std", "leave_one_out"]
Aggregation = Literal["token_mean", "seq_mean_token_mean"]


class LossSettings(StrictModel):
    """Coefficients of the loss; formulas in `dart_train.trainer.loss`."""

    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(
        default=None, gt=1, description="bound of the loss for negative advantages; None: none"
    )
    tis_cap: float | None = Field(default=2.0, gt=0, description="cap of the importance weight; None: no weight")
    kl_coefficient: float = Field(default=0.0, ge=0)
    entropy_coefficient: float = Field(default=0.0, ge=0)
    aggregation: Aggregation = "seq_mean_token_mean"


class OptimizerSettings(StrictModel):
    """AdamW. `learning_rate = 0` runs the same path and changes nothing (the control)."""

    learning_rate: float = Field(default=1e-4, ge=0)
    lr_warmup_updates: int = Field(default=0, ge=0, description="updates over which the rate rises linearly")
    weight_decay: float = Field(default=0.0, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    grad_clip: float = Field(default=1.0, gt=0)


class TrainerConfig(StrictModel):
    """Everything the process needs.

    start_model: policy version 0. reference_model: of the KL term; None: the start model.
    high_entropy_step_fraction: share of a group's steps, by entropy, that is trained on.
    """

    socket: Path
    images: Path
    weights: Path
    checkpoints: Path
    metrics: Path
    start_model: str
    reference_model: str | None = None
    device: DeviceChoice = "auto"
    dtype: DtypeChoice = "auto"
    seed: int = 0
    threads: int = Field(default=1, ge=1)
    max_updates: int | None = Field(default=None, ge=0)
    max_minutes: float | None = Field(default=None, gt=0)
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    micro_batch_rows: int = Field(default=32, ge=1)
    advantage: AdvantageKind = "grpo"
    high_entropy_step_fraction: float = Field(default=1.0, gt=0, le=1)
    optimizer: OptimizerSettings = OptimizerSettings()
    loss: LossSettings = LossSettings()
    keep_weights: int = Field(default=4, ge=2)
    keep_checkpoints: int = Field(default=2, ge=1)
    checkpoint_every: int = Field(default=1, ge=1)


def read_trainer_config(path: Path) -> TrainerConfig:
    """Read and check the configuration. Raises ConfigError."""
    try:
        return TrainerConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"configuration {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        places = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"configuration {path}: {places}") from None
