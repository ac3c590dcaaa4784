"""Which stage of a run is next, and which policy must serve it.

Role: `plan_stages` reads the recipe once; `decide(state, event)` returns what is to be done. Rule: no I/O and no clock; a stage runs once,
in the order of the plan; neighbouring stages with the same policy share it, and nothing is left running at the end. Non-goals: what a
stage does, and what its failure means (the orchestrator).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from dart_agent.rollouts.worker_config import PolicyKind
from dart_train.config import Recipe
from dart_train.run.phases import EVAL_AFTER, EVAL_BEFORE, TEST, TRAIN

DEMOS, WARM_START, BASELINE_STAGE = "demos", "warm-start", "baselines"


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of a run.

    Attributes:
        name: Its name.
        policy: The policy that it shares with its neighbours; None: it starts what it needs itself.
    """

    name: str
    policy: PolicyKind | None = None


@dataclass(slots=True)
class StagesState:
    """How far a run is.

    Attributes:
        plan: Its stages.
        done: Names of the stages that are done.
        held: The policy that is running for stages.
        running: The stage that is running.
    """

    plan: tuple[PlannedStage, ...]
    done: set[str] = field(default_factory=set)
    held: PolicyKind | None = None
    running: str | None = None


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The data manager and the farm are there."""


@dataclass(frozen=True, slots=True)
class StageDone:
    """A stage came to its end.

    Attributes:
        name: The stage.
    """

    name: str


@dataclass(frozen=True, slots=True)
class HoldPolicy:
    """Start a policy and keep it for the stages that follow.

    Attributes:
        kind: The policy.
    """

    kind: PolicyKind


@dataclass(frozen=True, slots=True)
class ReleasePolicy:
    """Stop the policy that is held."""


@dataclass(frozen=True, slots=True)
class RunStage:
    """Run a stage.

    Attributes:
        name: The stage.
    """

    name: str


@dataclass(frozen=True, slots=True)
class FinishRun:
    """Every stage is done: write the report."""


StageCommand = HoldPolicy | ReleasePolicy | RunStage | FinishRun


def plan_stages(recipe: Recipe) -> tuple[PlannedStage, ...]:
    """Read which stages a recipe has.

    Args:
        recipe: The recipe.

    Returns:
        Them, in order; without updates the policy is evaluated once.
    """
    names = (EVAL_BEFORE, TRAIN, EVAL_AFTER) if recipe.train.updates else (EVAL_BEFORE,)
    stages = [PlannedStage(name, recipe.acting_policy) for name in names]
    if recipe.eval.test_episodes:
        stages.append(PlannedStage(TEST, recipe.acting_policy))
    if recipe.warmup.enabled:
        stages.insert(0, PlannedStage(WARM_START))
        if recipe.collects_demonstrations:
            stages.insert(0, PlannedStage(DEMOS))
    if recipe.eval.baseline_episodes:
        stages.append(PlannedStage(BASELINE_STAGE))
    return tuple(stages)


def decide(state: StagesState, event: RunBegun | StageDone) -> list[StageCommand]:
    """Decide what follows an event.

    Args:
        state: The state; changed.
        event: What happened.

    Returns:
        What is to be done, in order; the last one is a stage, or the end of the run.

    Raises:
        ValueError: The stage that is reported was not running.
    """
    if isinstance(event, StageDone):
        if event.name != state.running:
            raise ValueError(f"stage {event.name} is reported as done, but {state.running} is running")
        state.done.add(event.name)
        state.running = None
    following = _first_open(state.plan, state.done)
    wanted = None if following is None else following.policy
    commands: list[StageCommand] = []
    if state.held is not None and state.held != wanted:
        commands.append(ReleasePolicy())
        state.held = None
    if wanted is not None and state.held is None:
        commands.append(HoldPolicy(wanted))
        state.held = wanted
    if following is None:
        return [*commands, FinishRun()]
    state.running = following.name
    return [*commands, RunStage(following.name)]


def _first_open(plan: tuple[PlannedStage, ...], done: Collection[str]) -> PlannedStage | None:
    return next((stage for stage in plan if stage.name not in done), None)
