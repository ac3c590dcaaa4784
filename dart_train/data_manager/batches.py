"""The batch builder: which steps and tokens of the groups that were chosen the trainer gets next.

Role: forms a batch at a trainer version, by reference to stored steps, and records for every step why it was used or not. Rule: the
staleness gate is applied here and nowhere else; a batch that was issued and not finished is read again unchanged, unless the weights that
it was formed for are lost; a step that made a batch fail is quarantined. Non-goals: when a batch is formed and of which groups
(`dart_train.scheduling.batching`), advantages and tensors (the trainer's).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from sqlalchemy import Table, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from dart_agent.data_client.image_store import BlobStorage
from dart_agent.data_client.wire import (
    Batch,
    BatchFailure,
    BatchGroup,
    BatchMember,
    BatchReport,
    BatchRow,
    FamilyRewards,
)
from dart_agent.errors import StoreError
from dart_train.curation.group_filter import uninformative_reason
from dart_train.curation.lineage import lost_versions
from dart_train.curation.staleness import token_staleness, trainable_ranges, withheld_reason
from dart_train.data_manager import queries
from dart_train.data_manager.catalog import task_family
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.pool import POOL, choose_success
from dart_train.data_manager.queries import RewardedTrajectory, StoredSpans
from dart_train.data_manager.store import work
from dart_train.data_manager.store.database import connection_of
from dart_train.data_manager.store.models import (
    BatchMemberTable,
    BatchTable,
    GroupTable,
    QuarantinedStepTable,
)
from dart_train.data_manager.store.steps import read_packed_steps
from dart_train.data_manager.store.trajectories import TrajectoryStore

Source = Literal["fresh", "pool"]
DISPLACED = "displaced"
"""Source of a member whose place a pooled success has: it is recorded, and it is in neither the baseline nor the rows."""
DISPLACED_REASON = "displaced_by_pool"
QUARANTINED = "quarantined"
NO_LOGPROBS = "no_logprobs"
NO_STEPS = "no_steps"

NO_STEP = -1
"""Index that stands for a member without steps: it counts in the baseline and has nothing to train on."""


_MEMBER_COLUMNS: Table = BatchMemberTable.__table__  # type: ignore[assignment]  # a declarative table is a Table
_ADD_MEMBER = insert(_MEMBER_COLUMNS)
_REASONS = select(
    _MEMBER_COLUMNS.c.group_id,
    _MEMBER_COLUMNS.c.rollout_id,
    _MEMBER_COLUMNS.c.index,
    _MEMBER_COLUMNS.c.reason,
    _MEMBER_COLUMNS.c.trainable,
).where(_MEMBER_COLUMNS.c.batch_id == bindparam("key"))
_CHANGE_MEMBER = update(_MEMBER_COLUMNS).where(
    _MEMBER_COLUMNS.c.batch_id == bindparam("key"),
    _MEMBER_COLUMNS.c.group_id == bindparam("in_group"),
    _MEMBER_COLUMNS.c.rollout_id == bindparam("of_rollout"),
    _MEMBER_COLUMNS.c.index == bindparam("at"),
)
_WITHHOLD_MEMBER = _CHANGE_MEMBER.values(reason=QUARANTINED)
_ADD_QUARANTINED = insert(QuarantinedStepTable)
_USE_MEMBER = _CHANGE_MEMBER.values(
    reason=bindparam("new_reason"),
    advantage=bindparam("new_advantage"),
    entropy=bindparam("new_entropy"),
    trainable=bindparam("new_trainable", type_=_MEMBER_COLUMNS.c.trainable.type),
)
_GROUPS: Table = GroupTable.__table__  # type: ignore[assignment]  # a declarative table is a Table
_RELEASE_GROUPS = (
    update(_GROUPS)
    .where(
        _GROUPS.c.group_id.in_(select(_MEMBER_COLUMNS.c.group_id).where(_MEMBER_COLUMNS.c.batch_id == bindparam("key")))
    )
    .values(state="ready")
)
_MEMBERS = (
    select(_MEMBER_COLUMNS)
    .where(_MEMBER_COLUMNS.c.batch_id == bindparam("key"))
    .order_by(_MEMBER_COLUMNS.c.group_id, _MEMBER_COLUMNS.c.rollout_id, _MEMBER_COLUMNS.c.index)
)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A group that can train: its members, whom a pooled success displaced, the token ranges of every step, and why a step has none."""

    group_id: str
    members: tuple[tuple[RewardedTrajectory, Source], ...]
    displaced: RewardedTrajectory | None
    trainable: dict[tuple[str, int], list[tuple[int, int]]]
    reasons: dict[tuple[str, int], str]

    @property
    def pooled(self) -> set[str]:
        """Rollouts that complete the group."""
        return {row.rollout_id for row, source in self.members if source == POOL}


@dataclass(slots=True)
class _StoredGroups:
    """What is stored of the groups of a batch, read by one query per table.

    Attributes:
        tasks: Task by group.
        members: Trajectories with a reward, by group.
        spans: Who sampled the tokens of each step, by rollout.
        quarantined: Steps that made a batch fail.
    """

    tasks: dict[str, str]
    members: dict[str, list[RewardedTrajectory]]
    spans: dict[str, list[StoredSpans]]
    quarantined: set[tuple[str, int]]

    @classmethod
    def read(cls, session: Session, group_ids: Sequence[str]) -> _StoredGroups:
        """Read the groups."""
        members = queries.rewarded_trajectories(session, group_ids)
        rollout_ids = [row.rollout_id for rows in members.values() for row in rows]
        return cls(
            tasks=queries.tasks_of_groups(session, group_ids),
            members=members,
            spans=queries.read_spans(session, rollout_ids),
            quarantined=queries.quarantined_steps(session, rollout_ids),
        )

    def add(self, session: Session, rollout_id: str) -> RewardedTrajectory:
        """Read a trajectory of another group."""
        self.spans |= queries.read_spans(session, [rollout_id])
        self.quarantined |= queries.quarantined_steps(session, [rollout_id])
        return queries.trajectories_of(session, [rollout_id])[rollout_id]


@dataclass(frozen=True, slots=True)
class _TrainerWeights:
    """What a batch is formed for: the trainer's version, the digest of its weights, and the versions that are none of their ancestors."""

    version: int
    digest: str | None
    lost: frozenset[int]


class BatchBuilder:
    """Forms batches; it holds no state.

    Args:
        store: The trajectory database.
        images: Where images are stored.
        config: The configuration of the data manager.
    """

    def __init__(self, store: TrajectoryStore, images: BlobStorage, config: DataManagerConfig) -> None:
        self._store = store
        self._images = images
        self._config = config

    def repeat(self, session: Session, trainer_digest: str | None) -> Batch | None:
        """Read the unfinished batch, or withdraw it where the weights that it was formed for are lost.

        Args:
            session: The transaction.
            trainer_digest: Digest of the trainer's weights; None: not known.

        Returns:
            The batch, None where it was withdrawn.
        """
        query = select(BatchTable).where(BatchTable.state == "issued").order_by(BatchTable.seq)
        issued = session.scalars(query).one()
        if trainer_digest == issued.trainer_digest:
            return self._read(session, issued)
        if not lost_versions(queries.version_identities(session), trainer_digest):
            return self._read(session, issued)
        issued.state, issued.cause = "withdrawn", "the weights that it was formed for are lost"
        self._release(session, issued)
        self._store.record_event(session, "batch_withdrawn", batch_id=issued.batch_id, cause=issued.cause)
        return None

    def issue(
        self, session: Session, trainer_version: int, trainer_digest: str | None, group_ids: Sequence[str]
    ) -> tuple[Batch | None, dict[str, str]]:
        """Form a batch of groups.

        Args:
            session: The transaction.
            trainer_version: Present version of the trainer.
            trainer_digest: Digest of its weights; None: not known.
            group_ids: The groups.

        Returns:
            The batch, and nothing else; or None and, by group id, why a group cannot train.
        """
        lost = lost_versions(queries.version_identities(session), trainer_digest)
        weights = _TrainerWeights(trainer_version, trainer_digest, lost)
        candidates: list[_Candidate] = []
        refused: dict[str, str] = {}
        groups = _StoredGroups.read(session, group_ids)
        for group_id in group_ids:
            pooled = {rollout_id for each in candidates for rollout_id in each.pooled}
            candidate = self._as_candidate(session, groups, group_id, weights, pooled)
            if isinstance(candidate, _Candidate):
                candidates.append(candidate)
            else:
                refused[group_id] = candidate
        return (None, refused) if refused else (self._issue(session, weights, candidates), {})

    def done(self, session: Session, batch_id: str, report: BatchReport) -> Counter[str | None] | None:
        """Record that a batch became policy `report.version`.

        Args:
            session: The transaction.
            batch_id: The batch.
            report: The report of the trainer.

        Returns:
            How many of its steps were used (None) or withheld, by reason; None where the batch was recorded before.

        Raises:
            StoreError: The batch does not exist, or is not the trainer's any more.
        """
        batch = self._find(session, batch_id)
        if batch.state == "done":
            return None
        if batch.state != "issued":
            raise StoreError(f"batch {batch_id} was {batch.state}: it is not the trainer's any more")
        batch.state, batch.version, batch.done_s = "done", report.version, self._store.now()
        batch.metrics = dict(report.metrics)
        uses = {(use.group_id, use.rollout_id, use.index): use for use in report.steps}
        counts: Counter[str | None] = Counter()
        trained: list[dict[str, Any]] = []
        connection = connection_of(session)
        for group_id, rollout_id, index, withheld, issued in connection.execute(_REASONS, {"key": batch_id}):
            use = uses.get((group_id, rollout_id, index))
            if withheld is None and use is not None:
                trained.append(
                    {
                        "key": batch_id,
                        "in_group": group_id,
                        "of_rollout": rollout_id,
                        "at": index,
                        "new_reason": use.reason,
                        "new_advantage": use.advantage,
                        "new_entropy": use.entropy,
                        "new_trainable": issued if use.trained is None else [list(each) for each in use.trained],
                    }
                )
            counts[use.reason if withheld is None and use is not None else withheld] += 1
        if trained:
            connection.execute(_USE_MEMBER, trained)
        self._store.record_event(session, "batch_done", batch_id=batch_id, version=report.version)
        return counts

    def is_issued(self, session: Session, batch_id: str) -> bool:
        """Say whether the trainer has a batch.

        Args:
            session: The transaction.
            batch_id: The batch.

        Returns:
            False where it was finished, or does not exist.
        """
        return session.scalar(select(BatchTable.state).where(BatchTable.batch_id == batch_id)) == "issued"

    def fail(self, session: Session, batch_id: str, failure: BatchFailure) -> int:
        """Record that a batch cannot be trained on; its culprits are quarantined, and the rest of it may be issued again.

        Args:
            session: The transaction.
            batch_id: The batch.
            failure: The report of the trainer; without culprits the whole batch is quarantined.

        Returns:
            Number of batches that failed since the last one that was trained on.

        Raises:
            StoreError: The batch does not exist, was trained on or withdrawn, or has no such step.
        """
        batch = self._find(session, batch_id)
        if batch.state == "issued":
            rows: Sequence[Any] = connection_of(session).execute(_REASONS, {"key": batch_id}).all()
            members = {(row.rollout_id, row.index) for row in rows}
            culprits = list(dict.fromkeys((culprit.rollout_id, culprit.index) for culprit in failure.culprits))
            for rollout_id, index in culprits:
                if (rollout_id, index) not in members:
                    raise StoreError(f"step {index} of rollout {rollout_id} is not in batch {batch_id}")
            blamed = set(culprits) or {(row.rollout_id, row.index) for row in rows if row.reason is None}
            batch.state, batch.cause, batch.done_s = "failed", failure.cause, self._store.now()
            self._quarantine(session, batch, blamed)
            withheld = [
                {"key": batch_id, "in_group": row.group_id, "of_rollout": row.rollout_id, "at": row.index}
                for row in rows
                if row.reason is None and (row.rollout_id, row.index) in blamed
            ]
            if withheld:
                connection_of(session).execute(_WITHHOLD_MEMBER, withheld)
            self._release(session, batch)
            self._store.record_event(
                session,
                "batch_failed",
                batch_id=batch_id,
                cause=failure.cause,
                quarantined=[list(key) for key in culprits] or "all",
            )
        elif batch.state != "failed":
            told = "was trained on" if batch.state == "done" else f"was {batch.state}"
            raise StoreError(f"batch {batch_id} {told}: it cannot fail any more")
        done = select(func.max(BatchTable.seq)).where(BatchTable.state == "done")
        query = select(func.count()).select_from(BatchTable).where(BatchTable.state == "failed")
        return session.scalar(query.where(BatchTable.seq > (session.scalar(done) or 0))) or 0

    def _quarantine(self, session: Session, batch: BatchTable, keys: Set[tuple[str, int]]) -> None:
        """Set steps aside for ever; a step that is quarantined already keeps its first cause."""
        known = queries.quarantined_steps(session, {rollout_id for rollout_id, _ in keys})
        shared = {"batch_id": batch.batch_id, "cause": batch.cause, "at_s": self._store.now()}
        added = [{"rollout_id": rollout_id, "index": index, **shared} for rollout_id, index in sorted(keys - known)]
        if added:
            connection_of(session).execute(_ADD_QUARANTINED, added)

    def _release(self, session: Session, batch: BatchTable) -> None:
        """Let the groups of a batch that was not trained on be candidates again; those without a step left are dropped as such."""
        # No objects: they would be written after later statements of the transaction, which may drop some of these groups.
        connection_of(session).execute(_RELEASE_GROUPS, {"key": batch.batch_id})

    def _find(self, session: Session, batch_id: str) -> BatchTable:
        batch = session.scalar(select(BatchTable).where(BatchTable.batch_id == batch_id))
        if batch is None:
            raise StoreError(f"there is no batch {batch_id}")
        return batch

    def _as_candidate(
        self, session: Session, groups: _StoredGroups, group_id: str, weights: _TrainerWeights, pooled: set[str]
    ) -> _Candidate | str:
        """The group as a candidate for a batch in which `pooled` complete others, or why it cannot train."""
        members: list[tuple[RewardedTrajectory, Source]] = [(row, "fresh") for row in groups.members.get(group_id, ())]
        displaced: RewardedTrajectory | None = None
        reason = uninformative_reason(
            [row.reward for row, _ in members], self._config.batch.min_members, self._config.curation.success_at
        )
        if reason == "all_failed":
            rescue = choose_success(
                session,
                self._images,
                groups.tasks[group_id],
                self._config.curation.experience_pool,
                success_at=self._config.curation.success_at,
                version=weights.version,
                lost=weights.lost,
                batch_groups=groups.tasks,
                pooled=pooled,
            )
            if rescue is None:
                return reason
            displaced = members[0][0]
            members[0] = (groups.add(session, rescue), "pool")
        elif reason is not None:
            return reason
        trainable: dict[tuple[str, int], list[tuple[int, int]]] = {}
        reasons: dict[tuple[str, int], str] = {}
        for row, source in members:
            for step in groups.spans.get(row.rollout_id, ()):
                key = (row.rollout_id, step.index)
                quarantined = key in groups.quarantined
                trainable[key] = [] if quarantined else self._fresh_ranges(step, weights, source)
                if quarantined:
                    reasons[key] = QUARANTINED
                elif not step.has_logprobs:
                    reasons[key] = NO_LOGPROBS
                elif not trainable[key]:
                    reasons[key] = withheld_reason(step.spans, weights.version, weights.lost)
        if not any(trainable.values()):
            found = set(reasons.values())
            return next((each for each in (QUARANTINED, "lost_future", "stale", NO_LOGPROBS) if each in found), "stale")
        return _Candidate(group_id, tuple(members), displaced, trainable, reasons)

    def _fresh_ranges(self, step: StoredSpans, weights: _TrainerWeights, source: Source) -> list[tuple[int, int]]:
        if not step.has_logprobs:
            return []
        pool_age = self._config.curation.experience_pool.max_age
        any_age = weights.version if pool_age is None else pool_age
        bound = any_age if source == POOL else self._config.batch.max_staleness
        return trainable_ranges(step.spans, weights.version, bound, weights.lost)

    def _issue(self, session: Session, weights: _TrainerWeights, candidates: Sequence[_Candidate]) -> Batch:
        batch = BatchTable(
            batch_id=work.new_id("batch"),
            trainer_version=weights.version,
            trainer_digest=weights.digest,
            state="issued",
            created_s=self._store.now(),
            metrics={},
        )
        session.add(batch)
        session.flush()
        members = []
        for candidate in candidates:
            recorded: list[tuple[RewardedTrajectory, str]] = list(candidate.members)
            if candidate.displaced is not None:
                recorded.append((candidate.displaced, DISPLACED))
            for row, source in recorded:
                for index in range(row.n_steps) if row.n_steps else (NO_STEP,):
                    ranges = candidate.trainable.get((row.rollout_id, index), [])
                    reason = NO_STEPS if index == NO_STEP else candidate.reasons.get((row.rollout_id, index))
                    members.append(
                        {
                            "batch_id": batch.batch_id,
                            "group_id": candidate.group_id,
                            "rollout_id": row.rollout_id,
                            "index": index,
                            "source": source,
                            "trainable": [list(item) for item in ranges],
                            "reason": DISPLACED_REASON if source == DISPLACED else reason,
                        }
                    )
        connection_of(session).execute(_ADD_MEMBER, members)
        self._store.record_event(session, "batch_issued", batch_id=batch.batch_id, groups=len(candidates))
        return self._read(session, batch)

    def _read(self, session: Session, batch: BatchTable) -> Batch:
        groups: dict[str, BatchGroup] = {}
        rows: list[BatchRow] = []
        staleness: list[int] = []
        excluded_steps: Counter[str] = Counter()
        members: Sequence[Any] = connection_of(session).execute(_MEMBERS, {"key": batch.batch_id}).all()
        kept = [member for member in members if member.source != DISPLACED]
        excluded_steps[DISPLACED_REASON] = len(members) - len(kept)
        rollout_ids = {member.rollout_id for member in kept}
        steps = read_packed_steps(session, rollout_ids)
        trajectories = queries.trajectories_of(session, rollout_ids)
        tasks = queries.tasks_of_groups(session, {member.group_id for member in kept})
        for (group_id, rollout_id), of_rollout in groupby(kept, lambda member: (member.group_id, member.rollout_id)):
            group = groups.get(group_id)
            if group is None:
                task_id = tasks[group_id]
                group = BatchGroup(group_id=group_id, task_id=task_id, family=task_family(task_id), members=[])
                groups[group_id] = group
            found = trajectories[rollout_id]
            of_member = list(of_rollout)
            source: Source = "pool" if of_member[0].source == POOL else "fresh"
            group.members.append(
                BatchMember(
                    rollout_id=rollout_id,
                    reward=found.reward,
                    steps=found.n_steps,
                    source=source,
                    ended_s=found.stored_s,
                )
            )
            for member in of_member:
                if member.reason is not None:
                    excluded_steps[member.reason] += 1
                    continue
                step = steps[rollout_id][member.index]
                ranges = [(item[0], item[1]) for item in member.trainable]
                spans = [(span[0], span[1], span[2]) for span in step.version_spans]
                by_token = token_staleness(spans, batch.trainer_version)
                staleness += [by_token[position] for start, end in ranges for position in range(start, end)]
                rows.append(
                    BatchRow(
                        group_id=member.group_id,
                        rollout_id=member.rollout_id,
                        step=step,
                        trainable=ranges,
                    )
                )
        return Batch(
            batch_id=batch.batch_id,
            trainer_version=batch.trainer_version,
            groups=list(groups.values()),
            rows=rows,
            staleness_mean=sum(staleness) / len(staleness) if staleness else 0.0,
            staleness_max=max(staleness, default=0),
            excluded_steps=dict(+excluded_steps),
            stored_rewards=self._stored_rewards(session, batch),
        )

    def _stored_rewards(self, session: Session, batch: BatchTable) -> dict[str, FamilyRewards]:
        earlier = select(func.max(BatchTable.created_s)).where(BatchTable.state == "done", BatchTable.seq < batch.seq)
        return queries.stored_rewards(session, session.scalar(earlier), batch.created_s)
