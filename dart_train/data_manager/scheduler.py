"""The scheduler: which rollout a worker gets, and what follows when one ends.

Role: assignments, their expiry, completion of groups and phases, each inside the caller's transaction. Rule: fixed lists go before endless
phases; the oldest queued rollout goes first; an endless phase opens its next group only when a worker asks and nothing is queued, so that
curation decides with the newest evidence. Non-goals: batches (`batches`), HTTP (`app`).
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_agent.types import Directive, Purpose
from dart_train.curation.backpressure import may_open_group
from dart_train.curation.group_filter import uninformative_reason
from dart_train.curation.length_budget import length_budget
from dart_train.curation.rollout_budget import rollout_budget
from dart_train.curation.task_sampler import TaskSampler
from dart_train.data_manager import queries
from dart_train.data_manager.catalog import task_family
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.store import work
from dart_train.data_manager.store.models import GroupTable, PhaseTable, RolloutTable
from dart_train.data_manager.store.trajectories import TrajectoryStore


class Scheduler:
    """Decides on work; all changing state is in the database, so that a restart changes nothing.

    Args:
        store: The trajectory database.
        config: The configuration of the data manager.
    """

    def __init__(self, store: TrajectoryStore, config: DataManagerConfig) -> None:
        self._store = store
        self._config = config
        self._tasks: dict[str, dict[str, list[str]]] = {}

    def assign(self, session: Session, worker_id: str, request_id: str) -> RolloutTable | None:
        """Assign the next rollout to a worker.

        Args:
            session: The transaction.
            worker_id: The worker.
            request_id: The request; a repeated request gets the same rollout.

        Returns:
            The rollout, None where there is nothing to do.
        """
        self.expire(session)
        again = work.previous_assignment(session, worker_id, request_id)
        if again is not None:
            return again
        deadline_s = self._store.now() + self._config.assignment_timeout_s
        active = session.scalars(select(PhaseTable).where(PhaseTable.state == "active").order_by(PhaseTable.seq)).all()
        for phase in sorted(active, key=lambda row: work.phase_spec(row).endless):
            if work.phase_spec(phase).endless:
                rollout = self._assign_from_groups(session, phase, worker_id, request_id, deadline_s)
            else:
                rollout = work.assign_oldest(session, phase.name, worker_id, request_id, deadline_s)
            if rollout is not None:
                return rollout
        return None

    def _assign_from_groups(
        self, session: Session, phase: PhaseTable, worker_id: str, request_id: str, deadline_s: float
    ) -> RolloutTable | None:
        """A group of its own for each worker up to `parallel_groups`: then no worker waits while another prepares a desktop."""

        def assign(*, may_share: bool) -> RolloutTable | None:
            return work.assign_from_least_busy_group(
                session, phase.name, worker_id, request_id, deadline_s, may_share=may_share
            )

        rollout = assign(may_share=False)
        if rollout is None and work.count_active_groups(session, phase.name) < self._config.parallel_groups:
            self._open_next_group(session, phase)
            rollout = assign(may_share=False)
        if rollout is None:
            rollout = assign(may_share=True)
        if rollout is None and self._open_next_group(session, phase):
            rollout = assign(may_share=True)
        return rollout

    def expire(self, session: Session) -> None:
        """Requeue the rollouts whose deadline has passed.

        Args:
            session: The transaction.
        """
        for rollout in work.expired_assignments(session, self._store.now()):
            self.requeue(session, rollout, "assignment expired", uses_attempt=True)

    def requeue(self, session: Session, rollout: RolloutTable, cause: str, *, uses_attempt: bool) -> None:
        """Requeue a rollout that its worker will not report.

        Args:
            session: The transaction.
            rollout: The rollout.
            cause: Why.
            uses_attempt: Whether it used up an attempt.
        """
        work.requeue(self._store, session, rollout, cause, uses_attempt=uses_attempt)
        session.flush()
        if rollout.state not in work.UNFINISHED_STATES:
            self._close_if_finished(session, rollout.group_id)

    def directive(self, session: Session, rollout: RolloutTable) -> Directive:
        """Say what an episode does after a step of it was stored.

        Args:
            session: The transaction.
            rollout: Its rollout.

        Returns:
            To go on, also in a stopped phase: running episodes are still stored.
        """
        return Directive.CONTINUE

    def park(self, session: Session, rollout: RolloutTable) -> None:
        """Leave an unfinished rollout to whoever is assigned it next.

        Args:
            session: The transaction.
            rollout: The rollout.
        """
        work.park(self._store, session, rollout)
        session.flush()
        if rollout.state not in work.UNFINISHED_STATES:
            self._close_if_finished(session, rollout.group_id)

    def complete_rollout(self, session: Session, rollout_id: str, *, masked: bool) -> None:
        """Complete a rollout whose trajectory was stored.

        Args:
            session: The transaction.
            rollout_id: The rollout.
            masked: Whether the trajectory has no reward.
        """
        rollout = work.find_rollout(session, rollout_id)
        work.complete_rollout(self._store, session, rollout, masked=masked)
        self._close_if_finished(session, rollout.group_id)

    def stop_phase(self, session: Session, phase: PhaseTable) -> None:
        """Assign no more rollouts of a phase; running ones may still be reported.

        Args:
            session: The transaction.
            phase: The phase.
        """
        if phase.state != "active":
            return
        phase.state = "stopped"
        for group_id in work.cancel_queued(session, phase.name):
            self._close_if_finished(session, group_id)
        self._store.record_event(session, "phase_stopped", name=phase.name)

    def _open_next_group(self, session: Session, phase: PhaseTable) -> bool:
        spec = work.phase_spec(phase)
        if not spec.endless:
            return False
        if not may_open_group(queries.ready_groups(session, phase.name), self._config.batch.max_ready_groups):
            return False
        curation = self._config.curation
        by_family = self._tasks_by_family(phase)
        runs = queries.groups_opened(session, phase.name)
        rates = queries.success_rates(session, list(by_family), curation.task_sampler.window)
        random = Random(f"{self._config.seed}/{phase.name}/{sum(runs.values())}")
        task_id = TaskSampler(by_family, curation.task_sampler, runs).choose(rates, random)
        family = task_family(task_id)
        size = rollout_budget(
            spec.rollouts_per_task,
            queries.recent_rewards(session, family, spec.rollouts_per_task),
            curation.rollout_budget,
        )
        max_steps = length_budget(spec.max_steps, queries.success_lengths(session, family), curation.length_budget)
        work.open_group(self._store, session, spec, task_id, size=size, max_steps=max_steps)
        return True

    def _tasks_by_family(self, phase: PhaseTable) -> dict[str, list[str]]:
        """The tasks of a phase; they never change, and may be many."""
        if phase.name not in self._tasks:
            by_family: dict[str, list[str]] = defaultdict(list)
            for task_id in phase.task_ids:
                by_family[task_family(task_id)].append(task_id)
            self._tasks[phase.name] = by_family
        return self._tasks[phase.name]

    def _close_if_finished(self, session: Session, group_id: str) -> None:
        """Close the group, and its phase, when nothing of them is outstanding."""
        group = session.scalars(select(GroupTable).where(GroupTable.group_id == group_id)).one()
        if group.state == "open" and not work.count_unfinished(session, group_id=group_id):
            self._close_group(session, group)
        phase = work.find_phase(session, group.phase)
        fixed_and_active = phase.state == "active" and not work.phase_spec(phase).endless
        if fixed_and_active and not work.count_unfinished(session, phase=phase.name):
            phase.state = "done"
            self._store.record_event(session, "phase_done", name=phase.name)

    def _close_group(self, session: Session, group: GroupTable) -> None:
        group.closed_s = self._store.now()
        if group.purpose != Purpose.TRAIN.value:
            group.state = "done"
            return
        rewards = [
            row.reward for row in queries.rewarded_trajectories(session, group.group_id) if row.reward is not None
        ]
        reason = uninformative_reason(rewards, self._config.batch.min_members)
        rescuable = reason == "all_failed" and self._config.curation.experience_pool.enabled
        group.state = "ready" if reason is None or rescuable else "dropped"
        group.reason = None if group.state == "ready" else reason
        if reason is not None and not rescuable:
            self._store.record_event(session, "group_dropped", group_id=group.group_id, reason=reason)
