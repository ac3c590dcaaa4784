"""Settings of the data manager process, one JSON file.

Role: the schema. Rule: unknown keys are errors; imports neither torch nor FastAPI. Non-goals: the recipe (`dart_train.config`), from
which the launcher derives this.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel
from dart_train.curation.experience_pool import ExperiencePoolSettings
from dart_train.curation.length_budget import LengthBudgetSettings
from dart_train.curation.rollout_budget import RolloutBudgetSettings
from dart_train.curation.task_sampler import TaskSamplerSettings


class CurationSettings(StrictModel):
    """What to run next; every rule is switchable."""

    task_sampler: TaskSamplerSettings = TaskSamplerSettings()
    rollout_budget: RolloutBudgetSettings = RolloutBudgetSettings()
    length_budget: LengthBudgetSettings = LengthBudgetSettings()
    experience_pool: ExperiencePoolSettings = ExperiencePoolSettings()


class BatchSettings(StrictModel):
    """When a batch is formed and what may be in it.

    max_ready_groups: no new training group is opened while this many wait for the trainer; None: no bound.
    """

    min_groups: int = Field(default=4, ge=1)
    max_groups: int = Field(default=8, ge=1)
    min_members: int = Field(default=2, ge=2, description="members with a verdict that a group needs")
    max_staleness: int = Field(default=4, ge=0, description="trainer version minus the version that wrote a token")
    max_ready_groups: int | None = Field(default=24, ge=1)

    @model_validator(mode="after")
    def _bounds_agree(self) -> BatchSettings:
        if self.min_groups > self.max_groups:
            raise ValueError("min_groups is above max_groups")
        if self.max_ready_groups is not None and self.max_ready_groups < self.min_groups:
            raise ValueError("max_ready_groups is below min_groups: no batch could ever be formed")
        return self


class DataManagerConfig(StrictModel):
    """Everything the process needs.

    assignment_timeout_s: a claim without heartbeat or report lapses after it. parallel_groups: training groups that are worked on at the same
    time before workers share one; as many as there are desktops lets no desktop wait while another prepares a task.
    """

    database: Path
    images: Path
    socket: Path
    seed: int = 0
    assignment_timeout_s: float = Field(default=300.0, gt=0)
    parallel_groups: int = Field(default=1, ge=1)
    batch: BatchSettings = BatchSettings()
    curation: CurationSettings = CurationSettings()
