"""The recipe's section `warmup`: the supervised warm start.

Role: the schema. Non-goals: the settings of the process (`dart_train.warmup.config`).
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel


class WarmupSection(StrictModel):
    """Supervised warm start on the demonstrations and on the accessibility trees of their screens.

    Attributes:
        enabled: False: the run starts from the model as it is.
        imitated_families: Families whose demonstrated actions are imitated; None: all. Screens of all families are used.
        imitated_demos_per_family: Demonstrations per family that are imitated.
        imitate_order: False: any element that the instruction mentions is imitated, so that their order is not learnt.
        imitation_fraction: How often an imitated action is asked about where a screen has one.
        pages: Pages of texts, cut out of the screens, that the vision tower learns to read before the policy learns to answer; 0: none.
        pages_max_minutes: Minutes after which reading ends.
        images: Training images in all, repeats included.
        queries_per_image: Queries per image.
        batch_size: Images per update.
        learning_rate: Greatest learning rate.
        max_minutes: Minutes after which the warm start ends.
        threads: CPU threads of each process.
        processes: Processes that learn together, each from its part of every batch (torchrun). On a CPU two processes of one thread learn
            faster than one of two threads.
    """

    enabled: bool = True
    imitated_families: tuple[str, ...] | None = Field(
        default=None,
    )
    imitated_demos_per_family: int = Field(default=16, ge=0)
    imitate_order: bool = Field(
        default=True,
    )
    imitation_fraction: float = Field(default=0.5, ge=0, le=1)
    pages: int = Field(default=0, ge=0)
    pages_max_minutes: float = Field(default=20.0, gt=0)
    images: int = Field(default=24_000, ge=1)
    queries_per_image: int = Field(default=6, ge=1, le=64)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=7e-4, gt=0)
    max_minutes: float = Field(default=10.0, gt=0)
    threads: int = Field(default=2, ge=1)
    processes: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _batches_are_divided_evenly(self) -> Self:
        if self.batch_size % self.processes:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of processes {self.processes}: each process learns from an equal part"
            )
        return self
