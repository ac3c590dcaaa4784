"""Evaluation of a stored policy version, in a folder of its own with its own data manager.

Role: from a run or a model to the evaluation of one of its versions. Rule: the database of the run is only read; the folder holds
everything, so that the same evaluation resumes; every evaluation on the test split is counted before it starts, and a second one is refused
unless it is asked for. Non-goals: scheduling of episodes (the data manager), formulas (`statistics`).

    runs/NAME/evaluations/test-v12-300x1-t0/     a run folder: resolved.json, data.db, logs/ ..., and result.json
    runs/NAME/evaluations/test-split.json        the uses of the test split so far, by names of their folders
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_agent.data_client.payloads import SamplingPayload
from dart_agent.data_client.wire import EpisodeResult, PhaseSpec, VersionRecord
from dart_agent.errors import ConfigError, StoreError, WeightUpdateError
from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
from dart_agent.inference.weights.digest import PREFIX, weights_digest
from dart_agent.types import Purpose
from dart_train.config import Recipe, RecipeError
from dart_train.config.data import DataSection
from dart_train.config.run import LimitSection
from dart_train.data_commands.open_run import OpenRun, open_run
from dart_train.data_manager import status
from dart_train.data_manager.catalog import interleave_families
from dart_train.data_manager.store.models import PhaseTable, VersionTable
from dart_train.evaluation.results import (
    RESULT_FILE,
    TEST_RECORD,
    StoredEvaluation,
    comparison_conditions,
    episodes_of,
    evaluations_on_test,
    result_rows,
    separate_infeasible,
)
from dart_train.evaluation.reward_marks import single_source
from dart_train.evaluation.selection import ChosenCheckpoint, choose_checkpoint, versions_that_played
from dart_train.evaluation.statistics import Estimate, success_rate
from dart_train.run.components import start_model
from dart_train.run.lock import run_lock
from dart_train.run.orchestrator import Run, until_interrupted
from dart_train.run.paths import RunPaths
from dart_train.run.phases import (
    EVAL_AFTER,
    EVAL_BEFORE,
    EVAL_DURING,
    TEST,
    during_temperature,
    first_name,
    held_out_families,
    infeasible_tasks,
    recipe_suite,
)
from dart_train.run.preflight import check_recipe
from dart_train.run.progress import Progress
from dart_train.run.recipe_policy import recipe_prompt
from dart_train.run.run_folder import begins_anew, open_run_directory
from dart_train.run.state import RunState

PHASE = "eval-stored"
BEST = "best"

MakeRun = Callable[[Recipe, RunPaths, RunState], Run]


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version that can be evaluated.

    Attributes:
        source: The run folder or the model, for display.
        recipe: The recipe: tasks, desktops, engines, budgets.
        folder: Where evaluations of the source are.
        start: The model that inference workers start from.
        prompt: Name of the prompt preset.
        record: The version to serve; None: the model itself, version 0.
        digest: Digest of its weights, None where none is recorded.
        earlier_tests: How often the run itself evaluated on the test split.
        validation: Success in the run's own evaluations on validation, None where it has none of this version.
        trained_families: Families that it was trained on; None: those of the recipe.
    """

    source: str
    recipe: Recipe
    folder: Path
    start: Path
    prompt: str
    record: VersionRecord | None = None
    digest: str | None = None
    earlier_tests: int = 0
    validation: Estimate | None = None
    trained_families: tuple[str, ...] | None = None

    @property
    def version(self) -> int:
        """Its number."""
        return 0 if self.record is None else self.record.version


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """How a version is evaluated.

    Attributes:
        split: `validation` or `test`.
        tasks: Number of tasks, spread evenly over the families.
        samples: Episodes per task.
        temperature: Sampling temperature; 0: greedy.
        repeat_test: Whether the test split may be used again.
    """

    split: str
    tasks: int
    samples: int = 1
    temperature: float = 0.0
    repeat_test: bool = False

    def name(self, version: int) -> str:
        """Name of the folder."""
        return f"{self.split}-v{version}-{self.tasks}x{self.samples}-t{self.temperature:g}"


def version_of_model(model: Path | str, recipe: Recipe, evaluations: Path) -> StoredVersion:
    """Take a model as the version to evaluate.

    Args:
        model: The folder of the model, or the name of a checkpoint in the local Hugging Face cache.
        recipe: The recipe.
        evaluations: Where evaluations of models are. Those of this model are in a folder in it that its name and the digest of its weights
            name: other weights at the same place are another model.

    Returns:
        The version.

    Raises:
        RecipeError: There is no such model, or it is not complete.
    """
    try:
        checkpoint = resolve_checkpoint(model)
        prompt = recipe.model.prompt or read_checkpoint_info(checkpoint).prompt
        digest = weights_digest(checkpoint)
    except (ConfigError, WeightUpdateError) as error:
        raise RecipeError(str(error)) from None
    folder = evaluations / f"{Path(model).name}-{digest.removeprefix(PREFIX)[:8]}"
    return StoredVersion(str(model), recipe, folder, checkpoint, prompt, digest=digest)


def version_of_run(paths: RunPaths, recipe: Recipe, choice: str) -> StoredVersion:
    """Find a version of a run.

    Args:
        paths: The run folder.
        recipe: The recipe to evaluate with.
        choice: `best`, or a number.

    Returns:
        The version.

    Raises:
        RecipeError: The run has no such version any more, no validation to choose by, or its tasks are not there any more.
    """
    try:
        with open_run(paths.root) as run:
            candidates = validated_versions(run)
            number = chosen_version(run).version if choice == BEST else int(choice)
            kept = kept_versions(run)
            with Session(run.engine) as session:
                ntests = sum(first_name(name) == TEST for name in session.scalars(select(PhaseTable.name)))
    except ValueError:
        raise RecipeError(f"version {choice} is neither a number nor {BEST}") from None
    except StoreError as error:
        raise RecipeError(str(error)) from None
    if number not in kept:
        raise RecipeError(
            f"{paths.root} has no version {number} any more; it has {', '.join(map(str, kept)) or 'none'}: give one of them"
        )
    record = kept[number]
    return StoredVersion(
        source=str(paths.root),
        recipe=recipe,
        folder=paths.evaluations,
        start=start_model(run.recipe, paths),
        prompt=recipe_prompt(run.recipe),
        record=record if number else None,
        digest=record.digest,
        earlier_tests=ntests,
        validation=candidates.get(number),
        trained_families=tuple(run.recipe.tasks.families),
    )


def kept_versions(run: OpenRun) -> dict[int, VersionRecord]:
    """Read the published versions whose weights are still there.

    Args:
        run: The run.

    Returns:
        Them by number, ascending.
    """
    with Session(run.engine) as session:
        rows = session.scalars(select(VersionTable).order_by(VersionTable.version))
        return {
            row.version: VersionRecord(version=row.version, path=row.path, digest=row.digest, parent=row.parent)
            for row in rows
            if Path(row.path).exists()
        }


def chosen_version(run: OpenRun) -> ChosenCheckpoint:
    """Choose the version that is the result of a run, among those that are kept.

    Args:
        run: The run.

    Returns:
        The choice by the run's evaluations on validation.

    Raises:
        RecipeError: No version was evaluated on a task that can be done.
    """
    feasible, infeasible = _validation_episodes(run)
    chosen = choose_checkpoint(_rewards_by_version(feasible), run.recipe.reward.success_at)
    if chosen is None and infeasible:
        raise RecipeError(
            f"{run.paths.root} was evaluated on infeasible tasks only, and no version is chosen by these: give a number as --version"
        )
    if chosen is None:
        raise RecipeError(
            f"{run.paths.root} has no version that played most tasks of an evaluation on validation alone: finish the run, or give a "
            "number as --version"
        )
    return chosen


def validated_versions(run: OpenRun) -> dict[int, Estimate]:
    """Estimate the success of the kept versions that a run evaluated on validation.

    Args:
        run: The run.

    Returns:
        Success by version, on tasks that can be done.

    Raises:
        RecipeError: It cannot be told which tasks those are.
    """
    success_at, rewards = run.recipe.reward.success_at, _rewards_by_version(_validation_episodes(run)[0])
    found = {version: success_rate(by_task, success_at) for version, by_task in rewards.items()}
    return {version: estimate for version, estimate in found.items() if estimate is not None}


def _validation_episodes(run: OpenRun) -> tuple[list[EpisodeResult], list[EpisodeResult]]:
    """Episodes of a run's evaluations on validation that one kept version wrote: of feasible tasks, and of infeasible ones.

    Of each evaluation those versions count that played most of its tasks.
    Only episodes of one temperature are compared: that of the evaluations during training, or greedy ones where it has no such episode.
    """
    kept = kept_versions(run)
    by_temperature: dict[float, list[EpisodeResult]] = defaultdict(list)
    with Session(run.engine) as session:
        for name, spec, tasks in session.execute(select(PhaseTable.name, PhaseTable.spec, PhaseTable.n_tasks)):
            if first_name(name) not in (EVAL_BEFORE, EVAL_DURING, EVAL_AFTER):
                continue
            alone = [
                (each.version_min, each)
                for each in status.results(session, name)
                if each.version_min is not None and each.version_min == each.version_max
            ]
            judged = versions_that_played(((version, each.task_id) for version, each in alone), tasks) & kept.keys()
            temperature = PhaseSpec.model_validate(spec).sampling.temperature
            by_temperature[temperature] += [each for version, each in alone if version in judged]
    wanted = during_temperature(run.recipe) if run.recipe.eval.during_training else 0.0
    episodes = by_temperature[wanted] or by_temperature[0.0]
    single_source(episodes, f"validation of {run.paths.root}")
    return separate_infeasible(episodes, infeasible_tasks(run.recipe, (each.task_id for each in episodes)))


def _rewards_by_version(episodes: Sequence[EpisodeResult]) -> dict[int, dict[str, list[float]]]:
    """Rewards by version and task."""
    rewards: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in episodes:
        if each.version_min is not None:
            rewards[each.version_min][each.task_id].append(each.reward)
    return rewards


def evaluation_recipe(version: StoredVersion) -> Recipe:
    """Derive the recipe of an evaluation: the same tasks, desktops and engines, a given policy, and no training.

    Args:
        version: What is evaluated.

    Returns:
        The recipe.
    """
    recipe = version.recipe
    plain = recipe.model_dump()
    plain["model"] |= {"preset": None, "path": str(version.start), "prompt": version.prompt}
    plain["warmup"]["enabled"] = False
    plain["data"] = DataSection().model_dump()
    plain["eval"] |= {"episodes": 1, "baseline_episodes": 0, "test_episodes": 0, "during_workers": 0}
    plain["train"]["sft_coefficient"] = 0.0
    plain["curation"]["pool_import"] = ()
    # An evaluation writes no checkpoint and no version, for which a large policy keeps space.
    paused_at = min(recipe.limits.pause_disk_gib, LimitSection().pause_disk_gib)
    plain["limits"]["pause_disk_gib"] = paused_at
    plain["limits"]["min_free_disk_gib"] = min(recipe.limits.min_free_disk_gib, paused_at)
    return Recipe.model_validate(plain)


def evaluation_phase(recipe: Recipe, request: EvaluationRequest) -> tuple[PhaseSpec, frozenset[str]]:
    """Specify the episodes of an evaluation.

    Args:
        recipe: The recipe.
        request: How to evaluate; on test, the suite's held-out families are evaluated, too.

    Returns:
        The phase with its tasks, and those of its tasks that cannot be done.

    Raises:
        RecipeError: There are fewer tasks than asked for, or repeats of a greedy policy.
    """
    if request.samples > 1 and request.temperature == 0:
        raise RecipeError(
            f"--k {request.samples} with temperature 0 would play the same answers again: give --temperature 1, or --k 1"
        )
    suite = recipe_suite(recipe)
    families = list(recipe.tasks.families)
    if request.split == "test":
        families += held_out_families(recipe)
    try:
        ids = interleave_families([suite.tasks(request.split, [name]) for name in families], request.tasks)
    except StoreError as error:
        raise RecipeError(f"split {request.split}: {error}") from None
    phase = PhaseSpec(
        name=PHASE,
        purpose=Purpose.EVAL,
        task_ids=ids,
        rollouts_per_task=request.samples,
        sampling=SamplingPayload(temperature=request.temperature, max_tokens=recipe.rollout.max_tokens),
        max_steps=recipe.tasks.max_steps,
    )
    return phase, infeasible_tasks(recipe, ids)


async def evaluate(
    version: StoredVersion,
    request: EvaluationRequest,
    make_run: MakeRun | None = None,
    *,
    compared_with: StoredVersion | None = None,
) -> StoredEvaluation:
    """Evaluate a version, or continue where an interrupted evaluation stopped.

    Args:
        version: The version.
        request: How.
        make_run: Makes the process that plays the episodes; None: on this host.
        compared_with: Another version of the same source that is evaluated for a comparison; both are one use of the test split.

    Returns:
        The result, which is also in the evaluation's folder.

    Raises:
        RecipeError: The evaluation cannot work, another one of the source is running, or the test split was used before.
        RunFailed: A component ended and could not be replaced, or no episode got a reward.
        Interrupted: SIGINT or SIGTERM.
    """
    recipe = evaluation_recipe(version)
    phase, infeasible = evaluation_phase(recipe, request)
    paths = RunPaths(version.folder / request.name(version.version))
    with run_lock(RunPaths(version.folder)), run_lock(paths):
        await asyncio.to_thread(check_recipe, recipe, paths)  # it asks the farm on a loop of its own
        anew = begins_anew(recipe, paths)
        number = _count_test(version, request, compared_with, anew=anew) if request.split == "test" else None
        run = (make_run or _run_here)(recipe, paths, open_run_directory(recipe, paths))
        results = await until_interrupted(run, run.run_evaluation(phase, version.record))
        own = episodes_of(results, version.version)
        kind = single_source(own, f"the evaluation in {paths.root}") or recipe.reward.evaluation
        rollout = recipe.rollout
        limits = {
            "max_episode_tokens": rollout.max_episode_tokens,
            "max_episode_s": rollout.max_episode_s,
            "loop_repeats": rollout.loop_repeats,
            "family_limits": {name: limits.model_dump() for name, limits in recipe.tasks.limits.items()},
            **recipe.reward.described(kind),
        }
        found = StoredEvaluation(
            source=version.source,
            version=version.version,
            digest=version.digest,
            split=request.split,
            conditions=comparison_conditions(phase, phase.task_ids or (), limits),
            rows=result_rows(
                own,
                trained_families=recipe.tasks.families
                if version.trained_families is None
                else version.trained_families,
                infeasible=infeasible,
                success_at=recipe.reward.success_at,
            ),
            missing=len(phase.task_ids or ()) * request.samples - len(results),
            other_versions=len(results) - len(own),
            test_number=number,
        )
        _write(paths.root / RESULT_FILE, found.as_dict())
    return found


async def evaluate_versions(versions: Sequence[StoredVersion], request: EvaluationRequest) -> list[StoredEvaluation]:
    """Evaluate a version, or two of one source that are compared, on this host.

    Args:
        versions: One or two versions.
        request: How.

    Returns:
        Their results, in the same order.

    Raises:
        RecipeError: As `evaluate`.
        RunFailed: As `evaluate`.
        Interrupted: As `evaluate`.
    """
    results = []
    for each in versions:
        other = next((one for one in versions if one is not each), None)
        results.append(await evaluate(each, request, compared_with=other))
    return results


def _run_here(recipe: Recipe, paths: RunPaths, state: RunState) -> Run:
    return Run(recipe, paths, state, Progress(Console(stderr=True, highlight=False)))


def _count_test(
    version: StoredVersion, request: EvaluationRequest, compared_with: StoredVersion | None, *, anew: bool
) -> int:
    """Count this use of the test split, before anything of it can be seen; one that begins anew with other settings is another use."""
    uses = evaluations_on_test(version.folder)
    compared = [version] if compared_with is None else [version, compared_with]
    names = tuple(request.name(each.version) for each in sorted(compared, key=lambda each: each.version))
    known = max((index for index, use in enumerate(uses) if set(names) <= set(use)), default=None)
    if known is None or anew:
        before = ", ".join(uses[-1]) if uses else "by the run itself" if version.earlier_tests else None
        if before is not None and not request.repeat_test:
            raise RecipeError(
                f"{version.source} was evaluated on the test split before ({before}), and a second look is no independent test: use "
                "--split validation, or --again, which counts it in the result"
            )
        known = len(uses)
        _write(version.folder / TEST_RECORD, [*uses, names])
    return version.earlier_tests + known + 1


def _write(path: Path, content: object) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
