"""Running counts of what is stored, so that looking at the numbers costs nothing.

Role: episodes by family and version, masked episodes with their causes, groups that ended, batches with their rows, most episodes at once.
Rule: read from the database once (`read_tallies`), then changed with every stored trajectory, command and batch; thrown away together with
the scheduler's state when a transaction fails. Non-goals: the state of work (`dart_train.scheduling.state`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from dart_agent.data_client.payloads import TrajectoryPayload
from dart_agent.data_client.wire import Batch, EpisodeCounts, MaskedEpisodes
from dart_agent.types import Purpose
from dart_envs.types import EndReason
from dart_train.data_manager.catalog import task_family
from dart_train.data_manager.pool import POOL, count_uses
from dart_train.data_manager.queries import IMPORT_PREFIX, OWN
from dart_train.data_manager.store.models import BatchMemberTable, BatchTable, GroupTable, TrajectoryTable
from dart_train.scheduling.commands import CloseGroup, Command, OpenGroup, UseGroups

UNDER_WAY = ("open", "ready", "issued")
"""States of groups that have not ended."""


@dataclass(slots=True)
class MaskedCause:
    """Masked episodes of a family that ended for one reason."""

    episodes: int = 0
    first_version: int | None = None
    last_version: int | None = None


class Overlap:
    """The most intervals that contain one moment; an interval that ends when another starts does not overlap it."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, int]] = []
        self._running = 0
        self._most = 0

    def add(self, start_s: float, end_s: float) -> None:
        """Add an interval."""
        self._changes += ((start_s, 1), (end_s, -1))

    def most(self, settled_s: float) -> int:
        """Compute the greatest overlap so far.

        Args:
            settled_s: No interval that is added later starts before this time; what is older is counted and forgotten.

        Returns:
            Number of intervals.
        """
        self._changes.sort()
        running, most, settled = self._running, self._most, 0
        for place, (at_s, change) in enumerate(self._changes, start=1):
            running += change
            most = max(most, running)
            if at_s < settled_s:
                self._running, settled = running, place
        self._most = most
        del self._changes[:settled]
        return most


@dataclass(slots=True)
class Tallies:
    """Counts of stored episodes and batches.

    Attributes:
        trajectories: Stored trajectories.
        steps: Their steps.
        rewards: Number and sum of rewards by phase and family.
        by_family: Episodes and masked ones that are no demonstrations, by family.
        by_version: The same by newest version that wrote in them.
        masked: Masked episodes by family and end reason.
        last_masked_cause: The newest cause of masking.
        overlap: Episodes at the same moment.
        rows_used: Steps of finished batches that were trained on.
        rows_excluded: Steps of finished batches that were withheld, by reason.
        closed_groups: Groups by the state in which they ended; those under way are in the scheduler's state.
        dropped_groups: Groups that cannot train, by reason.
        training_groups: Training groups that were opened.
        sizes: Sum of their sizes.
        max_steps: Sum of their step limits.
        batches: Batches by state.
        pool_uses: Groups of the batches that the trainer has or has finished that a stored success completed.
        issued_pool_uses: Those of the batch that it has.
    """

    trajectories: int = 0
    steps: int = 0
    rewards: dict[str, dict[str, tuple[int, float]]] = field(default_factory=lambda: defaultdict(dict))
    by_family: dict[str, EpisodeCounts] = field(default_factory=dict)
    by_version: dict[int, EpisodeCounts] = field(default_factory=dict)
    masked: dict[tuple[str, str], MaskedCause] = field(default_factory=dict)
    last_masked_cause: str | None = None
    overlap: Overlap = field(default_factory=Overlap)
    rows_used: int = 0
    rows_excluded: Counter[str] = field(default_factory=Counter)
    closed_groups: Counter[str] = field(default_factory=Counter)
    dropped_groups: Counter[str] = field(default_factory=Counter)
    training_groups: int = 0
    sizes: int = 0
    max_steps: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    pool_uses: int = 0
    issued_pool_uses: int = 0

    def add_command(self, command: Command) -> None:
        """Count what a command does to a group.

        Args:
            command: The command; most change nothing here.
        """
        if isinstance(command, OpenGroup):
            if command.purpose is Purpose.TRAIN:
                self.training_groups += 1
                self.sizes += command.target
                self.max_steps += command.max_steps
        elif isinstance(command, CloseGroup):
            if command.state != "ready":
                self.closed_groups[command.state] += 1
            if command.reason is not None:
                self.dropped_groups[command.reason] += 1
        elif isinstance(command, UseGroups):
            self.closed_groups["used"] += len(command.group_ids)

    def add_batch(self, batch: Batch) -> None:
        """Count a batch that was issued.

        Args:
            batch: The batch.
        """
        self.batches["issued"] += 1
        self.issued_pool_uses = sum(any(member.source == POOL for member in group.members) for group in batch.groups)
        self.pool_uses += self.issued_pool_uses

    def end_batch(self, state: str) -> None:
        """Count how the batch that the trainer had ended.

        Args:
            state: Its new state.
        """
        self.batches["issued"] -= 1
        self.batches[state] += 1
        if state != "done":
            self.pool_uses -= self.issued_pool_uses
        self.issued_pool_uses = 0

    def add_trajectory(self, row: TrajectoryPayload, version_max: int | None) -> None:
        """Count a trajectory that was stored.

        Args:
            row: The trajectory.
            version_max: Newest version that wrote in it.
        """
        self._add(
            phase=row.phase,
            family=task_family(row.task_id),
            demonstrates=row.purpose is Purpose.DEMO,
            reward=row.reward,
            end=row.end.value,
            cause=row.cause,
            n_steps=row.n_steps,
            version_max=version_max,
            started_at_s=row.started_at_s,
            duration_s=row.duration_s,
        )

    def masked_episodes(self) -> list[MaskedEpisodes]:
        """Return the masked episodes that are no demonstrations, by family and end reason."""
        return [
            MaskedEpisodes(
                family=family,
                end=EndReason(end),
                episodes=cause.episodes,
                first_version=cause.first_version,
                last_version=cause.last_version,
            )
            for (family, end), cause in sorted(self.masked.items())
        ]

    def add_rows(self, reasons: Iterable[tuple[str | None, int]]) -> None:
        """Count steps of batches.

        Args:
            reasons: Why steps were withheld, None where they were used, and how many there are.
        """
        for reason, count in reasons:
            if reason is None:
                self.rows_used += count
            else:
                self.rows_excluded[reason] += count

    def _add(
        self,
        *,
        phase: str,
        family: str,
        demonstrates: bool,
        reward: float | None,
        end: str,
        cause: str | None,
        n_steps: int,
        version_max: int | None,
        started_at_s: float,
        duration_s: float,
    ) -> None:
        self.trajectories += 1
        self.steps += n_steps
        self.overlap.add(started_at_s, started_at_s + duration_s)
        if reward is not None:
            count, total = self.rewards[phase].get(family, (0, 0.0))
            self.rewards[phase][family] = (count + 1, total + reward)
        if demonstrates:
            return
        is_masked = reward is None
        self.by_family[family] = _counted(self.by_family.get(family), is_masked)
        if version_max is not None:
            self.by_version[version_max] = _counted(self.by_version.get(version_max), is_masked)
        if is_masked:
            self.last_masked_cause = f"{end} ({cause})"
            found = self.masked.setdefault((family, end), MaskedCause())
            found.episodes += 1
            if version_max is not None:
                first, last = found.first_version, found.last_version
                found.first_version = version_max if first is None else min(first, version_max)
                found.last_version = version_max if last is None else max(last, version_max)


def read_tallies(session: Session) -> Tallies:
    """Count what is stored.

    Args:
        session: The transaction.

    Returns:
        The counts.
    """
    tallies = Tallies()
    columns = (
        TrajectoryTable.phase,
        TrajectoryTable.family,
        TrajectoryTable.purpose,
        TrajectoryTable.reward,
        TrajectoryTable.end,
        TrajectoryTable.cause,
        TrajectoryTable.n_steps,
        TrajectoryTable.version_max,
        TrajectoryTable.started_at_s,
        TrajectoryTable.duration_s,
    )
    for phase, family, purpose, reward, end, cause, n_steps, version_max, started_at_s, duration_s in session.execute(
        select(*columns).where(OWN).order_by(TrajectoryTable.seq)
    ):
        tallies._add(
            phase=phase,
            family=family,
            demonstrates=purpose == Purpose.DEMO.value,
            reward=reward,
            end=end,
            cause=cause,
            n_steps=n_steps,
            version_max=version_max,
            started_at_s=started_at_s,
            duration_s=duration_s,
        )
    reasons = (
        select(BatchMemberTable.reason, func.count())
        .join(BatchTable, BatchTable.batch_id == BatchMemberTable.batch_id)
        .where(BatchTable.state == "done")
        .group_by(BatchMemberTable.reason)
    )
    tallies.add_rows((reason, count) for reason, count in session.execute(reasons))
    _read_groups(session, tallies)
    tallies.batches.update(_counts(session, BatchTable.state))
    tallies.issued_pool_uses = count_uses(session, ("issued",))
    tallies.pool_uses = tallies.issued_pool_uses + count_uses(session, ("done",))
    return tallies


def _read_groups(session: Session, tallies: Tallies) -> None:
    states = _counts(session, GroupTable.state)
    tallies.closed_groups.update({state: count for state, count in states.items() if state not in UNDER_WAY})
    tallies.dropped_groups.update(_counts(session, GroupTable.reason))
    trained = select(func.count(), func.sum(GroupTable.size), func.sum(GroupTable.max_steps)).where(
        GroupTable.purpose == Purpose.TRAIN.value, GroupTable.phase.not_like(f"{IMPORT_PREFIX}%")
    )
    count, sizes, max_steps = session.execute(trained).one()
    tallies.training_groups, tallies.sizes, tallies.max_steps = count, int(sizes or 0), int(max_steps or 0)


def _counts(session: Session, column: InstrumentedAttribute[str] | InstrumentedAttribute[str | None]) -> dict[str, int]:
    """Number of rows by value of a column; those without one are left out."""
    query = select(column, func.count()).where(column.is_not(None)).group_by(column)
    return {value: count for value, count in session.execute(query) if value is not None}


def _counted(before: EpisodeCounts | None, is_masked: bool) -> EpisodeCounts:
    episodes, masked = (0, 0) if before is None else (before.episodes, before.masked)
    return EpisodeCounts(episodes=episodes + 1, masked=masked + is_masked)
