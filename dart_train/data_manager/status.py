"""The state of the data manager: phases, results, numbers.

Role: read-only queries that build the replies of `dart_agent.data_client.wire`. Non-goals: decisions.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from dart_agent.data_client.wire import (
    DataManagerStats,
    EpisodeCounts,
    EpisodeResult,
    FamilyResult,
    MaskedEpisodes,
    PhaseStatus,
)
from dart_agent.types import Purpose
from dart_envs.types import EndReason
from dart_train.data_manager import queries
from dart_train.data_manager.store import work
from dart_train.data_manager.store.models import (
    BatchMemberTable,
    BatchTable,
    GroupTable,
    PhaseTable,
    RolloutTable,
    StepTable,
    TrajectoryTable,
    VersionTable,
)

PHASE_STATES = ("active", "stopped", "done")


def phase_status(session: Session, phase: PhaseTable) -> PhaseStatus:
    """Read the progress of a phase.

    Args:
        session: The transaction.
        phase: The phase.

    Returns:
        Its progress.
    """
    spec = work.phase_spec(phase)
    counted = (
        select(RolloutTable.state, func.count()).where(RolloutTable.phase == phase.name).group_by(RolloutTable.state)
    )
    states = {state: count for state, count in session.execute(counted)}
    tallied = (
        select(TrajectoryTable.family, func.count(), func.avg(TrajectoryTable.reward))
        .where(TrajectoryTable.phase == phase.name, TrajectoryTable.reward.is_not(None))
        .group_by(TrajectoryTable.family)
    )
    families = {
        family: FamilyResult(episodes=count, mean_reward=mean) for family, count, mean in session.execute(tallied)
    }
    episodes = sum(tally.episodes for tally in families.values())
    rewards = sum(tally.episodes * tally.mean_reward for tally in families.values())
    return PhaseStatus(
        name=phase.name,
        purpose=spec.purpose,
        state=next(state for state in PHASE_STATES if state == phase.state),
        total=None if spec.endless else phase.n_tasks * spec.rollouts_per_task,
        done=states.get("done", 0),
        failed=states.get("failed", 0),
        masked=states.get("masked", 0),
        in_flight=states.get("assigned", 0),
        queued=states.get("queued", 0),
        mean_reward=rewards / episodes if episodes else None,
        families=families,
    )


def results(session: Session, phase: str) -> list[EpisodeResult]:
    """Read the rewards of a phase.

    Args:
        session: The transaction.
        phase: Name of the phase.

    Returns:
        Its episodes that have a reward, ordered by task and repeat.
    """
    query = (
        select(RolloutTable.repeat, TrajectoryTable)
        .join(TrajectoryTable, TrajectoryTable.rollout_id == RolloutTable.rollout_id)
        .where(RolloutTable.phase == phase, TrajectoryTable.reward.is_not(None))
        .order_by(RolloutTable.task_id, RolloutTable.repeat)
    )
    return [
        EpisodeResult(
            task_id=row.task_id,
            family=row.family,
            repeat=repeat,
            rollout_id=row.rollout_id,
            reward=row.reward or 0.0,
            end=EndReason(row.end),
            steps=row.n_steps,
            duration_s=row.duration_s,
        )
        for repeat, row in session.execute(query)
    ]


def training(session: Session) -> bool:
    """Say whether a training batch may still come.

    Args:
        session: The transaction.

    Returns:
        True while a training phase is active, a training rollout is unfinished, or a batch is issued.
    """
    active = select(func.count()).select_from(PhaseTable)
    active = active.where(PhaseTable.purpose == Purpose.TRAIN.value, PhaseTable.state == "active")
    running = select(func.count()).select_from(RolloutTable)
    running = running.where(RolloutTable.purpose == Purpose.TRAIN.value, RolloutTable.state.in_(work.UNFINISHED_STATES))
    issued = select(func.count()).select_from(BatchTable).where(BatchTable.state == "issued")
    return any(session.scalar(query) for query in (active, running, issued))


def stats(session: Session, window: int) -> DataManagerStats:
    """Read the numbers of the data manager.

    Args:
        session: The transaction.
        window: Latest training rollouts of a family from which its success rate is computed.

    Returns:
        The numbers.
    """
    families = list(session.scalars(select(TrajectoryTable.family).distinct()))
    by_family = _episode_counts_by(session, TrajectoryTable.family)
    used = select(func.count()).select_from(BatchMemberTable).where(BatchMemberTable.reason.is_(None))
    return DataManagerStats(
        trajectories=_count(session, TrajectoryTable),
        steps=_count(session, StepTable),
        episode_counts=EpisodeCounts(
            episodes=sum(tally.episodes for tally in by_family.values()),
            masked=sum(tally.masked for tally in by_family.values()),
        ),
        episode_counts_by_version=_episode_counts_by(session, TrajectoryTable.version_max),
        episode_counts_by_family=by_family,
        masked_episodes=_masked_episodes(session),
        last_masked_cause=_last_masked_cause(session),
        max_concurrent_episodes=_max_concurrent_episodes(session),
        groups=_tally(session, GroupTable.state),
        dropped_groups=_tally(session, GroupTable.reason),
        rollouts=_tally(session, RolloutTable.state),
        batches=_tally(session, BatchTable.state),
        rows_used=session.scalar(used) or 0,
        rows_excluded=_tally(session, BatchMemberTable.reason),
        latest_version=session.scalar(select(func.max(VersionTable.version))),
        success_rate=queries.success_rates(session, families, window),
    )


def _episode_counts_by(session: Session, key: Any) -> dict[Any, EpisodeCounts]:
    """Episodes that are no demonstrations, by a column; those where it is null are left out."""
    masked = func.sum(case((TrajectoryTable.reward.is_(None), 1), else_=0))
    query = select(key, func.count(), masked).where(TrajectoryTable.purpose != Purpose.DEMO.value).group_by(key)
    return {
        value: EpisodeCounts(episodes=episodes, masked=hit)
        for value, episodes, hit in session.execute(query)
        if value is not None
    }


def _masked_episodes(session: Session) -> list[MaskedEpisodes]:
    """Masked episodes that are no demonstrations, by family and end reason."""
    version = TrajectoryTable.version_max
    query = (
        select(TrajectoryTable.family, TrajectoryTable.end, func.count(), func.min(version), func.max(version))
        .where(TrajectoryTable.purpose != Purpose.DEMO.value, TrajectoryTable.reward.is_(None))
        .group_by(TrajectoryTable.family, TrajectoryTable.end)
        .order_by(TrajectoryTable.family, TrajectoryTable.end)
    )
    return [
        MaskedEpisodes(family=family, end=EndReason(end), episodes=count, first_version=first, last_version=last)
        for family, end, count, first, last in session.execute(query)
    ]


def _last_masked_cause(session: Session) -> str | None:
    query = select(TrajectoryTable.end, TrajectoryTable.cause).where(
        TrajectoryTable.purpose != Purpose.DEMO.value, TrajectoryTable.reward.is_(None)
    )
    newest = session.execute(query.order_by(TrajectoryTable.seq.desc()).limit(1)).first()
    return None if newest is None else f"{newest.end} ({newest.cause})"


def _max_concurrent_episodes(session: Session) -> int:
    """An episode that ends when another starts does not overlap it."""
    query = select(TrajectoryTable.started_at_s, TrajectoryTable.duration_s)
    changes = [
        change
        for started_at_s, duration_s in session.execute(query)
        for change in ((started_at_s, 1), (started_at_s + duration_s, -1))
    ]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def _count(session: Session, table: type[TrajectoryTable] | type[StepTable]) -> int:
    return session.scalar(select(func.count()).select_from(table)) or 0


def _tally(session: Session, column: object) -> dict[str, int]:
    values: Counter[str] = Counter()
    for value, count in session.execute(select(column, func.count()).group_by(column)):  # type: ignore[call-overload]
        if value is not None:
            values[value] = count
    return dict(values)
