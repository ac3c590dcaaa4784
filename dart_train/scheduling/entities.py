"""What the scheduler works with: workers, rollouts, groups, phases.

Role: plain objects in memory, and what can be read off one of them. Rule: only `dart_train.scheduling.state` moves them from one state to
another. Non-goals: which of them exist (`SchedulerState`), decisions (`decide`).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dart_agent.types import PolicyVersion, Purpose
from dart_train.curation.task_sampler import TaskSampler
from dart_train.scheduling.events import PhasePlan

RolloutState = Literal["queued", "assigned", "parked", "done", "masked", "failed", "cancelled"]
KV_MEMORY_S = 600.0
"""Over how many seconds the mean need of a rollout for the key-value cache is taken: several episodes."""
UNFINISHED_STATES: tuple[RolloutState, ...] = ("queued", "assigned", "parked")


@dataclass(slots=True, eq=False)
class Worker:
    """A rollout worker.

    Attributes:
        worker_id: Its name.
        desktops: Desktops that it reported; None: it reports none.
        expires_s: When its assignments expire without a sign of life.
        running: Rollouts that it holds, by id.
        held: Desktops that wait for the other rollouts of their group (mode `task`).
        kv_cache_usage: Fraction of the key-value cache that its requests needed when it last reported; None: unknown.
        kv_rollouts: Rollouts that it held then.
        kv_per_rollout: What one of them needed, as a mean over its reports that begins at 0 and forgets with `KV_MEMORY_S`.
        kv_reported_s: When it last reported; 0 before.
        stopping: Rollouts that it was told to stop, by id.
        waiting: Its requests that wait for work, oldest first.
    """

    worker_id: str
    desktops: int | None = None
    expires_s: float = 0.0
    running: dict[str, Rollout] = field(default_factory=dict, repr=False)
    held: int = 0
    kv_cache_usage: float | None = None
    kv_rollouts: int = 0
    kv_per_rollout: float = 0.0
    kv_reported_s: float = 0.0
    stopping: dict[str, Rollout] = field(default_factory=dict, repr=False)
    waiting: deque[str] = field(default_factory=deque)

    def see_kv_cache(self, usage: float, now_s: float) -> None:
        """Note what its requests need of the key-value cache; contexts grow, so a young rollout needs less than it will.

        One rollout alone never raises the mean: it is also all that runs while no inference worker serves and the cache counts as full.
        It does lower the mean: otherwise a worker whose mean admits no second rollout would never get one again.
        """
        self.kv_cache_usage, self.kv_rollouts = usage, len(self.running)
        if self.running:
            now = usage / len(self.running)
            if len(self.running) == 1:
                now = min(now, self.kv_per_rollout)
            kept = math.exp(-max(0.0, now_s - self.kv_reported_s) / KV_MEMORY_S) if self.kv_reported_s else 1.0
            self.kv_per_rollout = now + kept * (self.kv_per_rollout - now)
            self.kv_reported_s = now_s


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Rollouts that wait a short time for the next process of a worker that is gone.

    Attributes:
        until_s: When others may have them.
        rollouts: The rollouts by id, in the order in which they are continued; some may have ended, or may be assigned.
    """

    until_s: float
    rollouts: Mapping[str, Rollout] = field(repr=False)


@dataclass(slots=True, eq=False)
class Rollout:
    """An unfinished rollout.

    Attributes:
        rollout_id: Its id.
        group: Its group.
        repeat: Number of the item of a fixed list, or of the member of a group.
        attempt: Number of its attempt, from 1.
        state: queued, assigned, parked; or how it left.
        worker: Who runs it.
        request_id: The request that it answered.
        assigned_s: When it was assigned.
        assigned_version: Newest published version at that time.
        partial: Reference of its partial trajectory, None where it starts from the beginning.
        partial_version: Oldest version in its partial trajectory.
        leads: Whether it was the first of its group that was assigned.
    """

    rollout_id: str
    group: Group = field(repr=False)
    repeat: int
    attempt: int = 1
    state: RolloutState = "queued"
    worker: Worker | None = field(default=None, repr=False)
    request_id: str | None = None
    assigned_s: float = 0.0
    assigned_version: PolicyVersion = 0
    partial: str | None = None
    partial_version: PolicyVersion | None = None
    leads: bool = False


@dataclass(slots=True, eq=False)
class Group:
    """A group that is open, or waits for the trainer.

    Attributes:
        group_id: Its id.
        seq: Number in the order of opening.
        phase: Its phase.
        task_id: Its task.
        target: Rollouts with a reward at which it closes.
        max_steps: Step limit of its episodes.
        opened_s: When it was opened.
        state: open, or how it closed; failed: every rollout failed, and the experience pool is searched.
        queue: Its queued rollouts; some may have left the state `queued`.
        queued: How many are queued.
        unfinished: Members that have not ended, by id.
        rewards: Rewards of the members that have one.
        spans: Oldest and newest version of each of these members that has tokens.
        led: Whether a member was assigned already.
        held: Desktops per worker that wait for this group (mode `task`).
        rescued: Whether it may train only with a stored success.
    """

    group_id: str
    seq: int
    phase: Phase = field(repr=False)
    task_id: str
    target: int
    max_steps: int
    opened_s: float = 0.0
    state: str = "open"
    queue: deque[Rollout] = field(default_factory=deque, repr=False)
    queued: int = 0
    in_filling: bool = False
    unfinished: dict[str, Rollout] = field(default_factory=dict, repr=False)
    rewards: list[float] = field(default_factory=list)
    spans: list[tuple[PolicyVersion, PolicyVersion]] = field(default_factory=list)
    led: bool = False
    held: Counter[str] = field(default_factory=Counter)
    rescued: bool = False

    def members_at(self, version: PolicyVersion) -> int:
        """Count the members with a reward that have tokens of about one version.

        Args:
            version: The version.

        Returns:
            Number of members whose oldest version is at most `version` and whose newest is at least that.
        """
        return sum(oldest <= version <= newest for oldest, newest in self.spans)

    def stale_share(self, oldest_fresh: PolicyVersion) -> float:
        """Estimate how much of its members is stale, as if the tokens of a member were spread evenly over its versions.

        Args:
            oldest_fresh: The oldest version that is fresh.

        Returns:
            Number of members, with fractions.
        """
        return sum(
            min(oldest_fresh - oldest, newest + 1 - oldest) / (newest + 1 - oldest)
            for oldest, newest in self.spans
            if oldest < oldest_fresh
        )

    def oldest_trainable(self, oldest_fresh: PolicyVersion) -> PolicyVersion | None:
        """Find the oldest version among the tokens of its members that is fresh.

        Args:
            oldest_fresh: The oldest version that is fresh.

        Returns:
            The version, None where no token is fresh.
        """
        return min((max(oldest, oldest_fresh) for oldest, newest in self.spans if newest >= oldest_fresh), default=None)


@dataclass(slots=True, eq=False)
class Phase:
    """A phase.

    Attributes:
        plan: What it runs.
        seq: Number in the order of starting.
        state: active, stopped or done.
        queue: Queued rollouts of a fixed list.
        filling: Groups of an endless phase that have queued rollouts, in the order in which they get the next desktops.
        nfilling: How many groups have queued rollouts.
        parked: Parked rollouts of open groups, oldest first.
        leftovers: Parked rollouts of closed groups, by task.
        counts: Rollouts by state.
        unfinished: Rollouts that have not ended.
        sampler: Chooses the tasks of an endless phase.
        groups_opened: Groups for training opened so far.
        open_groups: Groups that are open now.
        ready_groups: Groups that wait for the trainer.
    """

    plan: PhasePlan
    seq: int
    state: str = "active"
    queue: deque[Rollout] = field(default_factory=deque, repr=False)
    filling: deque[Group] = field(default_factory=deque, repr=False)
    nfilling: int = 0
    parked: deque[Rollout] = field(default_factory=deque, repr=False)
    leftovers: dict[str, deque[Rollout]] = field(default_factory=dict, repr=False)
    counts: Counter[str] = field(default_factory=Counter)
    unfinished: int = 0
    sampler: TaskSampler | None = field(default=None, repr=False)
    groups_opened: int = 0
    open_groups: int = 0
    ready_groups: int = 0

    @property
    def trains(self) -> bool:
        """Whether its groups are for the trainer."""
        return self.plan.purpose is Purpose.TRAIN

    def order(self) -> tuple[float, bool, int]:
        """Return the sort key of the phase: the smallest gets desktops first."""
        plan = self.plan
        priority = plan.priority if plan.priority is not None else 0 if plan.endless else 1
        return (-priority, plan.endless, self.seq)
