"""The recipe's section `eval`: evaluation before, during and after training.

Role: the schema. Rule: validation variations compare policies of a run, test variations judge the last one and choose nothing. Non-goals:
the comparison (`dart_train.evaluation.paired_evaluation`).
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel


class EvalSection(StrictModel):
    """Evaluation: greedy on validation variations, the same list before and after training, and once on test variations.

    Attributes:
        episodes: Episodes of an evaluation.
        baseline_episodes: Episodes of the random and of the blank-screenshot policy.
        test_episodes: Episodes on the test split at the end, spread over the families and the held-out families of the suite. They may
            be asked for when the run is finished, too.
        every_updates: During training, validation tasks are evaluated whenever so many more updates were made; 0: not by updates.
        every_minutes: The same whenever so many minutes passed and there is a new version, so that runs with faster updates do not pay more
            evaluations; none: not by time.
        during_episodes: Episodes of each of these evaluations.
        during_samples: Episodes per task of these evaluations, a divisor of `during_episodes`. Above 1 they are sampled, and metrics have
            pass@k.
        during_temperature: Sampling temperature of these evaluations; 0: greedy. None: 0 for one episode per task, else that of training.
        during_desktops: Desktops that these evaluations use at the same time; training has the others.
        during_workers: Inference workers, out of `inference.workers`, that keep the evaluated version until the evaluation has ended, so
            that one version plays all of it and can be chosen; meanwhile training has the others. 0: workers go on to newer versions.
        keep_best: Versions that these evaluations found best and whose weights are kept, beside the newest ones, so that one of them can be
            chosen.
        min_gain_points: A gain at or below this many points counts as not learned: exit code 1.
    """

    episodes: int = Field(default=300, ge=1)
    baseline_episodes: int = Field(default=0, ge=0)
    test_episodes: int = Field(default=0, ge=0)
    every_updates: int = Field(default=0, ge=0)
    every_minutes: float | None = Field(default=None, gt=0)
    during_episodes: int = Field(default=32, ge=1)
    during_samples: int = Field(default=1, ge=1, le=256)
    during_temperature: float | None = Field(default=None, ge=0, le=2)
    during_desktops: int = Field(default=1, ge=1)
    during_workers: int = Field(default=0, ge=0)
    keep_best: int = Field(default=3, ge=0)
    min_gain_points: float = 0.0

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.during_episodes % self.during_samples:
            raise ValueError(
                f"during_episodes ({self.during_episodes}) is no multiple of during_samples ({self.during_samples}): each task has so many"
            )
        if self.during_samples > 1 and self.during_temperature == 0:
            raise ValueError(
                "during_samples above 1 with during_temperature = 0 would play the same answers again: leave one of them out"
            )
        return self

    @property
    def during_tasks(self) -> int:
        """Tasks of each evaluation during training."""
        return self.during_episodes // self.during_samples

    @property
    def during_training(self) -> bool:
        """Whether there are evaluations during training."""
        return self.every_updates > 0 or self.every_minutes is not None
