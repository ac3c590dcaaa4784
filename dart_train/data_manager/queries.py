"""What decisions are made from: success rates, lengths of successes, how often each task was run.

Role: read-only queries on the trajectory database. Rule: masked trajectories count nowhere here. Non-goals: the decisions
(`dart_train.curation`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dart_agent.types import Purpose
from dart_train.curation.lineage import VersionIdentity
from dart_train.data_manager.store.models import GroupTable, QuarantinedStepTable, TrajectoryTable, VersionTable

SUCCESS_WINDOW = 256
"""Latest successes of a family that the length budget looks at."""


def recent_rewards(session: Session, family: str, limit: int) -> list[float]:
    """Read the rewards of the latest training rollouts of a family.

    Args:
        session: The transaction.
        family: The family.
        limit: How many at most.

    Returns:
        Rewards, newest first.
    """
    query = (
        select(TrajectoryTable.reward)
        .where(
            TrajectoryTable.purpose == Purpose.TRAIN.value,
            TrajectoryTable.family == family,
            TrajectoryTable.reward.is_not(None),
        )
        .order_by(TrajectoryTable.seq.desc())
        .limit(limit)
    )
    return [reward for reward in session.scalars(query) if reward is not None]


def success_rates(session: Session, families: Sequence[str], window: int) -> dict[str, float]:
    """Compute the success rate of each family over its latest training rollouts.

    Args:
        session: The transaction.
        families: The families.
        window: Number of latest rollouts.

    Returns:
        Fraction of rollouts with a reward above 0, by family; families that were never run are left out.
    """
    rates = {}
    for family in families:
        rewards = recent_rewards(session, family, window)
        if rewards:
            rates[family] = sum(reward > 0 for reward in rewards) / len(rewards)
    return rates


def success_lengths(session: Session, family: str) -> list[int]:
    """Read the lengths of the latest successful training rollouts of a family.

    Args:
        session: The transaction.
        family: The family.

    Returns:
        Numbers of steps, newest first.
    """
    query = (
        select(TrajectoryTable.n_steps)
        .where(
            TrajectoryTable.purpose == Purpose.TRAIN.value,
            TrajectoryTable.family == family,
            TrajectoryTable.reward > 0,
        )
        .order_by(TrajectoryTable.seq.desc())
        .limit(SUCCESS_WINDOW)
    )
    return list(session.scalars(query))


def groups_opened(session: Session, phase: str) -> dict[str, int]:
    """Count the groups that a phase has opened.

    Args:
        session: The transaction.
        phase: Name of the phase.

    Returns:
        Number of groups by task id.
    """
    query = select(GroupTable.task_id, func.count()).where(GroupTable.phase == phase).group_by(GroupTable.task_id)
    return {task_id: count for task_id, count in session.execute(query)}


def ready_groups(session: Session, phase: str | None = None) -> int:
    """Count the training groups that wait for the trainer.

    Args:
        session: The transaction.
        phase: Name of a phase; None: all phases.

    Returns:
        Number of groups.
    """
    query = select(func.count()).select_from(GroupTable)
    query = query.where(GroupTable.purpose == Purpose.TRAIN.value, GroupTable.state == "ready")
    if phase is not None:
        query = query.where(GroupTable.phase == phase)
    return session.scalar(query) or 0


def rewarded_trajectories(session: Session, group_id: str) -> Sequence[TrajectoryTable]:
    """Read the trajectories of a group that have a reward.

    Args:
        session: The transaction.
        group_id: The group.

    Returns:
        Rows, oldest first.
    """
    query = select(TrajectoryTable).where(TrajectoryTable.group_id == group_id, TrajectoryTable.reward.is_not(None))
    return session.scalars(query.order_by(TrajectoryTable.seq)).all()


def stored_successes(session: Session, task_id: str) -> Sequence[TrajectoryTable]:
    """Read the successful training trajectories of a task whose tokens have a version.

    Args:
        session: The transaction.
        task_id: The task.

    Returns:
        Rows, newest first.
    """
    query = select(TrajectoryTable).where(
        TrajectoryTable.purpose == Purpose.TRAIN.value,
        TrajectoryTable.task_id == task_id,
        TrajectoryTable.reward > 0,
        TrajectoryTable.version_min.is_not(None),
    )
    return session.scalars(query.order_by(TrajectoryTable.seq.desc())).all()


def version_identities(session: Session) -> list[VersionIdentity]:
    """Read the identity of every registered version.

    Args:
        session: The transaction.

    Returns:
        The identities, by number.
    """
    query = select(VersionTable.version, VersionTable.digest, VersionTable.parent).order_by(VersionTable.version)
    return [VersionIdentity(*row) for row in session.execute(query)]


def quarantined_steps(session: Session, rollout_id: str) -> set[int]:
    """Read which steps of a rollout are quarantined.

    Args:
        session: The transaction.
        rollout_id: The rollout.

    Returns:
        Their indices.
    """
    query = select(QuarantinedStepTable.index).where(QuarantinedStepTable.rollout_id == rollout_id)
    return set(session.scalars(query))
