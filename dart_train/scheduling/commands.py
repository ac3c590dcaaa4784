"""What is to be done, as values: the output of `dart_train.scheduling.decide`.

Role: one class per command. Rule: the state has changed already when a command is returned; who executes it stores the same change
(`dart_train.data_manager`) or acts on it (a simulation); commands are executed in their order, all or none. Non-goals: executing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dart_agent.types import PolicyVersion, Purpose

UnassignedState = Literal["queued", "parked", "failed", "cancelled"]
EndState = Literal["done", "masked", "failed"]
ClosedState = Literal["ready", "dropped", "done"]


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """Add a group and its queued rollouts.

    Attributes:
        group_id: The group.
        phase: Name of its phase.
        task_id: Its task.
        purpose: What its trajectories are for.
        target: Rollouts with a reward at which the group closes.
        max_steps: Step limit of its episodes.
        rollouts: Id and repeat of every new rollout.
        adopted: Ids of parked rollouts of an earlier group of this task that are members now.
    """

    group_id: str
    phase: str
    task_id: str
    purpose: Purpose
    target: int
    max_steps: int
    rollouts: tuple[tuple[str, int], ...]
    adopted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AssignRollout:
    """Give a rollout to a worker: the answer to its request.

    Attributes:
        rollout_id: The rollout.
        group_id: Its group.
        task_id: Its task.
        phase: Name of its phase.
        max_steps: Step limit of the episode.
        worker_id: The worker.
        request_id: The request.
        deadline_s: When the assignment expires if the worker gives no sign of life.
        partial: Reference of the partial trajectory to continue; None: the episode starts from the beginning.
    """

    rollout_id: str
    group_id: str
    task_id: str
    phase: str
    max_steps: int
    worker_id: str
    request_id: str
    deadline_s: float
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class UnassignRollout:
    """A rollout is not assigned any more, or not queued any more.

    Attributes:
        rollout_id: The rollout.
        state: Its new state.
        attempt: Number of its next attempt.
        cause: Why.
        partial: Reference of the partial trajectory where the state is `parked` or the rollout is to be continued; else None.
    """

    rollout_id: str
    state: UnassignedState
    attempt: int
    cause: str
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class StopRollout:
    """Tell a worker to stop a running rollout at its next step.

    Attributes:
        rollout_id: The rollout.
        worker_id: The worker.
        keep: True: the worker stores the partial trajectory and reports it as parked; False: it abandons the rollout.
    """

    rollout_id: str
    worker_id: str
    keep: bool


@dataclass(frozen=True, slots=True)
class FinishRollout:
    """A rollout has ended."""

    rollout_id: str
    state: EndState


@dataclass(frozen=True, slots=True)
class RetryRollout:
    """Add a rollout that repeats a masked item of a fixed list.

    Attributes:
        rollout_id: The new rollout.
        group_id: Its group.
        repeat: The item, as in the rollout that was masked.
        attempt: Number of the attempt.
        retries: The rollout that was masked.
    """

    rollout_id: str
    group_id: str
    repeat: int
    attempt: int
    retries: str


@dataclass(frozen=True, slots=True)
class CloseGroup:
    """Nothing more is awaited in a group, or it cannot train after all.

    Attributes:
        group_id: The group.
        state: `ready`: it may be trained on. `dropped`: it may not. `done`: it is not for training.
        reason: Why it was dropped, else None.
    """

    group_id: str
    state: ClosedState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SearchPool:
    """Every rollout of a group failed: `PoolSearched` says whether a stored success of its task may complete it.

    Attributes:
        group_id: The group; it is neither ready nor dropped before the answer.
        task_id: Its task.
    """

    group_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class ClosePhase:
    """A phase is `stopped`, or `done` because nothing of its fixed list is unfinished."""

    name: str
    state: Literal["stopped", "done"]


@dataclass(frozen=True, slots=True)
class IssueBatch:
    """Give the trainer a batch of these groups, those with the oldest tokens first."""

    group_ids: tuple[str, ...]
    trainer_version: PolicyVersion


@dataclass(frozen=True, slots=True)
class RepeatBatch:
    """Give the trainer the unfinished batch once more, unchanged."""

    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UseGroups:
    """The groups of the issued batch were trained on, by a train step that made policy `version`."""

    group_ids: tuple[str, ...]
    version: PolicyVersion


Command = (
    OpenGroup
    | AssignRollout
    | UnassignRollout
    | StopRollout
    | FinishRollout
    | RetryRollout
    | CloseGroup
    | SearchPool
    | ClosePhase
    | IssueBatch
    | RepeatBatch
    | UseGroups
)
"""Everything that `decide` returns."""
