"""From a recipe to the phases that the data manager runs.

Role: pure functions. Rule: demonstrations and training come from the train split, evaluation from the validation split, and both
evaluations of a run are the same list; the test comes from the test split, after everything that could be chosen by it. A phase that is
begun anew has a number behind its name: `eval-after`, `eval-after-2`. Non-goals: scheduling (the data manager's curation).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dart_agent.data_client.payloads import SamplingPayload
from dart_agent.data_client.wire import PhaseSpec, TaskSelection
from dart_agent.rollouts.worker_config import PolicyKind
from dart_agent.task_suites import open_suite
from dart_agent.types import Purpose
from dart_envs.errors import TaskError
from dart_envs.evaluators.scorer_choice import INFEASIBLE
from dart_envs.tasks import FolderSuite, Suite
from dart_train.config import Recipe, RecipeError
from dart_train.run.state import RunState

DEMO = "demo"
TRAIN = "train"
EVAL_BEFORE = "eval-before"
EVAL_AFTER = "eval-after"
EVAL_DURING = "eval-during"
TEST = "test"
BASELINES: dict[str, tuple[PolicyKind, str]] = {
    "eval-random": ("random", "random policy"),
    "eval-blank": ("blank", "blank screenshot"),
}
"""Baseline policies and their displayed names, by phase."""

STAGES_BY_PHASE = {DEMO: "demos", **dict.fromkeys(BASELINES, "baselines")}
"""Stage of every phase whose stage has another name."""

PHASES_OF_POLICY = {TRAIN: (TRAIN,), EVAL_AFTER: (EVAL_AFTER,), TEST: (TEST,), "baselines": tuple(BASELINES)}
"""Phases of every stage whose result depends on the last policy version."""


def first_name(phase: str) -> str:
    """Return the name that a phase had before it was begun anew.

    Args:
        phase: Name of a phase.

    Returns:
        The name without a number.
    """
    return re.sub(r"-\d+$", "", phase)


def demo(recipe: Recipe, name: str = DEMO) -> PhaseSpec:
    """Specify the demonstrations of the oracle.

    Args:
        recipe: The recipe.
        name: Name of the phase.

    Returns:
        The phase.
    """
    return PhaseSpec(
        name=name,
        purpose=Purpose.DEMO,
        select=TaskSelection(
            suite=recipe.tasks.suite,
            split="train",
            families=list(recipe.tasks.families),
            count=recipe.demos.per_family * len(recipe.tasks.families),
        ),
        max_steps=recipe.tasks.max_steps,
    )


def evaluation(recipe: Recipe, name: str) -> PhaseSpec:
    """Specify an evaluation: greedy episodes on validation variations, or of the test on test variations.

    Args:
        recipe: The recipe.
        name: Name of the phase; the two evaluations of a run differ by it only.

    Returns:
        The phase.
    """
    select = TaskSelection(
        suite=recipe.tasks.suite,
        split="validation",
        families=list(recipe.tasks.families),
        count=recipe.eval.baseline_episodes if first_name(name) in BASELINES else recipe.eval.episodes,
    )
    if first_name(name) == TEST:
        families = [*recipe.tasks.families, *held_out_families(recipe)]
        select = select.model_copy(update={"split": "test", "families": families, "count": recipe.eval.test_episodes})
    return PhaseSpec(
        name=name,
        purpose=Purpose.EVAL,
        select=select,
        sampling=SamplingPayload(temperature=0.0, max_tokens=recipe.rollout.max_tokens),
        max_steps=recipe.tasks.max_steps,
    )


def during_training(recipe: Recipe, version: int) -> PhaseSpec:
    """Specify an evaluation during training, which leaves most desktops to training.

    Args:
        recipe: The recipe.
        version: The newest version when it begins.

    Returns:
        The phase.
    """
    plan = evaluation(recipe, f"{EVAL_DURING}-{version}")
    assert plan.select is not None, "an evaluation selects its tasks"
    changes = {
        "select": plan.select.model_copy(update={"count": recipe.eval.during_tasks}),
        "rollouts_per_task": recipe.eval.during_samples,
        "sampling": plan.sampling.model_copy(
            update={
                "temperature": during_temperature(recipe),
                "version": version if recipe.eval.during_workers else None,
            }
        ),
        "max_in_flight": recipe.eval.during_desktops,
    }
    return plan.model_copy(update=changes)


def during_temperature(recipe: Recipe) -> float:
    """Tell at which temperature evaluations during training sample.

    Args:
        recipe: The recipe.

    Returns:
        The temperature; 0: greedy.
    """
    if recipe.eval.during_temperature is not None:
        return recipe.eval.during_temperature
    return recipe.rollout.temperature if recipe.eval.during_samples > 1 else 0.0


def recipe_suite(recipe: Recipe) -> Suite | FolderSuite:
    """Open the recipe's suite.

    Args:
        recipe: The recipe.

    Returns:
        The suite.

    Raises:
        TaskError: There is no such suite, or its folder has no tasks.
    """
    return open_suite(recipe.tasks.suite, recipe.tasks.task_folder)


def held_out_families(recipe: Recipe) -> list[str]:
    """List the families that nothing is trained on.

    Args:
        recipe: The recipe.

    Returns:
        Their names.
    """
    if recipe.tasks.held_out_families is not None:
        return list(recipe.tasks.held_out_families)
    return [name for name, family in recipe_suite(recipe).families.items() if family.held_out]


def infeasible_tasks(recipe: Recipe, task_ids: Iterable[str]) -> frozenset[str]:
    """Find the tasks that cannot be done.

    Args:
        recipe: The recipe.
        task_ids: Tasks of its suite; an id may come several times.

    Returns:
        Those whose right answer is that they cannot be done.

    Raises:
        RecipeError: The suite or one of the tasks is not there any more.
    """
    try:
        suite = recipe_suite(recipe)
        return frozenset(each for each in set(task_ids) if INFEASIBLE in suite.load(each).evaluator.functions)
    except TaskError as error:
        raise RecipeError(
            f"it cannot be told which evaluated tasks are infeasible: {error} Bring back the tasks of the run's suite {recipe.tasks.suite}"
        ) from error


def training(recipe: Recipe, name: str = TRAIN) -> PhaseSpec:
    """Specify training: endless groups of sampled rollouts on the train split, or on a fixed list of its tasks.

    Args:
        recipe: The recipe.
        name: Name of the phase.

    Returns:
        The phase.
    """
    return PhaseSpec(
        name=name,
        purpose=Purpose.TRAIN,
        select=TaskSelection(
            suite=recipe.tasks.suite,
            split="train",
            families=list(recipe.tasks.families),
            per_family=recipe.tasks.train_variations,
        ),
        rollouts_per_task=recipe.rollout.group_size,
        sampling=SamplingPayload.from_value(recipe.rollout.sampling),
        max_steps=recipe.tasks.max_steps,
        endless=True,
    )


def report_phases(state: RunState) -> dict[str, str]:
    """Select the phases that the report reads.

    Args:
        state: The progress of the run.

    Returns:
        Phase names of finished stages by role: `before`, `after`, `test`, and baselines under their displayed names.
    """
    found = {}
    if EVAL_BEFORE in state.stages_s:
        found["before"] = state.phase_name(EVAL_BEFORE)
    if EVAL_AFTER in state.stages_s:
        found["after"] = state.phase_name(EVAL_AFTER)
    if TEST in state.stages_s:
        found["test"] = state.phase_name(TEST)
    if "baselines" in state.stages_s:
        found |= {label: state.phase_name(name) for name, (_, label) in BASELINES.items()}
    return found
