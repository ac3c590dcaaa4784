"""Disk and time of a run.

Role: bytes that a run leaves on disk, and how long its updates take, from the simulator with the sizes of the recipe's own policy
(`dart_train.plan.latencies`). Rule: what is assumed stands in `Assumptions` and can be changed. Non-goals: memory
(`dart_train.plan.memory`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dart_train.config import Recipe
from dart_train.plan.latencies import Assumptions, recipe_models, version_bytes
from dart_train.plan.memory import FLOAT32, EngineMemory, trained_parameters
from dart_train.plan.policy_size import PolicySize
from dart_train.simulation.command import scenario_of
from dart_train.simulation.outcome import simulate
from dart_train.simulation.planning import bottleneck

SIMULATED_HOURS = 2.0


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """Bytes on disk after all updates.

    Attributes:
        checkpoints: The trainer's states that are kept.
        versions: The published versions that are kept.
        images: Screenshots of all trajectories.
        steps: Stored steps of all trajectories.
        being_written: What is there for a while beside these: a checkpoint or a version before the oldest one goes.
    """

    checkpoints: int
    versions: int
    images: int
    steps: float
    being_written: int

    def needed(self, pause_bytes: float) -> float:
        """Return what must be free at the beginning, so that a run is never paused.

        Args:
            pause_bytes: Free bytes below which it is (`limits.pause_disk_gib`).
        """
        return self.checkpoints + self.versions + self.images + max(self.being_written, pause_bytes)


@dataclass(frozen=True, slots=True)
class TimeForecast:
    """How long training takes.

    Attributes:
        update_s: Seconds of a train step; where none ends in the simulated time, those that the trainer has trained in it.
        updates_per_hour: Train steps per hour, rollouts included.
        hours: Hours until all updates are made.
        actions_per_min: Actions per minute of all desktops.
        desktop_utilisation: Share of the desktops' time in which they execute or wait for a response that is computed.
        worker_utilisation: Share of the inference workers' time in which they serve.
        trainer_utilisation: Share of the trainer's time in which it trains.
        bottleneck: What limits the run.
        reason: Why, in one sentence.
    """

    update_s: float
    updates_per_hour: float
    hours: float
    actions_per_min: float
    desktop_utilisation: float
    worker_utilisation: float
    trainer_utilisation: float
    bottleneck: str
    reason: str


def forecast_time(recipe: Recipe, size: PolicySize, engine: EngineMemory, assumed: Assumptions) -> TimeForecast:
    """Simulate the recipe with the sizes of its policy.

    Args:
        recipe: The recipe.
        size: The policy.
        engine: Memory of an inference worker.
        assumed: Assumptions.

    Returns:
        The forecast.
    """
    models = recipe_models(recipe, size, engine, assumed)
    scenario = scenario_of(recipe, models, hours=SIMULATED_HOURS)
    outcome = simulate(scenario)
    limit = bottleneck(outcome)
    per_hour = outcome.updates * 3600 / outcome.window_s
    training_s = outcome.trainer.training * outcome.window_s
    return TimeForecast(
        update_s=training_s / max(1, outcome.updates),
        updates_per_hour=per_hour,
        hours=recipe.train.updates / per_hour if per_hour else float("inf"),
        actions_per_min=outcome.actions_per_min,
        desktop_utilisation=outcome.slots.utilisation,
        worker_utilisation=outcome.workers.utilisation,
        trainer_utilisation=outcome.trainer.utilisation,
        bottleneck=limit.name,
        reason=limit.reason,
    )


def forecast_disk(recipe: Recipe, size: PolicySize, time: TimeForecast, assumed: Assumptions) -> DiskForecast:
    """Predict what is on disk after all updates; a checkpoint holds the trained weights and two moments of each.

    Args:
        recipe: The recipe.
        size: The policy.
        time: The forecast of time, whose actions are stored steps.
        assumed: Assumptions.

    Returns:
        The bytes.
    """
    train = recipe.train
    versions = train.keep_versions + (recipe.eval.keep_best if recipe.eval.during_training else 0)
    checkpoint = 3 * FLOAT32 * trained_parameters(recipe, size)
    version = version_bytes(recipe, size)
    steps = time.actions_per_min * 60 * time.hours if time.hours != float("inf") else 0.0
    pixels = size.image_tokens * _pixels_per_token(size)
    return DiskForecast(
        checkpoints=train.keep_checkpoints * checkpoint,
        versions=versions * version,
        images=int(steps * pixels * assumed.image_bytes_per_pixel),
        steps=steps,
        being_written=max(checkpoint, version),
    )


def _pixels_per_token(size: PolicySize) -> int:
    return size.patch_px**2 * (size.patches // max(1, size.image_tokens))
