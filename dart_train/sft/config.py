"""Configuration of the process of supervised fine-tuning, one JSON file.

Role: the schema. Rule: unknown keys are errors; the module imports no torch.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dart_train.imitation.settings import DemonstrationSettings
from dart_train.trainer.config import PolicyTrainingSettings


class SftConfig(PolicyTrainingSettings):
    """What is imitated, for how long, and where the result goes.

    Attributes:
        out_dir: Where the model is written, atomically; it must not exist.
        images: Directory in which the pictures of demonstrations are kept.
        demonstrations: Demonstrations.
        successes_of: Folders of runs whose solved training rollouts are imitated.
        successes_per_task: Most of these per task.
        epochs: Passes over the demonstrated steps.
        steps_per_update: Demonstrated steps per optimiser step.
        held_out_fraction: Fraction of the tasks that only the loss is measured on.
        report_every: Optimiser steps per metric line.
    """

    out_dir: Path
    images: Path
    demonstrations: DemonstrationSettings = DemonstrationSettings()
    successes_of: tuple[Path, ...] = ()
    successes_per_task: int = Field(default=4, ge=1)
    epochs: int = Field(default=3, ge=1)
    steps_per_update: int = Field(default=32, ge=1)
    held_out_fraction: float = Field(default=0.05, ge=0, lt=1)
    report_every: int = Field(default=10, ge=1)
