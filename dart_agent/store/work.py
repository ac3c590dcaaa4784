"""Work of the store: phases, groups, and rollouts with claims.

Role: the state changes of work, each inside the caller's transaction. Rule: a rollout is queued, claimed under a deadline, and ends as
done, masked, failed or cancelled; a claim that lapses puts the same rollout back into the queue; whichever report of a rollout comes
first counts. Non-goals: which task to run next and whether a group may train (`dart_train`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased
from ulid import ULID

from dart_agent.errors import StoreError
from dart_agent.store.models import GroupRow, PhaseRow, RolloutRow
from dart_agent.store.rows import SamplingSpec, WorkItemRow
from dart_agent.store.trajectories import Store
from dart_agent.store.wire import PhaseSpec
from dart_agent.types import Purpose

OUTSTANDING = ("queued", "claimed")


def new_id(prefix: str) -> str:
    """A type-prefixed ULID."""
    return f"{prefix}_{ULID()}"


def phase_spec(phase: PhaseRow) -> PhaseSpec:
    """The specification a phase was started with."""
    return PhaseSpec.model_validate(phase.spec)


def find_phase(session: Session, name: str) -> PhaseRow:
    """A phase by name. Raises StoreError when there is none."""
    phase = session.scalar(select(PhaseRow).where(PhaseRow.name == name))
    if phase is None:
        raise StoreError(f"there is no phase {name!r}")
    return phase


def create_phase(store: Store, session: Session, spec: PhaseSpec, task_ids: Sequence[str]) -> PhaseRow:
    """Start a phase on `task_ids`; every task is checked first, so a wrong one fails before anything runs.

    The groups of a phase that is not endless are opened at once. Raises StoreError for an empty list or a task that may not be run.
    """
    if not task_ids:
        raise StoreError(f"phase {spec.name!r} has no tasks")
    if len(set(task_ids)) != len(task_ids):
        raise StoreError(f"phase {spec.name!r} names a task twice; use rollouts_per_task for repeats")
    for task_id in task_ids:
        store.check_task(task_id, spec.purpose)
    phase = PhaseRow(
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
    store.log(session, "phase_started", name=spec.name, purpose=spec.purpose.value, tasks=len(task_ids))
    return phase


def open_group(store: Store, session: Session, spec: PhaseSpec, task_id: str, *, size: int, max_steps: int) -> GroupRow:
    """Open a group of `size` rollouts of one task and queue them."""
    store.admit_task(session, task_id, spec.purpose)
    group = GroupRow(
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


def claimed_before(session: Session, worker_id: str, request_id: str) -> RolloutRow | None:
    """The rollout that an earlier try of the same claim request got."""
    return session.scalar(
        select(RolloutRow).where(
            RolloutRow.request_id == request_id, RolloutRow.worker_id == worker_id, RolloutRow.state == "claimed"
        )
    )


def claim_queued(session: Session, phase: str, worker_id: str, request_id: str, deadline_s: float) -> RolloutRow | None:
    """Claim the oldest queued rollout of a phase."""
    query = select(RolloutRow).where(RolloutRow.state == "queued", RolloutRow.phase == phase)
    rollout = session.scalar(query.order_by(RolloutRow.seq).limit(1))
    if rollout is not None:
        rollout.state, rollout.worker_id, rollout.request_id = "claimed", worker_id, request_id
        rollout.deadline_s = deadline_s
    return rollout


def claim_spread(
    session: Session, phase: str, worker_id: str, request_id: str, deadline_s: float, *, may_share: bool
) -> RolloutRow | None:
    """Claim a queued rollout of the group that the fewest workers are on, the oldest of these.

    may_share: False: only of a group that nobody is on.
    """
    other = aliased(RolloutRow)
    workers_on_group = (
        select(func.count())
        .where(other.group_id == RolloutRow.group_id, other.state == "claimed")
        .correlate(RolloutRow)
        .scalar_subquery()
    )
    query = select(RolloutRow).where(RolloutRow.state == "queued", RolloutRow.phase == phase)
    if not may_share:
        query = query.where(workers_on_group == 0)
    rollout = session.scalar(query.order_by(workers_on_group, RolloutRow.seq).limit(1))
    if rollout is not None:
        rollout.state, rollout.worker_id, rollout.request_id = "claimed", worker_id, request_id
        rollout.deadline_s = deadline_s
    return rollout


def groups_under_way(session: Session, phase: str) -> int:
    """How many groups of a phase have rollouts that have not ended."""
    query = select(func.count(RolloutRow.group_id.distinct()))
    return session.scalar(query.where(RolloutRow.phase == phase, RolloutRow.state.in_(OUTSTANDING))) or 0


def extend_claims(session: Session, worker_id: str, deadline_s: float) -> int:
    """Move the deadlines of everything a worker holds; returns how many."""
    held = claims_of(session, worker_id)
    for rollout in held:
        rollout.deadline_s = deadline_s
    return len(held)


def claims_of(session: Session, worker_id: str | None) -> Sequence[RolloutRow]:
    """What a worker holds; None: what anyone holds."""
    query = select(RolloutRow).where(RolloutRow.state == "claimed")
    if worker_id is not None:
        query = query.where(RolloutRow.worker_id == worker_id)
    return session.scalars(query).all()


def lapsed_claims(session: Session, now_s: float) -> Sequence[RolloutRow]:
    """Claims whose deadline has passed."""
    return session.scalars(select(RolloutRow).where(RolloutRow.state == "claimed", RolloutRow.deadline_s < now_s)).all()


def find_rollout(session: Session, rollout_id: str) -> RolloutRow:
    """A rollout by id. Raises StoreError when there is none."""
    rollout = session.scalar(select(RolloutRow).where(RolloutRow.rollout_id == rollout_id))
    if rollout is None:
        raise StoreError(f"rollout {rollout_id} was never handed out")
    return rollout


def hand_back(store: Store, session: Session, rollout: RolloutRow, cause: str, *, counts: bool) -> None:
    """Put a claimed rollout back into the queue. With `counts` it used up an attempt; without attempts left it is failed."""
    if rollout.state != "claimed":
        return
    phase = find_phase(session, rollout.phase)
    spec = phase_spec(phase)
    rollout.worker_id = rollout.request_id = rollout.deadline_s = None
    if phase.state != "active":
        rollout.state = "cancelled"
    elif counts and rollout.attempt >= spec.max_attempts:
        rollout.state = "failed"
    else:
        rollout.state = "queued"
        rollout.attempt += int(counts)
    store.log(session, "rollout_handed_back", rollout_id=rollout.rollout_id, cause=cause, state=rollout.state)


def settle(store: Store, session: Session, rollout: RolloutRow, *, masked: bool) -> None:
    """A trajectory of this rollout was stored. A masked item of a fixed list is tried again under a new rollout id."""
    phase = find_phase(session, rollout.phase)
    spec = phase_spec(phase)
    rollout.worker_id = rollout.request_id = rollout.deadline_s = None
    rollout.state = "masked" if masked else "done"
    if masked and not spec.endless and phase.state == "active":
        if rollout.attempt >= spec.max_attempts:
            rollout.state = "failed"
        else:
            group = session.scalars(select(GroupRow).where(GroupRow.group_id == rollout.group_id)).one()
            session.add(_rollout(group, spec.sampling, rollout.repeat, attempt=rollout.attempt + 1))
    session.flush()


def outstanding(session: Session, *, group_id: str | None = None, phase: str | None = None) -> int:
    """How many rollouts of a group or a phase have not ended."""
    query = select(func.count()).select_from(RolloutRow).where(RolloutRow.state.in_(OUTSTANDING))
    if group_id is not None:
        query = query.where(RolloutRow.group_id == group_id)
    if phase is not None:
        query = query.where(RolloutRow.phase == phase)
    return session.scalar(query) or 0


def cancel_queued(session: Session, phase: str) -> list[str]:
    """Cancel what is queued in a phase; returns the ids of the groups concerned."""
    rows = session.scalars(select(RolloutRow).where(RolloutRow.phase == phase, RolloutRow.state == "queued")).all()
    for row in rows:
        row.state = "cancelled"
    session.flush()
    return list(dict.fromkeys(row.group_id for row in rows))


def work_item(rollout: RolloutRow) -> WorkItemRow:
    """A rollout as it is handed out."""
    return WorkItemRow(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        task_id=rollout.task_id,
        purpose=Purpose(rollout.purpose),
        sampling=SamplingSpec(**rollout.sampling),
        max_steps=rollout.max_steps,
        phase=rollout.phase,
    )


def _rollout(group: GroupRow, sampling: SamplingSpec, repeat: int, attempt: int) -> RolloutRow:
    return RolloutRow(
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
