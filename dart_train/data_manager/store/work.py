"""Work in the database: phases, groups, and rollouts with their assignments.

Role: changes of the state of work, each inside the caller's transaction. Rule: a rollout is queued, assigned under a deadline, and ends as
done, masked, failed or cancelled; an assignment that expires requeues the same rollout; the first report of a rollout counts. Non-goals:
which task to run next (`dart_train.data_manager.scheduler`), whether a group may be trained on (`dart_train.data_manager.batches`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased
from ulid import ULID

from dart_agent.data_client.payloads import SamplingPayload, WorkItemPayload
from dart_agent.data_client.wire import PhaseSpec
from dart_agent.errors import StoreError
from dart_agent.types import Purpose
from dart_train.data_manager.store.models import GroupTable, PhaseTable, RolloutTable
from dart_train.data_manager.store.trajectories import TrajectoryStore

UNFINISHED_STATES = ("queued", "assigned", "parked")


def new_id(prefix: str) -> str:
    """Make a ULID with a type prefix.

    Args:
        prefix: The type.

    Returns:
        The id.
    """
    return f"{prefix}_{ULID()}"


def phase_spec(phase: PhaseTable) -> PhaseSpec:
    """Return the specification that a phase was started with."""
    return PhaseSpec.model_validate(phase.spec)


def find_phase(session: Session, name: str) -> PhaseTable:
    """Find a phase by its name.

    Args:
        session: The transaction.
        name: The phase.

    Returns:
        Its row.

    Raises:
        StoreError: It does not exist.
    """
    phase = session.scalar(select(PhaseTable).where(PhaseTable.name == name))
    if phase is None:
        raise StoreError(f"there is no phase {name!r}")
    return phase


def create_phase(store: TrajectoryStore, session: Session, spec: PhaseSpec, task_ids: Sequence[str]) -> PhaseTable:
    """Start a phase; every task is checked first, so that a wrong one fails before anything runs.

    The groups of a phase that is not endless are opened at once.

    Args:
        store: The trajectory database.
        session: The transaction.
        spec: The specification.
        task_ids: Its tasks.

    Returns:
        The phase.

    Raises:
        StoreError: The list is empty, names a task twice, or has a task that may not be run.
    """
    if not task_ids:
        raise StoreError(f"phase {spec.name!r} has no tasks")
    if len(set(task_ids)) != len(task_ids):
        raise StoreError(f"phase {spec.name!r} names a task twice; use rollouts_per_task for repeats")
    for task_id in task_ids:
        store.check_task(task_id, spec.purpose)
    phase = PhaseTable(
        name=spec.name,
        purpose=spec.purpose.value,
        spec=spec.model_dump(mode="json"),
        task_ids=list(task_ids),
        n_tasks=len(task_ids),
        state="active",
        created_s=store.now(),
    )
    session.add(phase)
    session.flush()
    if not spec.endless:
        for task_id in task_ids:
            open_group(store, session, spec, task_id, size=spec.rollouts_per_task, max_steps=spec.max_steps)
    store.record_event(session, "phase_started", name=spec.name, purpose=spec.purpose.value, tasks=len(task_ids))
    return phase


def open_group(
    store: TrajectoryStore, session: Session, spec: PhaseSpec, task_id: str, *, size: int, max_steps: int
) -> GroupTable:
    """Open a group of rollouts of one task and queue them.

    Args:
        store: The trajectory database.
        session: The transaction.
        spec: The phase.
        task_id: The task.
        size: Number of rollouts.
        max_steps: Step limit of their episodes.

    Returns:
        The group.
    """
    store.register_task(session, task_id, spec.purpose)
    group = GroupTable(
        group_id=new_id("grp"),
        phase=spec.name,
        task_id=task_id,
        purpose=spec.purpose.value,
        size=size,
        max_steps=max_steps,
        state="open",
        opened_s=store.now(),
    )
    session.add(group)
    session.flush()
    session.add_all(_rollout(group, spec.sampling, repeat, attempt=1) for repeat in range(size))
    session.flush()
    return group


def previous_assignment(session: Session, worker_id: str, request_id: str) -> RolloutTable | None:
    """Find the rollout that an earlier attempt of the same request got.

    Args:
        session: The transaction.
        worker_id: The worker.
        request_id: The request.

    Returns:
        The rollout, None where there is none.
    """
    return session.scalar(
        select(RolloutTable).where(
            RolloutTable.request_id == request_id, RolloutTable.worker_id == worker_id, RolloutTable.state == "assigned"
        )
    )


def assign_oldest(
    session: Session, phase: str, worker_id: str, request_id: str, deadline_s: float
) -> RolloutTable | None:
    """Assign the oldest queued rollout of a phase.

    Args:
        session: The transaction.
        phase: Name of the phase.
        worker_id: The worker.
        request_id: Its request.
        deadline_s: When the assignment expires, in seconds since the epoch.

    Returns:
        The rollout, None where none is queued.
    """
    query = select(RolloutTable).where(RolloutTable.state == "queued", RolloutTable.phase == phase)
    rollout = oldest_parked(session, phase) or session.scalar(query.order_by(RolloutTable.seq).limit(1))
    if rollout is not None:
        _assign(rollout, worker_id, request_id, deadline_s)
    return rollout


def assign_from_least_busy_group(
    session: Session, phase: str, worker_id: str, request_id: str, deadline_s: float, *, may_share: bool
) -> RolloutTable | None:
    """Assign the oldest queued rollout of the group that the fewest workers work on.

    Args:
        session: The transaction.
        phase: Name of the phase.
        worker_id: The worker.
        request_id: Its request.
        deadline_s: When the assignment expires, in seconds since the epoch.
        may_share: False: only a group that no worker works on.

    Returns:
        The rollout, None where there is none.
    """
    parked = oldest_parked(session, phase)
    if parked is not None:
        _assign(parked, worker_id, request_id, deadline_s)
        return parked
    other = aliased(RolloutTable)
    workers_on_group = (
        select(func.count())
        .where(other.group_id == RolloutTable.group_id, other.state == "assigned")
        .correlate(RolloutTable)
        .scalar_subquery()
    )
    query = select(RolloutTable).where(RolloutTable.state == "queued", RolloutTable.phase == phase)
    if not may_share:
        query = query.where(workers_on_group == 0)
    rollout = session.scalar(query.order_by(workers_on_group, RolloutTable.seq).limit(1))
    if rollout is not None:
        _assign(rollout, worker_id, request_id, deadline_s)
    return rollout


def oldest_parked(session: Session, phase: str) -> RolloutTable | None:
    """Find the parked rollout of a phase that was opened first.

    Args:
        session: The transaction.
        phase: Name of the phase.

    Returns:
        The rollout, None where none is parked.
    """
    query = select(RolloutTable).where(RolloutTable.state == "parked", RolloutTable.phase == phase)
    return session.scalar(query.order_by(RolloutTable.seq).limit(1))


def _assign(rollout: RolloutTable, worker_id: str, request_id: str, deadline_s: float) -> None:
    rollout.state = "assigned"
    rollout.worker_id, rollout.request_id, rollout.deadline_s = worker_id, request_id, deadline_s


def count_active_groups(session: Session, phase: str) -> int:
    """Count the groups of a phase that have unfinished rollouts.

    Args:
        session: The transaction.
        phase: Name of the phase.

    Returns:
        Number of groups.
    """
    query = select(func.count(RolloutTable.group_id.distinct()))
    return session.scalar(query.where(RolloutTable.phase == phase, RolloutTable.state.in_(UNFINISHED_STATES))) or 0


def extend_assignments(session: Session, worker_id: str, deadline_s: float) -> int:
    """Extend the deadlines of everything that a worker holds.

    Args:
        session: The transaction.
        worker_id: The worker.
        deadline_s: The new deadline, in seconds since the epoch.

    Returns:
        Number of rollouts.
    """
    held = assignments_of(session, worker_id)
    for rollout in held:
        rollout.deadline_s = deadline_s
    return len(held)


def assignments_of(session: Session, worker_id: str | None) -> Sequence[RolloutTable]:
    """Find what a worker holds.

    Args:
        session: The transaction.
        worker_id: The worker; None: every worker.

    Returns:
        The rollouts.
    """
    query = select(RolloutTable).where(RolloutTable.state == "assigned")
    if worker_id is not None:
        query = query.where(RolloutTable.worker_id == worker_id)
    return session.scalars(query).all()


def expired_assignments(session: Session, now_s: float) -> Sequence[RolloutTable]:
    """Find assignments whose deadline has passed.

    Args:
        session: The transaction.
        now_s: Present time, in seconds since the epoch.

    Returns:
        The rollouts.
    """
    return session.scalars(
        select(RolloutTable).where(RolloutTable.state == "assigned", RolloutTable.deadline_s < now_s)
    ).all()


def find_rollout(session: Session, rollout_id: str) -> RolloutTable:
    """Find a rollout by its id.

    Args:
        session: The transaction.
        rollout_id: The rollout.

    Returns:
        Its row.

    Raises:
        StoreError: It does not exist.
    """
    rollout = session.scalar(select(RolloutTable).where(RolloutTable.rollout_id == rollout_id))
    if rollout is None:
        raise StoreError(f"rollout {rollout_id} was never assigned")
    return rollout


def requeue(store: TrajectoryStore, session: Session, rollout: RolloutTable, cause: str, *, uses_attempt: bool) -> None:
    """Requeue an assigned rollout; without attempts left it fails, and in a stopped phase it is cancelled.

    Args:
        store: The trajectory database.
        session: The transaction.
        rollout: The rollout.
        cause: Why.
        uses_attempt: Whether it used up an attempt.
    """
    if rollout.state != "assigned":
        return
    phase = find_phase(session, rollout.phase)
    spec = phase_spec(phase)
    rollout.worker_id = rollout.request_id = rollout.deadline_s = None
    if phase.state != "active":
        rollout.state = "cancelled"
    elif uses_attempt and rollout.attempt >= spec.max_attempts:
        rollout.state = "failed"
    else:
        rollout.state = "queued"
        rollout.attempt += int(uses_attempt)
    store.record_event(session, "rollout_requeued", rollout_id=rollout.rollout_id, cause=cause, state=rollout.state)


def park(store: TrajectoryStore, session: Session, rollout: RolloutTable) -> None:
    """Leave an assigned rollout, whose steps are stored, to whoever is assigned it next; in a stopped phase it is cancelled.

    Args:
        store: The trajectory database.
        session: The transaction.
        rollout: The rollout.
    """
    rollout.worker_id = rollout.request_id = rollout.deadline_s = None
    rollout.state = "parked" if find_phase(session, rollout.phase).state == "active" else "cancelled"
    store.record_event(session, "rollout_parked", rollout_id=rollout.rollout_id, state=rollout.state)


def complete_rollout(store: TrajectoryStore, session: Session, rollout: RolloutTable, *, masked: bool) -> None:
    """Complete a rollout; a masked item of a fixed list is tried again under a new rollout id.

    Args:
        store: The trajectory database.
        session: The transaction.
        rollout: The rollout.
        masked: Whether its trajectory has no reward.
    """
    phase = find_phase(session, rollout.phase)
    spec = phase_spec(phase)
    rollout.worker_id = rollout.request_id = rollout.deadline_s = None
    rollout.state = "masked" if masked else "done"
    if masked and not spec.endless and phase.state == "active":
        if rollout.attempt >= spec.max_attempts:
            rollout.state = "failed"
        else:
            group = session.scalars(select(GroupTable).where(GroupTable.group_id == rollout.group_id)).one()
            session.add(_rollout(group, spec.sampling, rollout.repeat, attempt=rollout.attempt + 1))
    session.flush()


def count_unfinished(session: Session, *, group_id: str | None = None, phase: str | None = None) -> int:
    """Count rollouts that have not ended.

    Args:
        session: The transaction.
        group_id: Only of this group.
        phase: Only of this phase.

    Returns:
        Number of rollouts.
    """
    query = select(func.count()).select_from(RolloutTable).where(RolloutTable.state.in_(UNFINISHED_STATES))
    if group_id is not None:
        query = query.where(RolloutTable.group_id == group_id)
    if phase is not None:
        query = query.where(RolloutTable.phase == phase)
    return session.scalar(query) or 0


def cancel_queued(session: Session, phase: str) -> list[str]:
    """Cancel what is queued or parked in a phase.

    Args:
        session: The transaction.
        phase: Name of the phase.

    Returns:
        Ids of the groups concerned.
    """
    rows = session.scalars(
        select(RolloutTable).where(RolloutTable.phase == phase, RolloutTable.state.in_(("queued", "parked")))
    ).all()
    for row in rows:
        row.state = "cancelled"
    session.flush()
    return list(dict.fromkeys(row.group_id for row in rows))


def work_item(rollout: RolloutTable, stored_steps: int = 0) -> WorkItemPayload:
    """Convert a rollout to what its worker gets.

    Args:
        rollout: The rollout.
        stored_steps: Steps that are stored of it.

    Returns:
        The work item.
    """
    return WorkItemPayload(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        task_id=rollout.task_id,
        purpose=Purpose(rollout.purpose),
        sampling=SamplingPayload(**rollout.sampling),
        max_steps=rollout.max_steps,
        phase=rollout.phase,
        stored_steps=stored_steps,
    )


def _rollout(group: GroupTable, sampling: SamplingPayload, repeat: int, attempt: int) -> RolloutTable:
    return RolloutTable(
        rollout_id=new_id("roll"),
        group_id=group.group_id,
        phase=group.phase,
        task_id=group.task_id,
        purpose=group.purpose,
        repeat=repeat,
        attempt=attempt,
        state="queued",
        sampling=sampling.model_dump(),
        max_steps=group.max_steps,
    )
