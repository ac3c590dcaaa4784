"""What can happen, as values: the input of `dart_train.scheduling.decide`.

Role: one class per event. Rule: an event carries its time (seconds, on any clock that never goes back and is the same for all events of a
state), so that decisions need no clock. Non-goals: where events come from (HTTP in `dart_train.data_manager`, an event heap in a
simulation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dart_agent.types import PolicyVersion, Purpose


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """What a phase runs.

    Attributes:
        name: Name of the phase.
        purpose: What its trajectories are for.
        task_ids: Its tasks, of the form `suite/family/variation`; at least one.
        rollouts_per_task: Rollouts per task, which is the size of a group.
        max_steps: Step limit of an episode.
        endless: False: a fixed list of (task, repeat) items. True: groups are opened until the phase is stopped; only for training.
        max_attempts: Attempts per rollout before it counts as failed.
        priority: Phases with a higher one go first; None: fixed lists go before endless phases.
        continue_first: Whether parked rollouts of this phase are continued before new ones start.
        max_in_flight: So many of its rollouts run at the same time at most; None: no limit.
    """

    name: str
    purpose: Purpose
    task_ids: tuple[str, ...]
    rollouts_per_task: int
    max_steps: int
    endless: bool = False
    max_attempts: int = 5
    priority: int | None = None
    continue_first: bool = True
    max_in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A phase begins."""

    now_s: float
    plan: PhasePlan


@dataclass(frozen=True, slots=True)
class PhaseStopped:
    """A phase gets no more rollouts assigned; running ones may still end."""

    now_s: float
    name: str


@dataclass(frozen=True, slots=True)
class WorkAsked:
    """A desktop of a rollout worker is free.

    Attributes:
        now_s: Time.
        worker_id: The worker.
        request_id: The request; one that is repeated while its rollout is assigned gets the same rollout.
        desktops: Desktops of the worker; None: as before, unlimited at first.
        kv_cache_usage: Fraction of the key-value cache of its inference workers that is in use; None: unknown.
        wait: Whether the request is kept until there is work: a later event then answers it.
    """

    now_s: float
    worker_id: str
    request_id: str
    desktops: int | None = None
    kv_cache_usage: float | None = None
    wait: bool = False


@dataclass(frozen=True, slots=True)
class AskWithdrawn:
    """A request that waits for work waits no longer."""

    now_s: float
    request_id: str


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A worker is alive and still runs what it was assigned.

    Attributes:
        now_s: Time.
        worker_id: The worker.
        desktops: Desktops of the worker; None: as before.
        kv_cache_usage: As in `WorkAsked`.
    """

    now_s: float
    worker_id: str
    desktops: int | None = None
    kv_cache_usage: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerReleased:
    """A worker is gone (None: every worker): what it holds is assigned again.

    Attributes:
        now_s: Time.
        worker_id: The worker.
        resumable: Those of its rollouts that only the next process of this name can continue.
    """

    now_s: float
    worker_id: str | None
    resumable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RolloutAbandoned:
    """A worker gives an assigned rollout up without a result.

    Attributes:
        now_s: Time.
        rollout_id: The rollout.
        cause: Why.
        uses_attempt: Whether it used up an attempt.
        partial: Reference of the partial trajectory that is kept for whoever continues it; None: it starts from the beginning.
        version_min: As in `RolloutParked`.
    """

    now_s: float
    rollout_id: str
    cause: str
    uses_attempt: bool = True
    partial: str | None = None
    version_min: PolicyVersion | None = None


@dataclass(frozen=True, slots=True)
class RolloutParked:
    """A worker stopped an assigned rollout and stored its partial trajectory.

    Attributes:
        now_s: Time.
        rollout_id: The rollout.
        partial: Reference by which the worker that continues it finds the partial trajectory and its desktop.
        version_min: Oldest policy version among all tokens of the partial trajectory, None where it has none.
        failed_start: Why the worker could not continue it, which uses up an attempt; None: it was stopped at a step.
    """

    now_s: float
    rollout_id: str
    partial: str
    version_min: PolicyVersion | None = None
    failed_start: str | None = None


@dataclass(frozen=True, slots=True)
class RolloutRestarted:
    """A worker begins an assigned rollout anew; its partial trajectory was dropped."""

    now_s: float
    rollout_id: str


@dataclass(frozen=True, slots=True)
class RolloutEnded:
    """The trajectory of a rollout is complete.

    Attributes:
        now_s: Time.
        rollout_id: The rollout.
        reward: Its reward, None where the trajectory is masked.
        steps: Number of its steps.
        duration_s: Length of the episode in seconds; None: from assignment to now.
        prepare_s: Seconds until its desktop was prepared; None: unknown.
        version_min: Oldest policy version among its tokens, None where it has none.
        version_max: Newest policy version among its tokens, None where it has none.
    """

    now_s: float
    rollout_id: str
    reward: float | None
    steps: int
    duration_s: float | None = None
    prepare_s: float | None = None
    version_min: PolicyVersion | None = None
    version_max: PolicyVersion | None = None


@dataclass(frozen=True, slots=True)
class PoolSearched:
    """The answer to `SearchPool`, before any other event.

    Attributes:
        now_s: Time.
        group_id: The group.
        found: Whether the experience pool has a success that may complete it.
    """

    now_s: float
    group_id: str
    found: bool


@dataclass(frozen=True, slots=True)
class BatchAsked:
    """The trainer asks for a batch at its present version."""

    now_s: float
    trainer_version: PolicyVersion


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """The issued batch is not trained on: its groups are ready again, except for those that cannot train.

    Attributes:
        now_s: Time.
        reasons: Why a group cannot train, by group id.
    """

    now_s: float
    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The issued batch became policy `version`."""

    now_s: float
    version: PolicyVersion


@dataclass(frozen=True, slots=True)
class PolicyPublished:
    """A policy version is available to the inference workers."""

    now_s: float
    version: PolicyVersion


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened but time: assignments may have expired."""

    now_s: float


Event = (
    PhaseStarted
    | PhaseStopped
    | WorkAsked
    | AskWithdrawn
    | HeartbeatReceived
    | WorkerReleased
    | RolloutAbandoned
    | RolloutParked
    | RolloutRestarted
    | RolloutEnded
    | PoolSearched
    | BatchAsked
    | BatchRefused
    | BatchDone
    | PolicyPublished
    | TimePassed
)
"""Everything that `decide` takes."""
