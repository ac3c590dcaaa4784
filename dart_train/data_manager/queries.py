"""What decisions are made from: success rates, lengths of successes, how often each task was run.

Role: read-only queries on the trajectory database. Rule: masked trajectories count nowhere here. Non-goals: the decisions
(`dart_train.curation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dart_agent.types import Purpose
from dart_train.curation.lineage import VersionIdentity
from dart_train.curation.staleness import Span
from dart_train.data_manager.store.models import (
    BatchTable,
    GroupTable,
    QuarantinedStepTable,
    StepTable,
    TrajectoryTable,
    VersionTable,
)

SUCCESS_WINDOW = 256
"""Latest successes of a family that the length budget looks at, and of a task that the experience pool looks at."""
UPDATE_WINDOW = 8
"""Latest train steps from which the time between two is measured."""


@dataclass(frozen=True, slots=True)
class StoredSpans:
    """Who sampled the tokens of a step, without the tokens.

    Attributes:
        index: Number of the step.
        spans: Its version spans.
        has_logprobs: Whether its tokens have log-probs.
    """

    index: int
    spans: tuple[Span, ...]
    has_logprobs: bool


def read_spans(session: Session, rollout_id: str) -> list[StoredSpans]:
    """Read the version spans of a trajectory.

    Args:
        session: The transaction.
        rollout_id: The rollout.

    Returns:
        One value per step, in order.
    """
    query = select(StepTable.index, StepTable.version_spans, func.length(StepTable.logprobs) > 0).where(
        StepTable.rollout_id == rollout_id
    )
    return [
        StoredSpans(index, tuple((version, start, end) for version, start, end in spans), has_logprobs)
        for index, spans, has_logprobs in session.execute(query.order_by(StepTable.index))
    ]


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


def latest_durations(session: Session, limit: int) -> list[float]:
    """Read how long the latest training episodes took.

    Args:
        session: The transaction.
        limit: How many at most.

    Returns:
        Seconds, newest first.
    """
    query = select(TrajectoryTable.duration_s).where(TrajectoryTable.purpose == Purpose.TRAIN.value)
    return list(session.scalars(query.order_by(TrajectoryTable.seq.desc()).limit(limit)))


def latest_updates(session: Session) -> list[float]:
    """Read when the latest train steps were reported.

    Args:
        session: The transaction.

    Returns:
        Seconds since the epoch, newest first.
    """
    query = select(BatchTable.done_s).where(BatchTable.state == "done").order_by(BatchTable.seq.desc())
    return [done_s for done_s in session.scalars(query.limit(UPDATE_WINDOW)) if done_s is not None]


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
        Rows, newest first, the latest `SUCCESS_WINDOW` ones.
    """
    query = select(TrajectoryTable).where(
        TrajectoryTable.purpose == Purpose.TRAIN.value,
        TrajectoryTable.task_id == task_id,
        TrajectoryTable.reward > 0,
        TrajectoryTable.version_min.is_not(None),
    )
    return session.scalars(query.order_by(TrajectoryTable.seq.desc()).limit(SUCCESS_WINDOW)).all()


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
