"""What `dart-train simulate` does, without the arguments' parsing.

Role: `run_simulation`: models, simulation, tables, files; `scenario_of`: what a recipe would run, with the settings of production. Rule:
everything that can be wrong is found before the simulation starts, and said in one sentence. Non-goals: the figures (`outcome`), the text
of the tables (`tables`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from dart_agent.errors import StoreError
from dart_train.config import Recipe, RecipeError
from dart_train.data_manager.catalog import SuiteCatalog
from dart_train.plan.latencies import (
    CPU_TFLOPS_PER_THREAD,
    Assumptions,
    has_gpus,
    recipe_models,
    trains_on_cpu,
)
from dart_train.plan.memory import GIB, engine_memory
from dart_train.plan.policy_size import read_policy_size
from dart_train.run.components import batch_settings, scheduling_settings
from dart_train.run.phases import training
from dart_train.run.preflight import available_memory_bytes
from dart_train.scheduling.settings import SchedulerSettings, SchedulingMode
from dart_train.simulation.components.activity import ComponentsOutcome, simulated_figures
from dart_train.simulation.fitting import fit_models
from dart_train.simulation.gantt import gantt_svg
from dart_train.simulation.models import ModelFileError, SystemModels, load_models, save_models
from dart_train.simulation.outcome import simulate
from dart_train.simulation.planning import bottleneck, finite_usd, recommend_split, usd_per_1000_rollouts
from dart_train.simulation.scenario import Scenario
from dart_train.simulation.tables import print_components, print_outcome

DESKTOPS_PER_ROLLOUT_WORKER = 250
TASKS_PER_FAMILY = 50
"""Assumed tasks of a suite that is not on this host."""
MAX_COMPONENT_DESKTOPS = 256
"""What one rollout worker of production holds."""


class SimulateError(Exception):
    """The simulation cannot be run as asked; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The options of the command.

    Attributes:
        desktops: Number of desktops; None: the recipe's.
        workers: Number of inference workers; None: the recipe's.
        hours: Simulated hours.
        seed: Seed; None: the recipe's.
        mode: Scheduling mode; None: the recipe's.
        models: File of latency models; None, and what it does not name: the sizes of the recipe, and the defaults.
        fit: Folders of recorded runs.
        save_models: Where the models are written.
        json_file: Where the figures are written.
        gantt: Where the chart is written.
        gantt_minutes: How long the chart is.
        split: Whether other splits are simulated.
        components: `real`: the components of production run in virtual time, too, and are compared with the decisions alone.
    """

    desktops: int | None = None
    workers: int | None = None
    hours: float = 1.0
    seed: int | None = None
    mode: str | None = None
    models: Path | None = None
    fit: tuple[Path, ...] = ()
    save_models: Path | None = None
    json_file: Path | None = None
    gantt: Path | None = None
    gantt_minutes: float = 15.0
    split: bool = True
    components: Literal["decisions", "real"] = "decisions"


def run_simulation(recipe: Recipe, options: SimulateOptions, console: Console | None = None) -> None:
    """Simulate a recipe, print the tables, and write the files.

    Args:
        recipe: The recipe.
        options: The options.
        console: Where tables are printed; None: standard output.

    Raises:
        SimulateError: An option, a file of models or a recorded run cannot be used.
    """
    mode = _mode(options.mode)
    if options.components == "real" and (options.desktops or recipe.desktops.count) > MAX_COMPONENT_DESKTOPS:
        raise SimulateError(
            f"--components real takes at most {MAX_COMPONENT_DESKTOPS} desktops: lower --desktops, or leave out --components"
        )
    for path in (options.json_file, options.gantt, options.save_models):
        if path is not None and not path.absolute().parent.is_dir():
            raise SimulateError(
                f"{path} cannot be written, because {path.absolute().parent} is not a folder: make it first"
            )
    if options.gantt is not None and options.gantt.suffix != ".svg":
        raise SimulateError(f"the chart {options.gantt} must be an .svg file")
    try:
        start = _start_models(recipe, options)
        models = load_models(options.models, start) if options.models is not None else start
        if options.fit:
            models = fit_models(options.fit, models)
        if options.save_models is not None:
            save_models(models, options.save_models)
    except ModelFileError as error:
        raise SimulateError(str(error)) from None
    scenario = scenario_of(
        recipe,
        models,
        desktops=options.desktops,
        workers=options.workers,
        hours=options.hours,
        seed=options.seed,
        mode=mode,
        gantt_s=60 * options.gantt_minutes if options.gantt is not None else 0.0,
    )
    outcome = simulate(scenario)
    limit, usd = bottleneck(outcome), usd_per_1000_rollouts(scenario, outcome)
    split = recommend_split(scenario, outcome) if options.split else None
    print_outcome(console or Console(), scenario, outcome, limit, split, usd)
    compared = None
    if options.components == "real":
        compared = _run_components(recipe, scenario, options.hours)
        print_components(console or Console(), compared, simulated_figures(outcome))
    if options.gantt is not None:
        title = f"{scenario.desktops} desktops, {scenario.workers} workers, {scenario.scheduler.scheduling.mode.value}"
        options.gantt.write_text(gantt_svg(outcome.intervals, title), encoding="utf-8")
    if options.json_file is not None:
        figures = {
            "desktops": scenario.desktops,
            "workers": scenario.workers,
            "mode": scenario.scheduler.scheduling.mode.value,
            "seed": scenario.seed,
            "models": models.model_dump(mode="json"),
            "outcome": outcome.as_dict(),
            "bottleneck": asdict(limit),
            "usd_per_1000_rollouts": finite_usd(usd),
            "recommended_split": None if split is None else split[0].as_dict(),
            "components": None if compared is None else asdict(compared),
            "splits": None if split is None else [each.as_dict() for each in split[1]],
        }
        options.json_file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _run_components(recipe: Recipe, scenario: Scenario, hours: float) -> ComponentsOutcome:
    from dart_train.simulation.components.system import simulate_components

    same = recipe.model_copy(
        update={
            "desktops": recipe.desktops.model_copy(update={"count": scenario.desktops}),
            "inference": recipe.inference.model_copy(update={"workers": scenario.workers}),
            "rollout": recipe.rollout.model_copy(update={"scheduling": scenario.scheduler.scheduling.mode}),
        }
    )
    return simulate_components(
        same, scenario.models, hours=hours, warm_up_hours=scenario.warm_up_hours, seed=scenario.seed
    )


def models_of(recipe: Recipe) -> SystemModels:
    """Put the sizes of a recipe in the place of defaults, on the hardware that it names.

    Args:
        recipe: The recipe.

    Returns:
        The models.

    Raises:
        SimulateError: The size of the policy cannot be read, or an inference worker has no room for a request.
    """
    gpus = has_gpus(recipe)
    on_cpu = trains_on_cpu(recipe, gpus=gpus)
    tflops = CPU_TFLOPS_PER_THREAD * recipe.train.threads if on_cpu else Assumptions().tflops
    assumed = Assumptions(gpu_gib=Assumptions().gpu_gib if gpus else None, tflops=tflops)
    try:
        size = read_policy_size(recipe)
    except RecipeError as error:
        raise SimulateError(str(error)) from None
    room = available_memory_bytes() if assumed.gpu_gib is None else int(assumed.gpu_gib * GIB)
    engine = engine_memory(recipe, size, room, on_cpu=not gpus)
    if not engine.kv_tokens:
        raise SimulateError(
            f"an inference worker has {engine.share / GIB:.0f} GiB, and the weights of the policy leave no room in it: raise "
            "inference.tensor_parallel or inference.gpu_memory_fraction (`dart-train plan` shows what fits)"
        )
    return recipe_models(recipe, size, engine, assumed)


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
        mode: Scheduling mode; None: the recipe's.
        gantt_s: Seconds of which the states are kept for a chart.

    Returns:
        The scenario.
    """
    count = desktops or recipe.desktops.count
    chosen = recipe.run.seed if seed is None else seed
    scheduling = scheduling_settings(recipe)
    if mode is not None:
        scheduling = scheduling.model_copy(update={"mode": mode})
    known = _training_tasks(recipe)
    families = len(recipe.tasks.families)
    base = Scenario(
        desktops=count,
        workers=workers or recipe.inference.workers,
        rollout_workers=-(-count // DESKTOPS_PER_ROLLOUT_WORKER),
        families=families,
        tasks=len(known) or TASKS_PER_FAMILY * families,
        named_tasks=known,
        rollouts_per_task=recipe.rollout.group_size,
        max_steps=recipe.tasks.max_steps,
        hours=hours,
        warm_up_hours=hours / 2,
        seed=chosen,
        max_updating=recipe.inference.max_updating,
        scheduler=SchedulerSettings(
            seed=chosen,
            scheduling=scheduling,
            batch=batch_settings(recipe),
            curation=recipe.curation.settings(recipe.reward.success_at),
        ),
        models=models,
    )
    return replace(base, gantt_s=gantt_s)


def _start_models(recipe: Recipe, options: SimulateOptions) -> SystemModels:
    """The recipe's own sizes; they are not needed where a file says what is simulated."""
    try:
        return models_of(recipe)
    except SimulateError:
        if options.models is None:
            raise
        return SystemModels()


def _training_tasks(recipe: Recipe) -> tuple[str, ...]:
    """The tasks that training draws from; none where the suite is not on this host."""
    selected = training(recipe).select
    assert selected is not None, "training selects its tasks"
    try:
        return tuple(SuiteCatalog(recipe.tasks.task_folder).select(selected))
    except StoreError:
        return ()


def _mode(name: str | None) -> SchedulingMode | None:
    if name is None:
        return None
    try:
        return SchedulingMode(name)
    except ValueError:
        known = ", ".join(mode.value for mode in SchedulingMode)
        raise SimulateError(f"there is no scheduling mode {name!r}: choose one of {known}") from None
