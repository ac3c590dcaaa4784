"""Work in the database: phases and rollouts.

Role: find them, and start a phase, each inside the caller's transaction. Non-goals: how their states change
(`dart_train.data_manager.execution`), which task to run next (`dart_train.scheduling`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session
from ulid import ULID

from dart_agent.data_client.wire import PhaseSpec
from dart_agent.errors import StoreError
from dart_train.data_manager.store.models import PhaseTable, RolloutTable
from dart_train.data_manager.store.trajectories import TrajectoryStore


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

    Its groups are opened by the scheduler.

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
    store.record_event(session, "phase_started", name=spec.name, purpose=spec.purpose.value, tasks=len(task_ids))
    return phase


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


def holds(rollout: RolloutTable, assignment: str) -> bool:
    """Say whether an assignment of a rollout is the present one.

    Args:
        rollout: Its row.
        assignment: The request that the assignment answered.

    Returns:
        False where the rollout is not assigned, or was assigned again, to whichever worker.
    """
    return rollout.state == "assigned" and rollout.request_id == assignment
