"""Tables of the trajectory database (SQLAlchemy 2).

Role: the schema, once; `migrations/` creates and changes it. Rule: trajectories and their steps are only added; what changes over time
(states of rollouts, groups, phases and batches) has its own columns and leaves an event. Non-goals: queries (`trajectories`, `work`,
`dart_train.data_manager.queries`).

Times are seconds since the epoch. Token ids are little-endian int32 bytes, log-probs little-endian float32 bytes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, LargeBinary
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class StoreBase(DeclarativeBase):
    """Registry of the tables."""

    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012 - SQLAlchemy reads this class attribute


class TaskTable(StoreBase):
    """A task that was run, with the split that it belonged to at its first run."""

    __tablename__ = "tasks"
    task_id: Mapped[str] = mapped_column(primary_key=True)
    family: Mapped[str] = mapped_column(index=True)
    split: Mapped[str]


class PhaseTable(StoreBase):
    """A phase; `state` is active, stopped or done. `task_ids` can be long and is read only when it is asked for."""

    __tablename__ = "phases"
    seq: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    purpose: Mapped[str]
    spec: Mapped[dict[str, Any]]
    task_ids: Mapped[list[Any]] = mapped_column(deferred=True)
    state: Mapped[str]
    created_s: Mapped[float]
    n_tasks: Mapped[int]


class GroupTable(StoreBase):
    """Rollouts of one task whose rewards are compared with each other.

    `state` is open (rollouts are unfinished), ready (all have ended; the group may be trained on), dropped (it cannot be trained on, see
    `reason`), issued (the trainer has it), used (it was in a finished batch) or done (it is not for training).
    """

    __tablename__ = "groups"
    seq: Mapped[int] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(unique=True)
    phase: Mapped[str] = mapped_column(ForeignKey("phases.name"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.task_id"), index=True)
    purpose: Mapped[str]
    size: Mapped[int]
    max_steps: Mapped[int]
    state: Mapped[str]
    reason: Mapped[str | None]
    opened_s: Mapped[float]
    closed_s: Mapped[float | None]
    __table_args__ = (
        Index("ix_groups_purpose_state", "purpose", "state"),
        Index("ix_groups_phase_state", "phase", "state"),
    )


class RolloutTable(StoreBase):
    """A rollout.

    `state` is queued, assigned, parked (unfinished, to be continued), done, masked (no reward), failed (attempts used up) or cancelled.
    """

    __tablename__ = "rollouts"
    seq: Mapped[int] = mapped_column(primary_key=True)
    rollout_id: Mapped[str] = mapped_column(unique=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.group_id"), index=True)
    phase: Mapped[str]
    task_id: Mapped[str]
    purpose: Mapped[str]
    repeat: Mapped[int]
    attempt: Mapped[int]
    state: Mapped[str]
    worker_id: Mapped[str | None]
    request_id: Mapped[str | None] = mapped_column(index=True)
    deadline_s: Mapped[float | None]
    sampling: Mapped[dict[str, Any]]
    max_steps: Mapped[int]
    __table_args__ = (
        Index("ix_rollouts_state_phase", "state", "phase", "seq"),
        Index("ix_rollouts_phase_repeat", "phase", "task_id", "repeat"),
    )


class TrajectoryTable(StoreBase):
    """One finished episode; it is never changed. `reward_source` is what judged it, or would have (`dart_agent.types.RewardKind`)."""

    __tablename__ = "trajectories"
    seq: Mapped[int] = mapped_column(primary_key=True)
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.rollout_id"), unique=True)
    group_id: Mapped[str] = mapped_column(index=True)
    task_id: Mapped[str]
    family: Mapped[str]
    purpose: Mapped[str]
    phase: Mapped[str]
    reward: Mapped[float | None]
    reward_source: Mapped[str]
    end: Mapped[str]
    stop: Mapped[str]
    cause: Mapped[str | None]
    started_at_s: Mapped[float]
    duration_s: Mapped[float]
    stored_s: Mapped[float]
    info: Mapped[dict[str, Any]]
    n_steps: Mapped[int]
    version_min: Mapped[int | None]
    version_max: Mapped[int | None]
    __table_args__ = (
        Index("ix_trajectories_phase", "phase", "seq"),
        Index("ix_trajectories_task", "purpose", "task_id", "seq"),
        Index("ix_trajectories_family", "purpose", "family", "seq"),
        Index("ix_trajectories_stored", "purpose", "stored_s"),
        CheckConstraint("purpose IN ('train', 'demo', 'eval')", name="purpose_known"),
    )


class StepTable(StoreBase):
    """One training row, as a slice of its token stream (`dart_agent.data_client.token_stream`).

    The steps of a trajectory are never changed. Those of an unfinished rollout are dropped when it begins anew.
    """

    __tablename__ = "steps"
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.rollout_id"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    segment: Mapped[int]
    response_start: Mapped[int]
    response_end: Mapped[int]
    prompt_new: Mapped[bytes] = mapped_column(LargeBinary)
    token_ids: Mapped[bytes] = mapped_column(LargeBinary)
    logprobs: Mapped[bytes] = mapped_column(LargeBinary)
    version_spans: Mapped[list[Any]]
    image_sha256_new: Mapped[list[Any]]
    image_hw_new: Mapped[list[Any]]
    text: Mapped[str]
    action: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    parse_error: Mapped[str | None]
    sampling: Mapped[dict[str, Any]]
    finish_reason: Mapped[str]
    model_s: Mapped[float]
    env_s: Mapped[float]
    pointers: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))


class EpisodeStateTable(StoreBase):
    """How an unfinished rollout stands after its last stored step (`dart_agent.rollouts.episode_state`); it goes when the rollout ends."""

    __tablename__ = "episode_states"
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.rollout_id"), primary_key=True)
    state: Mapped[dict[str, Any]]
    n_steps: Mapped[int]
    version_min: Mapped[int | None]
    stored_s: Mapped[float]


class ObsoleteSnapshotTable(StoreBase):
    """A snapshot of a desktop that no unfinished rollout is continued on any more; the row goes when a worker has deleted it."""

    __tablename__ = "obsolete_snapshots"
    snapshot_id: Mapped[str] = mapped_column(primary_key=True)


class VersionTable(StoreBase):
    """A published policy; `digest` is that of its weights, `parent` that of the weights it was trained from."""

    __tablename__ = "versions"
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    path: Mapped[str]
    created_s: Mapped[float]
    digest: Mapped[str | None]
    parent: Mapped[str | None]


class BatchTable(StoreBase):
    """A training batch, formed for the trainer's weights `trainer_digest`.

    `state` is issued (the trainer has it), done (it became policy `version`), failed (it cannot be trained on, see `cause`) or withdrawn
    (the weights that it was formed for are lost).
    """

    __tablename__ = "batches"
    seq: Mapped[int] = mapped_column(primary_key=True)
    batch_id: Mapped[str] = mapped_column(unique=True)
    trainer_version: Mapped[int]
    state: Mapped[str] = mapped_column(index=True)
    version: Mapped[int | None]
    created_s: Mapped[float]
    done_s: Mapped[float | None]
    metrics: Mapped[dict[str, Any]]
    trainer_digest: Mapped[str | None]
    cause: Mapped[str | None]


class BatchMemberTable(StoreBase):
    """A step of a batch; `reason` says why it was excluded, None where it was trained on.

    `trainable` are the ranges of positions that passed the staleness gate; of a step that was trained on, those that were trained on.
    `source` is fresh, pool (a stored success), or displaced (its place in the group was given to a stored success). `advantage` and
    `entropy` (mean of the step's tokens, in nats) are the trainer's, NULL where it told none.
    """

    __tablename__ = "batch_members"
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.batch_id"), primary_key=True)
    group_id: Mapped[str] = mapped_column(primary_key=True)
    rollout_id: Mapped[str] = mapped_column(primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    source: Mapped[str]
    trainable: Mapped[list[Any]]
    reason: Mapped[str | None]
    advantage: Mapped[float | None]
    entropy: Mapped[float | None]
    __table_args__ = (Index("ix_batch_members_rollout", "rollout_id"),)


class QuarantinedStepTable(StoreBase):
    """A step that made a batch impossible to train on: it is never trained on again, its trajectory stays in the baseline."""

    __tablename__ = "quarantined_steps"
    rollout_id: Mapped[str] = mapped_column(primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.batch_id"))
    cause: Mapped[str]
    at_s: Mapped[float]


class EventTable(StoreBase):
    """Append-only history."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(primary_key=True)
    at_s: Mapped[float]
    kind: Mapped[str]
    data: Mapped[dict[str, Any]]
