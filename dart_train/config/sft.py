"""The recipe's section `sft`: supervised fine-tuning by `dart-train sft`.

Role: the schema. Rule: model, adapter, devices, precision and optimiser are those of the sections `model` and `train`. Non-goals: the
settings of the process (`dart_train.sft.config`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dart_agent.strict_model import StrictModel


class SftSection(StrictModel):
    """Supervised fine-tuning.

    Attributes:
        epochs: Passes over the demonstrated steps.
        steps_per_update: Demonstrated steps per optimiser step.
        learning_rate: Greatest learning rate.
        lr_warmup_updates: Optimiser steps over which the learning rate rises.
        lr_schedule: What it does after that: `constant`, or `linear` or `cosine` down to 0.
        held_out_fraction: Fraction of the tasks that only the loss is measured on.
        successes_per_task: Most solved rollouts of a task that are imitated (`--from-run`), the newest first.
    """

    epochs: int = Field(default=3, ge=1)
    steps_per_update: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)
    lr_warmup_updates: int = Field(default=10, ge=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    held_out_fraction: float = Field(default=0.05, ge=0, lt=1)
    successes_per_task: int = Field(default=4, ge=1)
