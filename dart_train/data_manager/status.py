"""The state of the data manager: phases, results, numbers.

Role: read-only queries that build the replies of `dart_agent.data_client.wire`. Non-goals: decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dart_agent.data_client.wire import (
    DataManagerStats,
    EpisodeCounts,
    EpisodeResult,
    FamilyResult,
    PhaseStatus,
)
from dart_agent.types import RewardKind
from dart_envs.types import EndReason
from dart_train.data_manager.store.models import RolloutTable, TrajectoryTable, VersionTable
from dart_train.data_manager.tallies import Tallies
from dart_train.report.pass_at_k import mean_pass_at_k
from dart_train.scheduling.entities import Phase
from dart_train.scheduling.state import SchedulerState

PASS_AT = (1, 2, 4, 8, 16, 32)
"""Numbers of rollouts for which pass@k is told."""

PHASE_STATES = ("active", "stopped", "done")


def phase_status(phase: Phase, rewards: Mapping[str, tuple[int, float]]) -> PhaseStatus:
    """Describe the progress of a phase.

    Args:
        phase: The phase.
        rewards: Number and sum of its rewards by family.

    Returns:
        Its progress.
    """
    plan, counts = phase.plan, phase.counts
    episodes = sum(count for count, _ in rewards.values())
    return PhaseStatus(
        name=plan.name,
        purpose=plan.purpose,
        state=next(state for state in PHASE_STATES if state == phase.state),
        total=None if plan.endless else len(plan.task_ids) * plan.rollouts_per_task,
        done=counts["done"],
        failed=counts["failed"],
        masked=counts["masked"],
        in_flight=counts["assigned"],
        queued=counts["queued"],
        parked=counts["parked"],
        mean_reward=sum(total for _, total in rewards.values()) / episodes if episodes else None,
        families={
            family: FamilyResult(episodes=count, mean_reward=total / count)
            for family, (count, total) in sorted(rewards.items())
        },
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
            version_min=row.version_min,
            version_max=row.version_max,
            reward_source=RewardKind(row.reward_source),
        )
        for repeat, row in session.execute(query)
    ]


def stats(session: Session, state: SchedulerState, tallies: Tallies, window: int) -> DataManagerStats:
    """Read the numbers of the data manager.

    Args:
        session: The transaction.
        state: State of the scheduler.
        tallies: Counts of what is stored.
        window: Latest training rollouts of a family from which its success rate is computed.

    Returns:
        The numbers.
    """
    rollouts: Counter[str] = Counter()
    for phase in state.phases.values():
        rollouts.update(phase.counts)
    running = [rollout.assigned_s for rollout in state.rollouts.values() if rollout.state == "assigned"]
    success_at = state.settings.curation.success_at
    latest = [history.rewards for history in state.outcomes.tasks.values()]
    rates = {family: state.outcomes.families[family].success_rate(window) for family in tallies.by_family}
    return DataManagerStats(
        trajectories=tallies.trajectories,
        steps=tallies.steps,
        episode_counts=EpisodeCounts(
            episodes=sum(tally.episodes for tally in tallies.by_family.values()),
            masked=sum(tally.masked for tally in tallies.by_family.values()),
        ),
        episode_counts_by_version=tallies.by_version,
        episode_counts_by_family=tallies.by_family,
        masked_episodes=tallies.masked_episodes(),
        last_masked_cause=tallies.last_masked_cause,
        max_concurrent_episodes=tallies.overlap.most(min(running, default=inf)),
        groups=dict(+(tallies.closed_groups + Counter(group.state for group in state.groups.values()))),
        dropped_groups=dict(+tallies.dropped_groups),
        rollouts=dict(+rollouts),
        batches=dict(+tallies.batches),
        rows_used=tallies.rows_used,
        rows_excluded=dict(tallies.rows_excluded),
        latest_version=session.scalar(select(func.max(VersionTable.version))),
        success_rate={family: rate for family, rate in rates.items() if rate is not None},
        curation=_curation(tallies),
        pass_at_k={k: mean for k in PASS_AT if (mean := mean_pass_at_k(latest, k, success_at)) is not None},
    )


def _curation(tallies: Tallies) -> dict[str, float]:
    """What the parts of the curation did."""
    found = {"pool_uses": float(tallies.pool_uses)}
    if tallies.training_groups:
        found["group_size_mean"] = tallies.sizes / tallies.training_groups
        found["max_steps_mean"] = tallies.max_steps / tallies.training_groups
    return found
