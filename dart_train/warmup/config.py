"""Configuration of the warm-start process.

Role: the JSON file that it reads. Rule: unknown keys are errors; the module imports no torch.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dart_agent.prompts.builder import PresetName
from dart_agent.strict_model import StrictModel
from dart_train.model.device import DeviceChoice, DtypeChoice

WARM_START_KINDS = ("reading", "warmup")
"""Kinds of the metric lines of a warm start, one after the other."""


class WarmupConfig(StrictModel):
    """What the warm start learns from, for how long, and the settings that limit it.

    `imitated_families` and `imitated_demos_per_family` say which demonstrated actions are imitated; the screens of all families are used
    for grounding queries.

    Attributes:
        start_model: Directory or name of the policy to start from.
        screens: Directory of annotated screens.
        out_dir: Where version 0 is written, atomically; it must not exist.
        metrics: File that gets a JSON line periodically.
        prompt: Prompt preset of the policy.
        min_pixels: Least pixels of a model-input image; None: the prompt's own.
        max_pixels: Most pixels of a model-input image; None: the prompt's own.
        pointer: Whether the policy has an action head: it learns to describe elements, and the head to find them. One without a head gets a
            new one.
        offset_parts: Parts per side of a cell that a new head tells apart.
        device: Where to train; auto: a GPU where torch finds one.
        dtype: Data type of matrix products; auto: bfloat16 where the device has instructions for it.
        seed: Seed of everything random.
        threads: CPU threads of torch.
        imitated_families: Families whose demonstrations are imitated; None: all.
        imitated_demos_per_family: Demonstrations per family that are imitated.
        imitate_order: Whether the order of the demonstrated actions is imitated, too.
        imitation_fraction: How often an imitated action is asked about where a screen has one.
        thought_given_fraction: Fraction of the other queries that use the task's instruction and give the thought.
        coordinate_step_px: Grid of click coordinates, in the numbers that the policy writes; 1: none.
        pages: Pages of texts that the vision tower learns to read before the policy learns to answer; 0: none.
        pages_learning_rate: Greatest learning rate of these pages.
        pages_max_minutes: Minutes after which reading ends.
        report_every_pages: Pages per metric line.
        images: Training images in all, repeats included.
        queries_per_image: Queries per image.
        batch_size: Images per update.
        learning_rate: Greatest learning rate.
        lr_warmup_updates: Updates over which the learning rate rises.
        lr_decay_fraction: Last fraction of the images over which the learning rate falls.
        weight_decay: Weight decay of matrices.
        grad_clip: Greatest norm of a gradient.
        translate_windows: Whether windows are translated in the training images (augmentation).
        held_out_fraction: Fraction of the tasks that is kept for measuring accuracy.
        report_every_images: Images per metric line.
        max_minutes: Minutes after which the warm start ends.
    """

    start_model: str
    screens: Path
    out_dir: Path
    metrics: Path
    prompt: PresetName = "tiny"
    min_pixels: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)
    pointer: bool = False
    offset_parts: int = Field(default=4, ge=1)
    device: DeviceChoice = "auto"
    seed: int = Field(default=0, ge=0)
    threads: int = Field(default=2, ge=1)
    imitated_families: tuple[str, ...] | None = None
    imitated_demos_per_family: int = Field(default=16, ge=0)
    imitate_order: bool = Field(
        default=True,
    )
    imitation_fraction: float = Field(default=0.5, ge=0, le=1)
    thought_given_fraction: float = Field(default=0.5, ge=0, le=1)
    coordinate_step_px: int = Field(default=8, ge=1)
    pages: int = Field(default=0, ge=0)
    pages_learning_rate: float = Field(default=1e-3, gt=0)
    pages_max_minutes: float = Field(default=20.0, gt=0)
    report_every_pages: int = Field(default=3_200, ge=1)
    images: int = Field(default=24_000, ge=1)
    queries_per_image: int = Field(default=6, ge=1, le=64)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=7e-4, gt=0)
    lr_warmup_updates: int = Field(default=60, ge=1)
    lr_decay_fraction: float = Field(default=0.3, gt=0, le=1)
    weight_decay: float = Field(default=0.01, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    dtype: DtypeChoice = "auto"
    translate_windows: bool = True
    held_out_fraction: float = Field(default=0.1, gt=0, lt=1)
    report_every_images: int = Field(default=1_600, ge=1)
    max_minutes: float = Field(default=10.0, gt=0)
