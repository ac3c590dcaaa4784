"""Why each step of a trajectory was trained on, or was not.

Role: reads what the data manager recorded (batches, groups, quarantine) and says it in sentences. Rule: every stored step has at least one
sentence; nothing is guessed: a reason that is not known here is told as it is recorded. Non-goals: the decisions (`dart_train.curation`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_agent.types import Purpose
from dart_train.data_manager import queries
from dart_train.data_manager.batches import NO_STEP, NO_STEPS
from dart_train.data_manager.store.models import (
    BatchMemberTable,
    BatchTable,
    GroupTable,
    QuarantinedStepTable,
    TrajectoryTable,
)

REASONS = {
    "stale": "every token was sampled by a version that is older than the staleness limit",
    "lost_future": "its tokens were sampled by weights that were lost and are no ancestors of the trainer's",
    "no_logprobs": "its tokens have no log-probs",
    "low_entropy": "its mean token entropy is among the lowest of its group",
    "low_entropy_tokens": "the entropy of each of its tokens is among the lowest of the batch",
    "quarantined": "it made a batch impossible to train on",
    "displaced_by_pool": "every rollout of the group failed, and a stored success took its place",
    "no_steps": "the episode has no steps; its reward counts in the baseline",
    "all_failed": "every rollout of the group failed with the same reward, so all advantages are 0",
    "all_succeeded": "every rollout of the group succeeded with the same reward, so all advantages are 0",
    "too_few_members": "too few rollouts of the group have a reward",
}
"""What recorded reasons mean."""


def explain(reason: str) -> str:
    """Say what a recorded reason means.

    Args:
        reason: The reason.

    Returns:
        The reason, with its meaning where it is known.
    """
    return f"{reason}: {REASONS[reason]}" if reason in REASONS else reason


@dataclass(frozen=True, slots=True)
class BatchUse:
    """A step in a batch.

    Attributes:
        batch_id: The batch.
        state: State of the batch: issued, done, failed or withdrawn.
        group_id: The group that it was in.
        source: fresh, pool or displaced.
        trainer_version: Version of the trainer when the batch was formed.
        version: The policy version that the batch became, None where it did not.
        trainable: Ranges of positions that passed the staleness gate; of a step that was trained on, those that were trained on.
        staleness: Greatest staleness of those tokens, None where there are none.
        advantage: The advantage, None where the trainer told none.
        entropy: Mean token entropy in nats, None where the trainer told none.
        reason: Why it was left out, None where it was not.
        cause: Why the batch failed or was withdrawn.
    """

    batch_id: str
    state: str
    group_id: str
    source: str
    trainer_version: int
    version: int | None
    trainable: tuple[tuple[int, int], ...]
    staleness: int | None
    advantage: float | None
    entropy: float | None
    reason: str | None
    cause: str | None

    @property
    def trained(self) -> bool:
        """Whether the step was trained on."""
        return self.state == "done" and self.reason is None

    @property
    def discarded(self) -> bool:
        """Whether the batch failed or was withdrawn, so that its groups could be issued again."""
        return self.state in ("failed", "withdrawn")

    @property
    def sentence(self) -> str:
        """What became of the step in this batch."""
        place = self.batch_id + (" as a pooled success" if self.source == "pool" else "")
        if self.reason is not None:
            return f"left out of {place}: {explain(self.reason)}"
        if self.state == "issued":
            return f"in {place}, which the trainer has now"
        if self.state != "done":
            return f"not trained on: {place} was {self.state} ({self.cause})"
        told = [] if self.advantage is None else [f"advantage {self.advantage:+.3g}"]
        told += [] if self.staleness is None else [f"staleness {self.staleness}"]
        return f"trained in update {self.version} ({', '.join([place, *told])})"


@dataclass(frozen=True, slots=True)
class StepProvenance:
    """One step, and what became of it.

    Attributes:
        index: Number of the step, from 0.
        version_spans: (version, start, end) of its positions: tokens, and targets behind them.
        uses: What became of it in each batch, oldest first.
        verdict: One sentence for each use, and what its group waits for, or why it was dropped, after uses in discarded batches alone.
    """

    index: int
    version_spans: tuple[tuple[int, int, int], ...]
    uses: tuple[BatchUse, ...]
    verdict: tuple[str, ...]

    @property
    def trained(self) -> bool:
        """Whether any batch trained on it."""
        return any(use.trained for use in self.uses)


@dataclass(frozen=True, slots=True)
class TrajectoryProvenance:
    """A trajectory, and what became of its steps.

    Attributes:
        rollout_id: Its rollout.
        group_id: Its group.
        group_state: State of that group.
        fate: What became of it, in a word: trained, left_out, waiting, dropped, quarantined, masked, eval, demo.
        why: The same in a sentence.
        steps: Its steps; a trajectory without steps has none.
    """

    rollout_id: str
    group_id: str
    group_state: str
    fate: str
    why: str
    steps: tuple[StepProvenance, ...]


def read_provenance(session: Session, row: TrajectoryTable) -> TrajectoryProvenance:
    """Read why each step of a trajectory was trained on, or was not.

    Args:
        session: The transaction.
        row: The trajectory.

    Returns:
        Its provenance.
    """
    group = session.scalar(select(GroupTable).where(GroupTable.group_id == row.group_id))
    stored = queries.read_spans(session, [row.rollout_id]).get(row.rollout_id, [])
    spans = {step.index: step.spans for step in stored}
    members = session.execute(
        select(BatchMemberTable, BatchTable)
        .join(BatchTable, BatchTable.batch_id == BatchMemberTable.batch_id)
        .where(BatchMemberTable.rollout_id == row.rollout_id)
        .order_by(BatchTable.seq, BatchMemberTable.group_id, BatchMemberTable.index)
    ).all()
    uses: defaultdict[int, list[BatchUse]] = defaultdict(list)
    for member, batch in members:
        uses[member.index].append(_use(member, batch, spans.get(member.index, ())))
    quarantine = select(QuarantinedStepTable).where(QuarantinedStepTable.rollout_id == row.rollout_id)
    causes = {each.index: each.cause for each in session.scalars(quarantine)}
    fate, why = describe_fate(row, group, uses, causes)
    steps = tuple(
        StepProvenance(index, spans[index], tuple(uses[index]), _verdict(uses[index], causes.get(index), why, group))
        for index in sorted(spans)
    )
    return TrajectoryProvenance(
        row.rollout_id, row.group_id, "unknown" if group is None else group.state, fate, why, steps
    )


def describe_fate(
    row: TrajectoryTable,
    group: GroupTable | None,
    uses_by_step: Mapping[int, Sequence[BatchUse]],
    quarantined: Mapping[int, str],
) -> tuple[str, str]:
    """Say what became of a trajectory.

    Args:
        row: The trajectory.
        group: Its group, None where it is not known.
        uses_by_step: What became of its steps in batches, by index; a pooled success is in several.
        quarantined: Causes of the steps that are quarantined, by index.

    Returns:
        A word and a sentence.
    """
    uses = [use for each in uses_by_step.values() for use in each]
    trained_steps = sum(any(use.trained for use in each) for each in uses_by_step.values())
    if trained_steps:
        versions = sorted({use.version for use in uses if use.trained and use.version})
        return "trained", f"{trained_steps} of {row.n_steps} steps in update {', '.join(map(str, versions))}"
    if row.purpose == Purpose.EVAL.value:
        return "eval", "episodes of an evaluation are never trained on"
    if row.purpose == Purpose.DEMO.value:
        return "demo", "a demonstration: it may only be imitated, because it has no log-probs"
    if row.reward is None:
        return "masked", f"masked, because it has no reward: {row.stop}" + (f" ({row.cause})" if row.cause else "")
    if any(use.state == "issued" and use.reason is None for use in uses):
        return "waiting", "the trainer has its batch now"
    if quarantined:
        causes = "; ".join(dict.fromkeys(quarantined.values()))
        return "quarantined", f"{len(quarantined)} of {row.n_steps} steps are never trained on: {causes}"
    told = list(dict.fromkeys(use.sentence for use in uses))
    fate, sentence = _describe_group(group)
    if any(not use.discarded for use in uses) or (uses and fate == "left_out"):
        return "left_out", "; ".join(told)
    return fate, "; ".join([sentence, *told])


def _describe_group(group: GroupTable | None) -> tuple[str, str]:
    """The fate of a trajectory that is in no batch but discarded ones, and why, by the state of its group."""
    state = "unknown" if group is None else group.state
    if group is not None and state == "dropped":
        return "dropped", f"its group was dropped: {explain(group.reason or 'no reason is recorded')}"
    if state == "open":
        return "waiting", "its group waits for more rollouts"
    if state == "ready":
        return "waiting", "its group waits for the trainer"
    return "left_out", f"it is in no batch; its group is {state}"


def _verdict(uses: Sequence[BatchUse], quarantined: str | None, why: str, group: GroupTable | None) -> tuple[str, ...]:
    told = [use.sentence for use in uses]
    fate, of_group = _describe_group(group)
    if quarantined is not None:
        told.append(f"quarantined: {quarantined}")
    elif uses and fate != "left_out" and all(use.discarded for use in uses):
        told.append(of_group)
    return tuple(told or [why])


def _use(member: BatchMemberTable, batch: BatchTable, spans: Sequence[tuple[int, int, int]]) -> BatchUse:
    trainable = tuple((start, end) for start, end in member.trainable)
    staleness = [
        batch.trainer_version - version
        for version, start, end in spans
        if any(start < last and first < end for first, last in trainable)
    ]
    return BatchUse(
        batch_id=batch.batch_id,
        state=batch.state,
        group_id=member.group_id,
        source=member.source,
        trainer_version=batch.trainer_version,
        version=batch.version,
        trainable=trainable,
        staleness=max(staleness, default=None),
        advantage=member.advantage,
        entropy=member.entropy,
        reason=NO_STEPS if member.index == NO_STEP else member.reason,
        cause=batch.cause,
    )
