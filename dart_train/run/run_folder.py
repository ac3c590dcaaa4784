"""Opening the folder of a run: what may differ from the recipe that it was made from.

Role: `check_run_folder` before a start and in a dry run, `open_run_directory` at the start. Rule: the check changes nothing on disk and
refuses in one sentence; results of other settings are never mixed. Non-goals: the files themselves (`dart_train.run.state`).

    settings                          may differ
    of any kind                       while no stage is finished: the run begins anew
    `train.updates`, `.max_minutes`   at any time, if they are raised: a finished run trains on and is evaluated again
    `limits`, `eval.min_gain_points`  at any time: they change no result
    EXECUTION                         at any time: they say with how much memory and on which devices the same is computed, how often a
                                      checkpoint is written, and when training is looked at
    `eval.test_episodes`              until the evaluation after training, which comes before the test, is finished; later if it was 0
    `tracking`                        at any time: it copies the metrics
    `data.listen`, `.url`             at any time, with `data.insecure_plain_http`
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from dart_agent.errors import StoreError
from dart_train.config import Recipe, RecipeError
from dart_train.run.paths import RunPaths
from dart_train.run.phases import EVAL_AFTER, PHASES_OF_POLICY, TRAIN
from dart_train.run.progress import Progress
from dart_train.run.state import RunState, check_run_format, load_resolved_recipe, save_resolved_recipe
from dart_train.trainer.checkpoint import CheckpointStore
from dart_train.warmup.stage import unfinished_file

Changes = dict[str, tuple[Any, Any]]
"""Values before and now, by `section.key`."""

EXTENSIONS = ("train.updates", "train.max_minutes")
EXECUTION = (
    "train.micro_batch_tokens",
    "train.gradient_checkpointing",
    "train.image_cache_gib",
    "train.checkpoint_every",
    "train.processes",
    "train.devices",
    "train.threads",
    "inference.gpu_memory_fraction",
    "inference.devices",
    "inference.workers",
    "inference.threads",
    "inference.start_timeout_s",
    "desktops.count",
    "desktops.farm",
    "eval.every_updates",
    "eval.every_minutes",
    "eval.during_episodes",
    "eval.during_samples",
    "eval.during_temperature",
    "eval.during_desktops",
    "eval.during_workers",
    "eval.keep_best",
)
RESULT_INDEPENDENT = (
    *EXECUTION,
    "limits.",
    "eval.min_gain_points",
    "eval.test_episodes",
    "data.listen",
    "data.url",
    "data.insecure_plain_http",
    "tracking.",
)


def check_run_folder(recipe: Recipe, paths: RunPaths) -> None:
    """Refuse a run folder that the recipe cannot continue; a folder that does not exist yet is accepted.

    Args:
        recipe: The recipe to run.
        paths: The run folder.

    Raises:
        RecipeError: The folder has another format, its results belong to other settings (the sentence names them), a finished run would be
            extended by one limit of training while the other one holds, its test has begun with another number of episodes, or a database
            that is new to the folder holds another run.
    """
    check_run_format(paths)
    changes = _changes(recipe, paths)
    state = RunState.load(paths.state)
    is_new = not paths.resolved_recipe.exists() or (not state.stages_s and "data.database_url" in changes)
    if recipe.data.database_url is not None and is_new:
        _check_new_database(recipe.data.database_url)
    if not changes or not state.stages_s:
        return
    refused = [name for name in changes if not name.startswith(RESULT_INDEPENDENT) and not _is_raised(name, changes)]
    if refused:
        told = ", ".join(f"{name} {changes[name][0]!r} (now {changes[name][1]!r})" for name in refused)
        raise RecipeError(
            f"{paths.root} holds a run with other settings, {told}: continue it with its own recipe, start a new run with --name, or "
            "delete the folder; only train.updates and train.max_minutes can be raised"
        )
    extended = TRAIN in state.stages_s and any(name in EXTENSIONS for name in changes)
    if extended:
        _check_extension(recipe, paths)
    before, _ = changes.get("eval.test_episodes", (0, 0))
    if before and EVAL_AFTER in state.stages_s and not extended:
        raise RecipeError(
            f"eval.test_episodes: the test of {paths.root} has begun with {before} episodes: keep that number; for another test of the "
            f"finished run, use dart-train eval {paths.root} --split test --tasks N --again"
        )


def open_run_directory(recipe: Recipe, paths: RunPaths) -> RunState:
    """Create the run folder, or open the one that the recipe continues; the lock of the run folder is held.

    Args:
        recipe: The recipe to run.
        paths: The run folder.

    Returns:
        The progress so far.

    Raises:
        RecipeError: As `check_run_folder`.
    """
    check_run_folder(recipe, paths)
    changes = _changes(recipe, paths)
    state = RunState.load(paths.state)
    if _begins_anew(changes, state):
        _remove_results(paths, load_resolved_recipe(paths).data.database_url)
        state = RunState(incidents=state.incidents)
        state.save(paths.state)
    elif any(name in EXTENSIONS for name in changes):
        for stage, names in _outdated_stages(state, changes).items():
            worked_s, _ = state.stages_s.pop(stage, 0.0), state.unfinished_s.pop(stage, None)
            if stage == TRAIN:
                state.unfinished_s[stage] = worked_s
            for name in names:  # also of a stage that is under way: it has episodes of the policy of before
                state.begin_anew(name)
        state.save(paths.state)
    paths.make()
    if changes or not paths.resolved_recipe.exists():
        save_resolved_recipe(recipe, paths)
    return state


def begins_anew(recipe: Recipe, paths: RunPaths) -> bool:
    """Say whether opening a run folder would remove what an unfinished first stage of other settings left there.

    Args:
        recipe: The recipe to run.
        paths: The run folder.
    """
    return _begins_anew(_changes(recipe, paths), RunState.load(paths.state))


def _begins_anew(changes: Changes, state: RunState) -> bool:
    kept = (name.startswith(RESULT_INDEPENDENT) or _is_raised(name, changes) for name in changes)
    return not state.stages_s and not all(kept)


def begin_run_folder(recipe: Recipe, paths: RunPaths, progress: Progress | None) -> RunState:
    """Open the run folder, and take the successes that the recipe names into its experience pool; the lock of the run folder is held.

    Args:
        recipe: The recipe to run.
        paths: The run folder.
        progress: Where progress is shown; None: standard output.

    Returns:
        The progress so far.

    Raises:
        RecipeError: As `open_run_directory`, or `curation.pool_import` cannot be used.
    """
    state = open_run_directory(recipe, paths)
    if recipe.curation.pool_import:
        from dart_train.data_commands.pool_import import import_pool

        import_pool(recipe, paths, state, (progress or Progress()).note)
    return state


def _changes(recipe: Recipe, paths: RunPaths) -> Changes:
    if not paths.resolved_recipe.exists():
        return {}
    earlier = load_resolved_recipe(paths)
    before, now = earlier.model_dump(mode="json"), recipe.model_dump(mode="json")
    changes = {
        f"{section}.{key}": (before[section][key], value)
        for section, values in now.items()
        for key, value in values.items()
        if before[section][key] != value
    }
    if not earlier.imitates and not recipe.imitates:
        changes.pop("demos.thoughts", None)
    return changes


def _is_raised(name: str, changes: Changes) -> bool:
    before, now = changes[name]
    return name in EXTENSIONS and now > before


def _outdated_stages(state: RunState, changes: Changes) -> Mapping[str, Sequence[str]]:
    """The stages, with their phases, whose policy is no longer the last one because training goes on."""
    if TRAIN in state.stages_s:
        return PHASES_OF_POLICY
    if changes.get("train.updates", (None, None))[0] == 0:
        return {stage: names for stage, names in PHASES_OF_POLICY.items() if stage not in (TRAIN, EVAL_AFTER)}
    return {}


def _check_extension(recipe: Recipe, paths: RunPaths) -> None:
    checkpoints = CheckpointStore(paths.checkpoints, keep=1)
    minutes, updates = checkpoints.trained_s() / 60, checkpoints.updates()
    if minutes >= recipe.train.max_minutes:
        raise RecipeError(
            f"train.max_minutes: {paths.root} has trained for {minutes:.1f} minutes, and {recipe.train.max_minutes:g} are allowed: "
            "raise train.max_minutes, too"
        )
    if updates >= recipe.train.updates:
        raise RecipeError(
            f"train.updates: {paths.root} has made {updates} updates, and {recipe.train.updates} are allowed: raise train.updates, too"
        )


def _check_new_database(url: str) -> None:
    """Refuse a database that cannot be used or holds another run."""
    from dart_train.data_manager.store.database import holds_results

    try:
        held = holds_results(url)
    except StoreError as error:
        raise RecipeError(f"data.database_url: {error}") from None
    if held:
        raise RecipeError(f"data.database_url: {url} holds another run: give each run a database of its own")


def _remove_results(paths: RunPaths, database_url: str | None) -> None:
    """Remove what an unfinished first stage left; logs are kept."""
    if database_url is not None:
        from dart_train.data_manager.store.database import remove_results

        remove_results(database_url)
    for folder in (
        paths.images,
        paths.screens,
        paths.initial_model,
        paths.warm_start_model,
        paths.weights,
        paths.checkpoints,
    ):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (paths.metrics, unfinished_file(paths.warm_start_model), *paths.root.glob(f"{paths.database.name}*")):
        file.unlink(missing_ok=True)
