"""What decisions are made from: success rates, lengths of successes, how often each task was run.

Role: read-only queries on the trajectory database. Rule: masked trajectories count nowhere here. Non-goals: the decisions
(`dart_train.curation`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from dart_agent.data_client.wire import FamilyRewards
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

IMPORT_PREFIX = "import-"
"""Phases of trajectories of other runs (`dart_train.data_commands.portable`): they are in the experience pool and count in no rate."""
OWN = TrajectoryTable.phase.not_like(f"{IMPORT_PREFIX}%")
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


@dataclass(frozen=True, slots=True)
class RewardedTrajectory:
    """A trajectory with a reward, without its steps.

    Attributes:
        rollout_id: Its rollout.
        group_id: Its group.
        reward: The reward.
        n_steps: Number of steps.
        version_min: Oldest policy version that wrote in it; None: not known.
        version_max: Newest one.
        stored_s: When it was stored, which is when it ended, in seconds since the epoch.
    """

    rollout_id: str
    group_id: str
    reward: float
    n_steps: int
    version_min: int | None
    version_max: int | None
    stored_s: float


def read_spans(session: Session, rollout_ids: Collection[str]) -> dict[str, list[StoredSpans]]:
    """Read the version spans of trajectories.

    Args:
        session: The transaction.
        rollout_ids: The rollouts.

    Returns:
        By rollout, one value per step, in order; a rollout without steps is left out.
    """
    query = select(
        StepTable.rollout_id, StepTable.index, StepTable.version_spans, func.length(StepTable.logprobs) > 0
    ).where(StepTable.rollout_id.in_(rollout_ids))
    found: defaultdict[str, list[StoredSpans]] = defaultdict(list)
    for rollout_id, index, spans, has_logprobs in session.execute(
        query.order_by(StepTable.rollout_id, StepTable.index)
    ):
        found[rollout_id].append(StoredSpans(index, tuple((each[0], each[1], each[2]) for each in spans), has_logprobs))
    return found


def latest_outcomes(
    session: Session, per_task: int, per_family: int, success_at: float
) -> list[tuple[str, float, int]]:
    """Read how the latest training rollouts of each task and of each family went.

    Args:
        session: The transaction.
        per_task: Rollouts per task, and successes per task, at most.
        per_family: Rollouts per family, and successes per family, at most.
        success_at: Least reward of a success.

    Returns:
        Task id, reward and number of steps of each, oldest first.
    """
    table, succeeded = TrajectoryTable, TrajectoryTable.reward >= success_at
    newest = table.seq.desc()
    ranked = (
        select(
            *(table.seq, table.task_id, table.reward, table.n_steps),
            func.row_number().over(partition_by=table.task_id, order_by=newest).label("of_task"),
            func.row_number().over(partition_by=table.family, order_by=newest).label("of_family"),
            func.row_number().over(partition_by=[table.task_id, succeeded], order_by=newest).label("alike_of_task"),
            func.row_number().over(partition_by=[table.family, succeeded], order_by=newest).label("alike_of_family"),
        )
        .where(table.purpose == Purpose.TRAIN.value, table.reward.is_not(None), OWN)
        .subquery()
    )
    columns = ranked.c
    alike = or_(columns.alike_of_task <= per_task, columns.alike_of_family <= per_family)
    kept = or_(columns.of_task <= per_task, columns.of_family <= per_family, and_(columns.reward >= success_at, alike))
    query = select(columns.task_id, columns.reward, columns.n_steps).where(kept).order_by(columns.seq)
    return [(task_id, reward, steps) for task_id, reward, steps in session.execute(query)]


def groups_opened(session: Session) -> dict[str, dict[str, int]]:
    """Count the groups that the run's training phases have opened.

    Args:
        session: The transaction.

    Returns:
        Number of groups by phase and task id; a phase without groups is left out.
    """
    query = (
        select(GroupTable.phase, GroupTable.task_id, func.count())
        .where(GroupTable.purpose == Purpose.TRAIN.value, GroupTable.phase.not_like(f"{IMPORT_PREFIX}%"))
        .group_by(GroupTable.phase, GroupTable.task_id)
    )
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for phase, task_id, count in session.execute(query):
        found[phase][task_id] = count
    return found


def latest_durations(session: Session, limit: int) -> list[float]:
    """Read how long the latest training episodes took.

    Args:
        session: The transaction.
        limit: How many at most.

    Returns:
        Seconds, newest first.
    """
    query = select(TrajectoryTable.duration_s).where(TrajectoryTable.purpose == Purpose.TRAIN.value, OWN)
    return list(session.scalars(query.order_by(TrajectoryTable.seq.desc()).limit(limit)))


def stored_rewards(session: Session, after_s: float | None, until_s: float) -> dict[str, FamilyRewards]:
    """Sum up the rewards of this run's training rollouts that were stored in an interval of time.

    Args:
        session: The transaction.
        after_s: Its start, which is not in it; None: the beginning of the run.
        until_s: Its end, which is in it.

    Returns:
        The sums by family.
    """
    table = TrajectoryTable
    query = (
        select(table.family, func.count(), func.sum(table.reward))
        .where(table.purpose == Purpose.TRAIN.value, table.reward.is_not(None), OWN, table.stored_s <= until_s)
        .group_by(table.family)
    )
    if after_s is not None:
        query = query.where(table.stored_s > after_s)
    return {family: FamilyRewards(rollouts=count, reward_sum=total) for family, count, total in session.execute(query)}


def latest_updates(session: Session) -> list[float]:
    """Read when the latest train steps were reported.

    Args:
        session: The transaction.

    Returns:
        Seconds since the epoch, newest first.
    """
    query = select(BatchTable.done_s).where(BatchTable.state == "done").order_by(BatchTable.seq.desc())
    return [done_s for done_s in session.scalars(query.limit(UPDATE_WINDOW)) if done_s is not None]


_REWARDED = select(
    TrajectoryTable.rollout_id,
    TrajectoryTable.group_id,
    TrajectoryTable.reward,
    TrajectoryTable.n_steps,
    TrajectoryTable.version_min,
    TrajectoryTable.version_max,
    TrajectoryTable.stored_s,
).where(TrajectoryTable.reward.is_not(None))


def rewarded_trajectories(session: Session, group_ids: Collection[str]) -> dict[str, list[RewardedTrajectory]]:
    """Read the trajectories of groups that have a reward.

    Args:
        session: The transaction.
        group_ids: The groups.

    Returns:
        By group, oldest first; a group without such a trajectory is left out.
    """
    query = _REWARDED.where(TrajectoryTable.group_id.in_(group_ids)).order_by(TrajectoryTable.seq)
    found: defaultdict[str, list[RewardedTrajectory]] = defaultdict(list)
    for row in session.execute(query):
        found[row.group_id].append(_rewarded(row))
    return found


def trajectories_of(session: Session, rollout_ids: Collection[str]) -> dict[str, RewardedTrajectory]:
    """Read trajectories that have a reward.

    Args:
        session: The transaction.
        rollout_ids: The rollouts.

    Returns:
        By rollout; one without a reward is left out.
    """
    query = _REWARDED.where(TrajectoryTable.rollout_id.in_(rollout_ids))
    return {row.rollout_id: _rewarded(row) for row in session.execute(query)}


def _rewarded(row: Any) -> RewardedTrajectory:
    """A row of `_REWARDED`, whose reward is there."""
    return RewardedTrajectory(*row)


def tasks_of_groups(session: Session, group_ids: Collection[str]) -> dict[str, str]:
    """Read the tasks of groups.

    Args:
        session: The transaction.
        group_ids: The groups.

    Returns:
        Task ids by group.
    """
    query = select(GroupTable.group_id, GroupTable.task_id).where(GroupTable.group_id.in_(group_ids))
    return {group_id: task_id for group_id, task_id in session.execute(query)}


def version_identities(session: Session) -> list[VersionIdentity]:
    """Read the identity of every registered version.

    Args:
        session: The transaction.

    Returns:
        The identities, by number.
    """
    query = select(VersionTable.version, VersionTable.digest, VersionTable.parent).order_by(VersionTable.version)
    return [VersionIdentity(*row) for row in session.execute(query)]


def quarantined_steps(session: Session, rollout_ids: Collection[str]) -> set[tuple[str, int]]:
    """Read which steps of rollouts are quarantined.

    Args:
        session: The transaction.
        rollout_ids: The rollouts.

    Returns:
        Rollout and index of each.
    """
    query = select(QuarantinedStepTable.rollout_id, QuarantinedStepTable.index).where(
        QuarantinedStepTable.rollout_id.in_(rollout_ids)
    )
    return {(rollout_id, index) for rollout_id, index in session.execute(query)}
