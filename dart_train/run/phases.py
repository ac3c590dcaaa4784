"""From a recipe to the phases that the data manager runs.

Role: pure functions. Rule: demonstrations and training come from the train split, evaluation from the validation split, and both
evaluations of a run are the same list. A phase that is begun anew has a number behind its name: `eval-after`, `eval-after-2`.
Non-goals: scheduling (the data manager's curation).
"""

from __future__ import annotations

import re

from dart_agent.data_client.payloads import SamplingPayload
from dart_agent.data_client.wire import PhaseSpec, TaskSelection
from dart_agent.rollouts.worker_config import PolicyKind
from dart_agent.types import Purpose
from dart_train.config import Recipe
from dart_train.run.state import RunState

DEMO = "demo"
TRAIN = "train"
EVAL_BEFORE = "eval-before"
EVAL_AFTER = "eval-after"
BASELINES: dict[str, tuple[PolicyKind, str]] = {
    "eval-random": ("random", "random policy"),
    "eval-blank": ("blank", "blank screenshot"),
}
"""Baseline policies and their displayed names, by phase."""

STAGES_BY_PHASE = {DEMO: "demos", **dict.fromkeys(BASELINES, "baselines")}
"""Stage of every phase whose stage has another name."""

PHASES_OF_POLICY = {TRAIN: (TRAIN,), EVAL_AFTER: (EVAL_AFTER,), "baselines": tuple(BASELINES)}
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
    """Specify an evaluation: greedy episodes on validation variations.

    Args:
        recipe: The recipe.
        name: Name of the phase; the two evaluations of a run differ by it only.

    Returns:
        The phase.
    """
    episodes = recipe.eval.baseline_episodes if first_name(name) in BASELINES else recipe.eval.episodes
    return PhaseSpec(
        name=name,
        purpose=Purpose.EVAL,
        select=TaskSelection(
            suite=recipe.tasks.suite, split="validation", families=list(recipe.tasks.families), count=episodes
        ),
        sampling=SamplingPayload(temperature=0.0, max_tokens=recipe.rollout.max_tokens),
        max_steps=recipe.tasks.max_steps,
    )


def training(recipe: Recipe, name: str = TRAIN) -> PhaseSpec:
    """Specify training: endless groups of sampled rollouts on the train split.

    Args:
        recipe: The recipe.
        name: Name of the phase.

    Returns:
        The phase.
    """
    return PhaseSpec(
        name=name,
        purpose=Purpose.TRAIN,
        select=TaskSelection(suite=recipe.tasks.suite, split="train", families=list(recipe.tasks.families)),
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
        Phase names of finished stages by role: `before`, `after`, and baselines under their displayed names.
    """
    found = {}
    if EVAL_BEFORE in state.stages_s:
        found["before"] = state.phase_name(EVAL_BEFORE)
    if EVAL_AFTER in state.stages_s:
        found["after"] = state.phase_name(EVAL_AFTER)
    if "baselines" in state.stages_s:
        found |= {label: state.phase_name(name) for name, (_, label) in BASELINES.items()}
    return found
