"""The recipe's section `curation`: which rollouts are made, and which of their steps are trained on.

Role: the schema, and named sets of values. Rule: keys that the recipe leaves out have the values of the named preset. Non-goals: the
decisions (`dart_train.curation`); docs/curation.md has formulas and sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel
from dart_envs.success import SUCCESS_AT
from dart_train.curation.experience_pool import ExperiencePoolSettings
from dart_train.curation.length_budget import LengthBudgetSettings
from dart_train.curation.rollout_budget import RolloutBudgetSettings, RolloutRule
from dart_train.curation.task_sampler import TaskSamplerSettings, TaskSamplingRule
from dart_train.scheduling.outcomes import Evidence
from dart_train.scheduling.settings import CurationSettings

CurationPreset = Literal["none", "dart", "adaptive"]
_DART: Mapping[str, Any] = {
    "dynamic_rollout_number": True,
    "dynamic_trajectory_length": True,
    "length_margin_steps": 0,
    "length_min_successes": 1,
    "full_length_fraction": 0.0,
    "experience_pool": True,
    "pool_max_age": None,
    "pool_max_uses": None,
    "high_entropy_step_fraction": 0.8,
}
CURATION_PRESETS: Mapping[CurationPreset, Mapping[str, Any]] = {
    "none": {},
    "dart": _DART,
    "adaptive": {
        "dynamic_rollout_number": True,
        "rollout_rule": "smooth",
        "task_sampling": "learnability",
        "dynamic_trajectory_length": True,
        "experience_pool": True,
        "high_entropy_step_fraction": 0.8,
    },
}
"""Values that belong together: `dart` as in the paper, `adaptive` with this project's safeguards and alternatives."""


class CurationSection(StrictModel):
    """Adaptive data curation; every part has its own switch, and all are off unless a preset or the recipe says otherwise.

    Attributes:
        preset: Which values the keys below have unless the recipe says otherwise: `none`, `dart` or `adaptive`.
        evidence: Whose latest rollouts rollout number, trajectory length and `learnability` follow: those of the `task`, or of its whole
            `family`.
        task_sampling: How the next task is drawn: `uniform`, `family-difficulty` or `learnability` (`dart_train.curation.task_sampler`).
        task_sampling_floor: Part of its weight that a family or task keeps whatever its success rate is.
        dynamic_rollout_number: Whether tasks that mostly succeed get smaller groups.
        rollout_rule: How the size of a group follows from the success rate: `dart` or `smooth` (`dart_train.curation.rollout_budget`).
        dynamic_rollout_threshold: Success rate from which a group is smaller, of the rule `dart`.
        min_rollouts: Smallest size of a group.
        dynamic_trajectory_length: Whether episodes are shortened to the length of past successes.
        length_margin_steps: Steps on top of the longest success.
        length_min_successes: Successes before episodes are shortened.
        full_length_fraction: Fraction of the groups whose episodes are not shortened.
        high_entropy_step_fraction: Fraction of a group's steps that is trained on; 1 keeps all.
        high_entropy_token_fraction: Fraction of a batch's tokens that is trained on, of the steps that are; 1 keeps all.
        experience_pool: Whether stored successes complete groups in which every rollout failed. A success is one of the same task: tasks
            must be run again (`tasks.train_variations`), or successes imported.
        pool_max_age: Limit of the trainer version minus the oldest version that sampled a stored success; none: no limit.
        pool_max_uses: Batches that a stored success may complete a group in; none: no limit.
        pool_import: Folders of successes of other runs (`dart-train data export --format portable`) that are in the experience pool from
            the start; they are imported once, before training.
        max_staleness: Limit of the trainer version minus the version that sampled a token.
    """

    preset: CurationPreset = "none"
    evidence: Evidence = "task"
    task_sampling: TaskSamplingRule = "uniform"
    task_sampling_floor: float = Field(default=0.25, gt=0)
    dynamic_rollout_number: bool = False
    rollout_rule: RolloutRule = "dart"
    dynamic_rollout_threshold: float = Field(default=0.6, gt=0, le=1)
    min_rollouts: int = Field(default=2, ge=2)
    dynamic_trajectory_length: bool = False
    length_margin_steps: int = Field(default=1, ge=0)
    length_min_successes: int = Field(default=8, ge=1)
    full_length_fraction: float = Field(default=0.1, ge=0, le=1)
    high_entropy_step_fraction: float = Field(default=1.0, gt=0, le=1)
    high_entropy_token_fraction: float = Field(default=1.0, gt=0, le=1)
    experience_pool: bool = False
    pool_max_age: int | None = Field(default=32, ge=0)
    pool_max_uses: int | None = Field(default=4, ge=1)
    pool_import: tuple[Path, ...] = ()
    max_staleness: int = Field(default=4, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _begin_with_the_preset(cls, section: Any) -> Any:
        if not isinstance(section, dict):
            return section
        return {**CURATION_PRESETS.get(section.get("preset", "none"), {}), **section}

    @model_validator(mode="after")
    def _imports_are_used(self) -> CurationSection:
        if self.pool_import and not self.experience_pool:
            raise ValueError(
                "pool_import fills the experience pool, which is off: set experience_pool = true, or leave it out"
            )
        return self

    def settings(self, success_at: float = SUCCESS_AT) -> CurationSettings:
        """Return the scheduler's settings with the same values.

        Args:
            success_at: Least reward of a rollout that succeeded (`reward.success_at`).
        """
        return CurationSettings(
            evidence=self.evidence,
            task_sampler=TaskSamplerSettings(rule=self.task_sampling, floor=self.task_sampling_floor),
            rollout_budget=RolloutBudgetSettings(
                enabled=self.dynamic_rollout_number,
                rule=self.rollout_rule,
                threshold=self.dynamic_rollout_threshold,
                min_rollouts=self.min_rollouts,
            ),
            length_budget=LengthBudgetSettings(
                enabled=self.dynamic_trajectory_length,
                margin_steps=self.length_margin_steps,
                min_successes=self.length_min_successes,
                full_length_fraction=self.full_length_fraction,
            ),
            experience_pool=ExperiencePoolSettings(
                enabled=self.experience_pool, max_age=self.pool_max_age, max_uses=self.pool_max_uses
            ),
            success_at=success_at,
        )
