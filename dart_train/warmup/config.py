"""Configuration of the warm-start process.

Role: the one JSON file it reads. Rule: unknown keys are errors; imports without torch.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dart_agent.prompts.builder import PresetName
from dart_agent.strict_model import StrictModel
from dart_train.model.device import DeviceChoice, DtypeChoice


class WarmupConfig(StrictModel):
    """What is learnt from, for how long, and how weak the result is meant to be.

    start_model: directory or name of the untrained policy. out_dir: where version 0 is written, atomically; must not exist.
    screens: directory of annotated screens. metrics: JSONL file that gets one line now and then.
    The weakness knobs: `imitated_families` (None: all) and `imitated_demos_per_family` say which demonstrated actions are
    imitated; screens of all families teach where named parts are. `imitation_fraction` is how often an imitated action is asked about
    when a screen has one.
    """

    start_model: str
    screens: Path
    out_dir: Path
    metrics: Path
    prompt: PresetName = "tiny"
    device: DeviceChoice = "auto"
    seed: int = Field(default=0, ge=0)
    threads: int = Field(default=2, ge=1)
    imitated_families: tuple[str, ...] | None = None
    imitated_demos_per_family: int = Field(default=16, ge=0)
    imitate_order: bool = Field(
        default=True,
        description="False: imitate any part that the instruction names, so that their order is not taught",
    )
    imitation_fraction: float = Field(default=0.5, ge=0, le=1)
    thought_given_fraction: float = Field(
        default=0.5, ge=0, le=1, description="of the other queries: under the task's instruction, thought given"
    )
    coordinate_step_px: int = Field(default=8, ge=1)
    images: int = Field(default=24_000, ge=1)
    queries_per_image: int = Field(default=6, ge=1, le=64)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=7e-4, gt=0)
    lr_warmup_updates: int = Field(default=60, ge=1)
    lr_decay_fraction: float = Field(
        default=0.3, gt=0, le=1, description="last share of the images over which the rate falls"
    )
    weight_decay: float = Field(default=0.01, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    dtype: DtypeChoice = "bfloat16"
    translate_windows: bool = Field(default=True, description="move windows about in the training pictures")
    held_out_fraction: float = Field(
        default=0.1, gt=0, lt=1, description="share of tasks kept for the accuracy in the metrics"
    )
    report_every_images: int = Field(default=1_600, ge=1)
    max_minutes: float = Field(default=10.0, gt=0)
