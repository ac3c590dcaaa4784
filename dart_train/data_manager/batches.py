"""The batch builder: which finished groups, and which of their steps and tokens, the trainer gets next.

Role: forms a batch at a trainer version, by reference to stored steps, and records for every step why it was used or not. Rule: oldest
groups first; the staleness gate is applied here and nowhere else; a batch that was issued and not finished is issued again unchanged;
each group is used at most once. Non-goals: advantages and tensors (the trainer's).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_agent.data_client.payloads import StepPayload
from dart_agent.data_client.wire import Batch, BatchGroup, BatchMember, BatchReport, BatchRow
from dart_agent.errors import StoreError
from dart_agent.types import Purpose, StepRecord
from dart_train.curation.experience_pool import select_success
from dart_train.curation.group_filter import uninformative_reason
from dart_train.curation.staleness import Span, token_staleness, trainable_ranges
from dart_train.data_manager import queries
from dart_train.data_manager.catalog import task_family
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.store import work
from dart_train.data_manager.store.models import BatchMemberTable, BatchTable, GroupTable, TrajectoryTable
from dart_train.data_manager.store.trajectories import TrajectoryStore, read_steps

Source = Literal["fresh", "pool"]

NO_STEP = -1
"""Index that stands for a member without steps: it counts in the baseline and has nothing to train on."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A group that can train: its members, and the token ranges of every step."""

    group: GroupTable
    members: tuple[tuple[TrajectoryTable, Source], ...]
    trainable: dict[tuple[str, int], list[tuple[int, int]]]


class BatchBuilder:
    """Forms batches; it holds no state.

    Args:
        store: The trajectory database.
        config: The configuration of the data manager.
    """

    def __init__(self, store: TrajectoryStore, config: DataManagerConfig) -> None:
        self._store = store
        self._config = config

    def next(self, session: Session, trainer_version: int) -> Batch | None:
        """Return the next batch.

        Args:
            session: The transaction.
            trainer_version: Present version of the trainer.

        Returns:
            The unfinished batch, else a new one where enough groups are ready, else None.
        """
        issued = session.scalar(select(BatchTable).where(BatchTable.state == "issued").order_by(BatchTable.seq))
        if issued is not None:
            return self._read(session, issued)
        if queries.ready_groups(session) < self._config.batch.min_groups:
            return None
        candidates = self._candidates(session, trainer_version)
        if len(candidates) < self._config.batch.min_groups:
            return None
        return self._issue(session, trainer_version, candidates)

    def done(self, session: Session, batch_id: str, report: BatchReport) -> int:
        """Record that a batch became policy `report.version`.

        Args:
            session: The transaction.
            batch_id: The batch.
            report: The report of the trainer.

        Returns:
            1, or 0 where it was recorded before.

        Raises:
            StoreError: The batch does not exist.
        """
        batch = session.scalar(select(BatchTable).where(BatchTable.batch_id == batch_id))
        if batch is None:
            raise StoreError(f"there is no batch {batch_id}")
        if batch.state == "done":
            return 0
        batch.state, batch.version, batch.done_s = "done", report.version, self._store.now()
        batch.metrics = dict(report.metrics)
        members = self._members(session, batch_id)
        reasons = {(unused.rollout_id, unused.index): unused.reason for unused in report.unused}
        for row in members:
            row.reason = row.reason or reasons.get((row.rollout_id, row.index))
        for group_id in {row.group_id for row in members}:
            session.scalars(select(GroupTable).where(GroupTable.group_id == group_id)).one().state = "used"
        self._store.record_event(session, "batch_done", batch_id=batch_id, version=report.version)
        return 1

    def _candidates(self, session: Session, trainer_version: int) -> list[_Candidate]:
        """The oldest groups that can train, as many as a batch takes; those that cannot are dropped on the way."""
        query = select(GroupTable).where(GroupTable.purpose == Purpose.TRAIN.value, GroupTable.state == "ready")
        found: list[_Candidate] = []
        for group in session.scalars(query.order_by(GroupTable.seq)):
            if len(found) == self._config.batch.max_groups:
                break
            candidate = self._as_candidate(session, group, trainer_version)
            if isinstance(candidate, _Candidate):
                found.append(candidate)
            else:
                group.state, group.reason = "dropped", candidate
                self._store.record_event(session, "group_dropped", group_id=group.group_id, reason=candidate)
        return found

    def _as_candidate(self, session: Session, group: GroupTable, trainer_version: int) -> _Candidate | str:
        """The group as a candidate, or why it cannot train."""
        members: list[tuple[TrajectoryTable, Source]] = [
            (row, "fresh") for row in queries.rewarded_trajectories(session, group.group_id)
        ]
        reason = uninformative_reason([_reward(row) for row, _ in members], self._config.batch.min_members)
        if reason == "all_failed":
            rescue = self._from_pool(session, group.task_id, trainer_version)
            if rescue is None:
                return reason
            members[0] = (rescue, "pool")
        elif reason is not None:
            return reason
        trainable = {
            (row.rollout_id, step.index): self._fresh_ranges(step, trainer_version, source)
            for row, source in members
            for step in read_steps(session, row.rollout_id)
        }
        if not any(trainable.values()):
            return "stale"
        return _Candidate(group, tuple(members), trainable)

    def _from_pool(self, session: Session, task_id: str, trainer_version: int) -> TrajectoryTable | None:
        successes = queries.stored_successes(session, task_id)
        ages = [trainer_version - (row.version_min or 0) for row in successes]
        chosen = select_success(ages, self._config.curation.experience_pool)
        return None if chosen is None else successes[chosen]

    def _fresh_ranges(self, step: StepRecord, trainer_version: int, source: Source) -> list[tuple[int, int]]:
        if not step.logprobs_T:
            return []
        bound = self._config.curation.experience_pool.max_age if source == "pool" else self._config.batch.max_staleness
        return trainable_ranges(_spans(step), trainer_version, bound)

    def _issue(self, session: Session, trainer_version: int, candidates: Sequence[_Candidate]) -> Batch:
        batch = BatchTable(
            batch_id=work.new_id("batch"),
            trainer_version=trainer_version,
            state="issued",
            created_s=self._store.now(),
            metrics={},
        )
        session.add(batch)
        session.flush()
        for candidate in candidates:
            candidate.group.state = "issued"
            for row, source in candidate.members:
                for index in range(row.n_steps) if row.n_steps else (NO_STEP,):
                    ranges = candidate.trainable.get((row.rollout_id, index), [])
                    session.add(
                        BatchMemberTable(
                            batch_id=batch.batch_id,
                            group_id=candidate.group.group_id,
                            rollout_id=row.rollout_id,
                            index=index,
                            source=source,
                            trainable=[list(item) for item in ranges],
                            reason=None if ranges else "no_steps" if index == NO_STEP else "stale",
                        )
                    )
        session.flush()
        self._store.record_event(session, "batch_issued", batch_id=batch.batch_id, groups=len(candidates))
        return self._read(session, batch)

    def _read(self, session: Session, batch: BatchTable) -> Batch:
        groups: dict[str, BatchGroup] = {}
        rows: list[BatchRow] = []
        staleness: list[int] = []
        excluded_steps: Counter[str] = Counter()
        steps: dict[tuple[str, str], dict[int, StepRecord]] = {}
        for member in self._members(session, batch.batch_id):
            key = (member.group_id, member.rollout_id)
            if key not in steps:
                steps[key] = {step.index: step for step in read_steps(session, member.rollout_id)}
                self._add_member(session, groups, member)
            if member.reason is not None:
                excluded_steps[member.reason] += 1
                continue
            step = steps[key][member.index]
            ranges = [(item[0], item[1]) for item in member.trainable]
            by_token = token_staleness(_spans(step), batch.trainer_version)
            staleness += [by_token[position] for start, end in ranges for position in range(start, end)]
            rows.append(
                BatchRow(
                    group_id=member.group_id,
                    rollout_id=member.rollout_id,
                    step=StepPayload.from_value(step),
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
            excluded_steps=dict(excluded_steps),
        )

    def _add_member(self, session: Session, groups: dict[str, BatchGroup], member: BatchMemberTable) -> None:
        group = groups.get(member.group_id)
        if group is None:
            row = session.scalars(select(GroupTable).where(GroupTable.group_id == member.group_id)).one()
            group = BatchGroup(group_id=row.group_id, task_id=row.task_id, family=task_family(row.task_id), members=[])
            groups[row.group_id] = group
        found = session.scalars(select(TrajectoryTable).where(TrajectoryTable.rollout_id == member.rollout_id)).one()
        source: Source = "pool" if member.source == "pool" else "fresh"
        group.members.append(
            BatchMember(rollout_id=found.rollout_id, reward=_reward(found), steps=found.n_steps, source=source)
        )

    def _members(self, session: Session, batch_id: str) -> Sequence[BatchMemberTable]:
        query = select(BatchMemberTable).where(BatchMemberTable.batch_id == batch_id)
        return session.scalars(
            query.order_by(BatchMemberTable.group_id, BatchMemberTable.rollout_id, BatchMemberTable.index)
        ).all()


def _spans(step: StepRecord) -> list[Span]:
    return [(span.version, span.start, span.end) for span in step.version_spans]


def _reward(row: TrajectoryTable) -> float:
    if row.reward is None:
        raise StoreError(f"rollout {row.rollout_id} has no reward and cannot be trained on")
    return row.reward
