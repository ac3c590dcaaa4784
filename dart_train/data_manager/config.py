"""Settings of the data manager process, one JSON file.

Role: the schema. Rule: unknown keys are errors; the module imports neither torch nor FastAPI. Non-goals: the recipe (`dart_train.config`),
from which `dart_train.run.components` derives this file.
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
    """What to run next; every rule is switchable.

    Attributes:
        task_sampler: Which task the next group works on.
        rollout_budget: How many rollouts the next group has.
        length_budget: How many steps an episode may take.
        experience_pool: Whether stored successes complete failed groups.
    """

    task_sampler: TaskSamplerSettings = TaskSamplerSettings()
    rollout_budget: RolloutBudgetSettings = RolloutBudgetSettings()
    length_budget: LengthBudgetSettings = LengthBudgetSettings()
    experience_pool: ExperiencePoolSettings = ExperiencePoolSettings()


class BatchSettings(StrictModel):
    """When a batch is formed and what may be in it.

    Attributes:
        min_groups: Fewest groups of a batch.
        max_groups: Most groups of a batch.
        min_members: Members with a reward that a group needs.
        max_staleness: Limit of the trainer version minus the version that sampled a token.
        max_ready_groups: No training group is opened while this many wait for the trainer; None: no limit.
    """

    min_groups: int = Field(default=4, ge=1)
    max_groups: int = Field(default=8, ge=1)
    min_members: int = Field(default=2, ge=2)
    max_staleness: int = Field(default=4, ge=0)
    max_ready_groups: int | None = Field(default=24, ge=1)

    @model_validator(mode="after")
    def _bounds_agree(self) -> BatchSettings:
        if self.min_groups > self.max_groups:
            raise ValueError("min_groups is above max_groups")
        if self.max_ready_groups is not None and self.max_ready_groups < self.min_groups:
            raise ValueError("max_ready_groups is below min_groups: no batch could ever be formed")
        return self


class DataManagerConfig(StrictModel):
    """Everything that the data manager needs.

    Attributes:
        database: The SQLite file.
        images: Directory of image blobs.
        socket: The Unix socket to serve on.
        seed: Seed of the choice of tasks.
        assignment_timeout_s: Seconds after which an assignment without heartbeat and report expires.
        parallel_groups: Training groups that are worked on at the same time before workers share one. With as many as there are desktops,
        no
            desktop waits while another prepares a task.
        batch: When a batch is formed.
        curation: What to run next.
    """

    database: Path
    images: Path
    socket: Path
    seed: int = 0
    assignment_timeout_s: float = Field(default=300.0, gt=0)
    parallel_groups: int = Field(default=1, ge=1)
    batch: BatchSettings = BatchSettings()
    curation: CurationSettings = CurationSettings()
