"""Settings of the scheduler: which rollouts run when, when a group closes, when a batch is formed.

Role: the schema of everything that `dart_train.scheduling.decide` may be told. Rule: unknown keys and contradictions are errors; no value
here is a measurement. Non-goals: the recipe (`dart_train.config`), paths and sockets (`dart_train.data_manager.config`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel
from dart_envs.success import SUCCESS_AT
from dart_train.curation.experience_pool import ExperiencePoolSettings
from dart_train.curation.length_budget import LengthBudgetSettings
from dart_train.curation.rollout_budget import RolloutBudgetSettings
from dart_train.curation.task_sampler import TaskSamplerSettings
from dart_train.scheduling.outcomes import Evidence


class SchedulingMode(StrEnum):
    """What a desktop waits for before it starts its next training rollout (DART, figure 3 and figure 4).

    Evaluation and demonstrations are scheduled rollout by rollout in every mode.
    """

    BATCH = "batch"
    """For the whole batch and the update: rollouts and trainer take turns, and all inference workers change weights together."""
    TASK = "task"
    """For the last rollout of its group; all inference workers change weights together."""
    ROLLOUT_GLOBAL = "rollout-global"
    """For nothing; all inference workers change weights together."""
    ROLLOUT_PER_WORKER = "rollout-per-worker"
    """For nothing; each inference worker changes its weights while the others serve."""

    @property
    def weight_sync(self) -> Literal["global", "per-worker"]:
        """Whether the inference workers change weights together, or each on its own."""
        return "per-worker" if self is SchedulingMode.ROLLOUT_PER_WORKER else "global"


class SchedulingSettings(StrictModel):
    """How rollouts are scheduled.

    Attributes:
        mode: What a desktop waits for before its next training rollout.
        partial_rollouts: Whether a rollout that is stopped keeps its steps and is continued; False: it starts again.
        over_provision: Rollouts that are launched over those that are needed. In mode `batch`: groups over groups of a batch; the
            unfinished ones wait for the next batch. In the other modes: rollouts of a group over its size; the unfinished ones wait for
            the next group of their task.
        parallel_groups: Training groups whose rollouts start at the same time; None: the staleness budget decides
            (`dart_train.scheduling.staleness_budget`).
        max_kv_cache_usage: No rollout starts on a worker whose inference workers report more than this fraction of their key-value cache
            in use; a worker without a running rollout always gets one.
    """

    mode: SchedulingMode = SchedulingMode.ROLLOUT_PER_WORKER
    partial_rollouts: bool = True
    over_provision: float = Field(default=1.0, ge=1, le=4)
    parallel_groups: int | None = Field(default=None, ge=1)
    max_kv_cache_usage: float = Field(default=0.95, gt=0, le=1)


class CurationSettings(StrictModel):
    """What to run next; every rule is switchable.

    Attributes:
        evidence: Whose latest rollouts the rollout budget, the length budget and the rule `learnability` of the task sampler follow: those
            of the task (DART), or those of its whole family, where a suite has so many variations that a task is hardly ever run twice.
        task_sampler: Which task the next group works on.
        rollout_budget: How many rollouts the next group has.
        length_budget: How many steps an episode may take.
        experience_pool: Whether stored successes complete failed groups.
        success_at: Least reward of a rollout that succeeded.
    """

    evidence: Evidence = "task"
    task_sampler: TaskSamplerSettings = TaskSamplerSettings()
    rollout_budget: RolloutBudgetSettings = RolloutBudgetSettings()
    length_budget: LengthBudgetSettings = LengthBudgetSettings()
    experience_pool: ExperiencePoolSettings = ExperiencePoolSettings()
    success_at: float = Field(default=SUCCESS_AT, gt=0, le=1)


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


class SchedulerSettings(StrictModel):
    """Everything that decisions depend on besides state and events.

    Attributes:
        seed: Seed of the choice of tasks.
        assignment_timeout_s: Seconds after which the assignments of a worker that gives no sign of life expire.
        scheduling: How rollouts are scheduled.
        batch: When a batch is formed.
        curation: What to run next.
    """

    seed: int = 0
    assignment_timeout_s: float = Field(default=300.0, gt=0)
    scheduling: SchedulingSettings = SchedulingSettings()
    batch: BatchSettings = BatchSettings()
    curation: CurationSettings = CurationSettings()
