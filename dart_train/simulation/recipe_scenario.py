"""The scenario of a recipe: the settings that `dart-train run` would use, on simulated parts.

Role: `scenario_of`. Rule: settings of batches and curation come from where production takes them (`dart_train.run.components`). Non-goals:
the latencies, which are models (`models`), fitted or assumed.
"""

from __future__ import annotations

from dataclasses import replace

from dart_train.config import Recipe
from dart_train.run.components import batch_settings, curation_settings
from dart_train.scheduling.settings import SchedulerSettings, SchedulingMode, SchedulingSettings
from dart_train.simulation.models import SystemModels
from dart_train.simulation.scenario import Scenario

DESKTOPS_PER_ROLLOUT_WORKER = 250


def scenario_of(
    recipe: Recipe,
    models: SystemModels,
    *,
    desktops: int | None = None,
    workers: int | None = None,
    hours: float = 1.0,
    seed: int | None = None,
    mode: SchedulingMode | None = None,
    gantt_s: float = 0.0,
) -> Scenario:
    """Describe what a recipe would run.

    Args:
        recipe: The recipe.
        models: Latencies.
        desktops: Number of desktops; None: the recipe's.
        workers: Number of inference workers; None: the recipe's.
        hours: Simulated hours, after a warm-up of half as long.
        seed: Seed; None: the recipe's.
        mode: Scheduling mode; None: the default of production.
        gantt_s: Seconds of which the states are kept for a chart.

    Returns:
        The scenario.
    """
    count = desktops or recipe.desktops.count
    chosen = recipe.run.seed if seed is None else seed
    scheduling = SchedulingSettings() if mode is None else SchedulingSettings(mode=mode)
    families = len(recipe.tasks.families)
    base = Scenario(
        desktops=count,
        workers=workers or recipe.inference.workers,
        rollout_workers=-(-count // DESKTOPS_PER_ROLLOUT_WORKER),
        families=families,
        tasks=50 * families,
        rollouts_per_task=recipe.rollout.group_size,
        max_steps=recipe.tasks.max_steps,
        hours=hours,
        warm_up_hours=hours / 2,
        seed=chosen,
        scheduler=SchedulerSettings(
            seed=chosen,
            scheduling=scheduling,
            batch=batch_settings(recipe),
            curation=curation_settings(recipe),
        ),
        models=models,
    )
    return replace(base, gantt_s=gantt_s)
