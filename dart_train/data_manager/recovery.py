"""The scheduler's state, rebuilt from the database.

Role: `rebuild_state`, at the start of the data manager and after a transaction that failed. Rule: what is unfinished, what waits for the
trainer and what the trainer has are read; of what is finished only counts are. Non-goals: decisions (`dart_train.scheduling`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from dart_train.data_manager import queries
from dart_train.data_manager.store import work
from dart_train.data_manager.store.models import (
    BatchMemberTable,
    BatchTable,
    EpisodeStateTable,
    GroupTable,
    PhaseTable,
    RolloutTable,
    VersionTable,
)
from dart_train.scheduling.entities import UNFINISHED_STATES, Group, Phase
from dart_train.scheduling.events import PhasePlan
from dart_train.scheduling.groups import why_uninformative
from dart_train.scheduling.measures import SAMPLE
from dart_train.scheduling.outcomes import FAMILY_SAMPLE, TASK_SAMPLE
from dart_train.scheduling.restoring import (
    restore_group,
    restore_issued,
    restore_opened_groups,
    restore_ready,
    restore_rollout,
)
from dart_train.scheduling.settings import SchedulerSettings, SchedulingMode
from dart_train.scheduling.state import SchedulerState

LIVE_GROUP_STATES = ("open", "ready", "issued")
STORED_PARTIAL = "stored"
"""Reference of a partial trajectory: its steps are stored under the id of its rollout."""


def phase_plan(spec_row: PhaseTable, task_ids: Iterable[str]) -> PhasePlan:
    """Convert a stored phase to what the scheduler needs of it.

    Args:
        spec_row: The row.
        task_ids: Its tasks.

    Returns:
        The plan.
    """
    spec = work.phase_spec(spec_row)
    return PhasePlan(
        name=spec.name,
        purpose=spec.purpose,
        task_ids=tuple(task_ids),
        rollouts_per_task=spec.rollouts_per_task,
        max_steps=spec.max_steps,
        endless=spec.endless,
        max_attempts=spec.max_attempts,
        priority=spec.priority,
        continue_first=spec.continue_first,
        max_in_flight=spec.max_in_flight,
    )


def rebuild_state(session: Session, settings: SchedulerSettings, now_s: float) -> SchedulerState:
    """Rebuild the state of the scheduler.

    Args:
        session: The transaction.
        settings: Its settings.
        now_s: Present time, in seconds since the epoch.

    Returns:
        The state; workers get the full time of an assignment to give a sign of life.
    """
    state = SchedulerState(settings, work.new_id)
    state.version = session.scalar(select(func.max(VersionTable.version))) or 0
    state.trainer_version = session.scalar(select(func.max(BatchTable.version))) or 0
    _restore_phases(session, state)
    groups = _restore_groups(session, state)
    _restore_rollouts(session, state, groups, now_s)
    _restore_batch(session, state, groups)
    _restore_history(session, state)
    return state


def _restore_phases(session: Session, state: SchedulerState) -> None:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tallied = select(RolloutTable.phase, RolloutTable.state, func.count()).group_by(
        RolloutTable.phase, RolloutTable.state
    )
    for name, rollout_state, count in session.execute(tallied):
        if rollout_state not in UNFINISHED_STATES:
            counts[name][rollout_state] = count
    opened = queries.groups_opened(session)
    for by_task in opened.values():
        restore_opened_groups(state, by_task)
    for row in session.scalars(select(PhaseTable).order_by(PhaseTable.seq).options(undefer(PhaseTable.task_ids))):
        plan = phase_plan(row, row.task_ids)
        ngroups = sum(opened.get(row.name, {}).values())
        state.add_phase(plan, state=row.state, counts=counts[row.name], groups_opened=ngroups)


def _restore_groups(session: Session, state: SchedulerState) -> dict[str, Group]:
    state.group_seq = session.scalar(select(func.max(GroupTable.seq))) or 0
    rows = session.scalars(
        select(GroupTable).where(GroupTable.state.in_(LIVE_GROUP_STATES)).order_by(GroupTable.seq)
    ).all()
    groups: dict[str, Group] = {}
    rewarded_by_group = queries.rewarded_trajectories(session, [row.group_id for row in rows])
    for row in rows:
        rewarded = rewarded_by_group.get(row.group_id, [])
        group = restore_group(
            state,
            state.phases[row.phase],
            row.group_id,
            row.task_id,
            seq=row.seq,
            target=row.size,
            max_steps=row.max_steps,
            opened_s=row.opened_s,
            rewards=[trajectory.reward for trajectory in rewarded],
            spans=[
                (trajectory.version_min, trajectory.version_max)
                for trajectory in rewarded
                if trajectory.version_min is not None and trajectory.version_max is not None
            ],
        )
        group.led = bool(rewarded)
        groups[row.group_id] = group
        if row.state != "open":
            reason = why_uninformative(state, group)
            restore_ready(state, group, rescued=reason is not None)
    return groups


def _restore_rollouts(session: Session, state: SchedulerState, groups: dict[str, Group], now_s: float) -> None:
    saved = select(EpisodeStateTable.rollout_id, EpisodeStateTable.version_min)
    versions = {rollout_id: version_min for rollout_id, version_min in session.execute(saved)}
    query = select(RolloutTable).where(RolloutTable.state.in_(UNFINISHED_STATES)).order_by(RolloutTable.seq)
    for row in session.scalars(query):
        group = groups.get(row.group_id)
        if group is None:
            group = groups[row.group_id] = _closed_group(session, state.phases[row.phase], row.group_id)
        parked = row.state == "parked"
        rollout = restore_rollout(
            state,
            group,
            row.rollout_id,
            repeat=row.repeat,
            attempt=row.attempt,
            partial=STORED_PARTIAL if parked else None,
            partial_version=versions.get(row.rollout_id),
            parked=parked,
            worker_id=row.worker_id if row.state == "assigned" else None,
            request_id=row.request_id,
            now_s=now_s,
        )
        if group.state != "open" and rollout.worker is not None:
            rollout.worker.stopping[rollout.rollout_id] = rollout


def _closed_group(session: Session, phase: Phase, group_id: str) -> Group:
    """A group that is not awaited any more, for what it left unfinished."""
    row = session.scalars(select(GroupTable).where(GroupTable.group_id == group_id)).one()
    return Group(row.group_id, row.seq, phase, row.task_id, row.size, row.max_steps, row.opened_s, state=row.state)


def _restore_batch(session: Session, state: SchedulerState, groups: dict[str, Group]) -> None:
    batch_id = session.scalar(select(BatchTable.batch_id).where(BatchTable.state == "issued").order_by(BatchTable.seq))
    if batch_id is not None:
        members = select(BatchMemberTable.group_id).where(BatchMemberTable.batch_id == batch_id).distinct()
        restore_issued(state, (groups[group_id] for group_id in session.scalars(members)))
        if state.settings.scheduling.mode is SchedulingMode.BATCH:
            for worker in state.workers.values():
                worker.stopping.update(
                    (name, rollout) for name, rollout in worker.running.items() if rollout.group.phase.trains
                )


def _restore_history(session: Session, state: SchedulerState) -> None:
    per_family = max(FAMILY_SAMPLE, state.settings.curation.task_sampler.window)
    per_task = max(TASK_SAMPLE, state.settings.curation.task_sampler.window)
    for task_id, reward, steps in queries.latest_outcomes(
        session, per_task, per_family, state.settings.curation.success_at
    ):
        state.outcomes.add(task_id, reward, steps)
    for task_id in list(state.outcomes.tasks):
        state.tell_samplers(task_id)
    state.measures.add_episodes(reversed(queries.latest_durations(session, SAMPLE)))
    for done_s in reversed(queries.latest_updates(session)):
        state.measures.add_update(done_s)
