"""Configuration of the training of grounding models and verifiers.

Role: the JSON file that the process reads. Rule: unknown keys are errors; the module imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from dart_agent.grounding.verifier import Marking
from dart_agent.strict_model import StrictModel
from dart_train.model.adapters import LoraSettings
from dart_train.model.device import DeviceChoice, DtypeChoice
from dart_train.objectives.advantages import AdvantageName
from dart_train.trainer.config import OptimizerSettings

Stage = Literal["head", "all"]
OFFSET_PARTS = 4
"""Parts per side of a cell, of a new head."""
LEARNING_RATE = 1e-4
"""GUI-Actor's rate of its first stage, and that of adapters."""
WHOLE_MODEL_LEARNING_RATE = 5e-6
"""GUI-Actor's rate of its second stage, which collapses at 1e-4 (microsoft/GUI-Actor, issue 16)."""
WARMUP_UPDATES = 30
"""Updates over which the learning rate rises, where nothing else is given."""
VERIFIER_LEARNING_RATE = 2e-5
"""GUI-Actor's rate of its verifier (arXiv 2506.03143, appendix F)."""


class SupervisedConfig(StrictModel):
    """What a model learns from, and for how long.

    Attributes:
        start_model: Directory or name of the model to start from.
        samples: Files of grounding samples (`dart_agent.grounding.samples`), images beside them.
        out_dir: Where the model is written, atomically; it must not exist.
        checkpoints: Directory of trainer states; training goes on from the newest one there.
        metrics: File that gets a JSON line periodically.
        freeze_vision: Keep the vision tower as it is.
        updates: Updates in all.
        images_per_update: Images per update.
        questions_per_image: Greatest number of samples of an image in an update.
        optimizer: AdamW. What is not given of it: the learning rate is `default_learning_rate`, after a warm-up of 30 updates, with the
            schedule `cosine`.
        checkpoint_every: Updates between trainer states.
        report_every: Updates per metric line.
        seed: Seed of all that is random.
        threads: CPU threads of torch.
        device: Where to train.
        dtype: Of matrix products; auto: bfloat16 on a GPU, else float32. Weights that are trained are float32.
        rows_per_pass: Rows of one forward and backward pass: images with their questions, or marked crops for a verifier. Fewer rows take
            less memory and give the same gradients up to rounding, and to what dropout leaves out. None: all rows of an update.
        gradient_checkpointing: Keep only the inputs of each layer for the backward pass, and compute the rest again in it.
        max_pixels: Most pixels of an image; the processor shrinks larger ones, also when the trained model is used. None: the processor's
            own limit.
    """

    start_model: str
    samples: tuple[Path, ...] = Field(min_length=1)
    out_dir: Path
    checkpoints: Path
    metrics: Path
    freeze_vision: bool = False
    updates: int = Field(default=1000, ge=1)
    images_per_update: int = Field(default=8, ge=1)
    questions_per_image: int = Field(default=6, ge=1)
    optimizer: OptimizerSettings = OptimizerSettings()
    checkpoint_every: int = Field(default=200, ge=1)
    report_every: int = Field(default=20, ge=1)
    seed: int = Field(default=0, ge=0)
    threads: int = Field(default=2, ge=1)
    device: DeviceChoice = "auto"
    dtype: DtypeChoice = "auto"
    rows_per_pass: int | None = Field(default=None, ge=1)
    gradient_checkpointing: bool = False
    max_pixels: int | None = Field(default=None, ge=1)

    @property
    def default_learning_rate(self) -> float:
        """The learning rate where none is given."""
        return LEARNING_RATE

    @model_validator(mode="after")
    def _complete_optimizer(self) -> Self:
        given = self.optimizer.model_fields_set if "optimizer" in self.model_fields_set else frozenset[str]()
        defaults = {
            "learning_rate": self.default_learning_rate,
            "lr_warmup_updates": WARMUP_UPDATES,
            "lr_schedule": "cosine",
        }
        missing = {name: value for name, value in defaults.items() if name not in given}
        object.__setattr__(self, "optimizer", self.optimizer.model_copy(update=missing))  # the model is frozen
        return self


class VerifierConfig(SupervisedConfig):
    """How a verifier is trained.

    Attributes:
        optimizer: AdamW; the learning rate, where it is not given, is 2e-5.
        marking: How points are shown; kept with the model, so that it is used as it was trained. On small images a marker must be smaller
            than the elements, or it hides them.
        hard_fraction: Fraction of the wrong points that lie on other elements or just beside the target; the others are anywhere.
    """

    marking: Marking = Marking()
    hard_fraction: float = Field(default=0.75, ge=0, le=1)

    @property
    def default_learning_rate(self) -> float:
        """That of GUI-Actor's verifier."""
        return VERIFIER_LEARNING_RATE


class HeadConfig(SupervisedConfig):
    """What of a model with an action head is trained; a start model without a head gets a new one.

    Attributes:
        optimizer: AdamW; the learning rate, where it is not given, is 1e-4, and 5e-6 where the whole model is trained.
        stage: head: the head and the embeddings of its tokens, on a frozen backbone. all: everything.
        lora: With stage all: train adapters on the language model instead of its weights.
        offset_parts: Parts per side of a cell, of a new head.
        dropout: Dropout of the head.
        system: System prompt, of a new head.
    """

    stage: Stage = "head"
    lora: LoraSettings | None = None
    offset_parts: int = Field(default=OFFSET_PARTS, ge=1, le=16)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    system: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stage == "head" and (self.lora is not None or self.freeze_vision):
            raise ValueError("lora and freeze_vision are for stage all: stage head freezes the whole backbone")
        return self

    @property
    def default_learning_rate(self) -> float:
        """5e-6 where the whole model is trained, else 1e-4."""
        return WHOLE_MODEL_LEARNING_RATE if self.stage == "all" and self.lora is None else LEARNING_RATE


class GroundingConfig(HeadConfig):
    """How a grounding model learns from labels.

    Attributes:
        pointer_weight: Weight of the attention's loss.
        offset_weight: Weight of the loss of the place within a cell.
        language_weight: Weight of the language model's loss on the answers; None: 0 in stage head and 1 in stage all, as published.
        soft_labels: Weigh cells by the share that the target covers.
    """

    pointer_weight: float = Field(default=1.0, ge=0)
    offset_weight: float = Field(default=0.1, ge=0)
    language_weight: float | None = Field(default=None, ge=0)
    soft_labels: bool = False

    @property
    def lm_weight(self) -> float:
        """Weight of the language model's loss."""
        if self.language_weight is not None:
            return self.language_weight
        return 0.0 if self.stage == "head" else 1.0


class PointRewardConfig(HeadConfig):
    """How a model that points is trained by reward.

    Attributes:
        dropout: 0, so that the log-probs are those of the policy that sampled.
        group: Points that are sampled per question.
        temperature: Temperature at which they are sampled.
        advantage: How rewards of a group become advantages (`dart_train.objectives.advantages`).
        entropy_weight: Weight of the entropy bonus.
    """

    dropout: float = Field(default=0.0, ge=0, le=0)
    group: int = Field(default=8, ge=2)
    temperature: float = Field(default=1.0, gt=0)
    advantage: AdvantageName = "grpo"
    entropy_weight: float = Field(default=0.0, ge=0)
