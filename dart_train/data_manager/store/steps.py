"""Steps in the database: stored as they happen, as slices of token streams.

Role: append, read and drop the steps of a rollout, each inside the caller's transaction. Rule: a step is stored once by rollout and index,
and only behind the one before it; what is stored of a finished trajectory is never changed. Non-goals: what a step must fulfil
(`dart_train.data_manager.store.step_checks`), states of rollouts (`dart_train.data_manager.store.work`).
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from itertools import groupby
from typing import Any

import numpy as np
from sqlalchemy import Table, bindparam, delete, insert, select
from sqlalchemy.orm import Session

from dart_agent.data_client.payloads import (
    SamplingPayload,
    StepPayload,
    StreamStepPayload,
    TrajectoryPayload,
    steps_digest,
)
from dart_agent.data_client.token_stream import (
    PackedSlice,
    PackedStreamReader,
    StepSlice,
    StreamReader,
)
from dart_agent.errors import StoreError
from dart_agent.rollouts.episode_state import EpisodeState
from dart_agent.types import FinishReason, PointedTarget, StepRecord, VersionSpan
from dart_train.data_manager.store.database import connection_of
from dart_train.data_manager.store.models import EpisodeStateTable, ObsoleteSnapshotTable, StepTable
from dart_train.data_manager.store.step_checks import Placeholders, StepBefore, checked_columns, unpacked_ids


def _table(model: type[Any]) -> Table:
    table: Table = model.__table__
    return table


_STEPS, _STATES = _table(StepTable), _table(EpisodeStateTable)
_INSERT_STEP = insert(_STEPS)
_DROP_STEPS = delete(_STEPS).where(_STEPS.c.rollout_id == bindparam("key"))
_DROP_STATE = delete(_STATES).where(_STATES.c.rollout_id == bindparam("key"))
_READ_STATE = select(_STATES.c.state).where(_STATES.c.rollout_id == bindparam("key"))
_VERSION_MIN = select(_STATES.c.version_min).where(_STATES.c.rollout_id == bindparam("key"))
_COUNT = select(_STATES.c.n_steps).where(_STATES.c.rollout_id == bindparam("key"))
_READ_STEPS = (
    select(_STEPS)
    .where(_STEPS.c.rollout_id.in_(bindparam("keys", expanding=True)))
    .order_by(_STEPS.c.rollout_id, _STEPS.c.index)
)
_SEGMENT = select(_STEPS.c.segment, _STEPS.c.response_end).where(
    _STEPS.c.rollout_id == bindparam("key"), _STEPS.c.index == bindparam("at")
)


MAX_LISTED_SNAPSHOTS = 20
"""So many obsolete snapshots a worker is told of at a time."""

UNFINISHED = "unfinished"
"""Key in `Session.info` of the rollouts that may have stored steps and no trajectory (a set of ids that is never too small), so that
nothing is asked of the others; without it the database is asked. The set belongs to the one process that writes."""


def unfinished_rollouts(session: Session) -> set[str]:
    """Read which unfinished rollouts have stored steps.

    Args:
        session: The transaction.

    Returns:
        Their ids.
    """
    return set(connection_of(session).scalars(select(_STATES.c.rollout_id)))


def _may_have_steps(session: Session, rollout_id: str) -> bool:
    known: set[str] | None = session.info.get(UNFINISHED)
    return known is None or rollout_id in known


def _note(session: Session, rollout_id: str) -> None:
    if (known := session.info.get(UNFINISHED)) is not None:
        known.add(rollout_id)


def _forget(session: Session, rollout_id: str) -> None:
    if (known := session.info.get(UNFINISHED)) is not None:
        known.discard(rollout_id)


def append_step(session: Session, rollout_id: str, step: StreamStepPayload, placeholders: Placeholders) -> bool:
    """Store the next step of an unfinished rollout.

    Args:
        session: The transaction.
        rollout_id: The rollout.
        step: The step.
        placeholders: The model's placeholders.

    Returns:
        False where this step is stored already.

    Raises:
        StoreError: It does not follow the stored steps, or contradicts itself.
    """
    stored = session.get(StepTable, (rollout_id, step.index))
    if stored is not None:
        if stored.token_ids != base64.b64decode(step.token_ids):
            raise StoreError(f"step {step.index} of rollout {rollout_id} is stored with other tokens")
        return False
    before = _before(session, rollout_id, step.index)
    if step.index and before is None:
        raise StoreError(f"step {step.index} of rollout {rollout_id} comes before step {step.index - 1}")
    row = checked_columns(rollout_id, step, before, placeholders)
    _note(session, rollout_id)
    connection_of(session).execute(_INSERT_STEP, row)
    return True


def complete(session: Session, row: TrajectoryPayload, placeholders: Placeholders = lambda: None) -> None:
    """Store the steps of a finished trajectory that are not stored yet; its unfinished state goes.

    A trajectory with all its steps replaces what is stored of its rollout: another worker may have begun it anew.

    Args:
        session: The transaction.
        row: The trajectory.
        placeholders: The model's placeholders.

    Raises:
        StoreError: The steps that it leaves out are not those that are stored.
    """
    left_out = row.n_steps - len(row.steps)
    if left_out:
        if stored_digest(session, row.rollout_id) != row.stored_digest:
            raise StoreError(
                f"the stored steps of rollout {row.rollout_id} are not the first {left_out} of this report"
            )
    else:
        drop(session, row.rollout_id)
    before = _before(session, row.rollout_id, left_out)
    added = []
    for step in row.steps:
        added.append(checked_columns(row.rollout_id, step, before, placeholders))
        before = StepBefore(step.segment, step.response_end)
    connection = connection_of(session)
    if added:
        connection.execute(_INSERT_STEP, added)
    if left_out:
        _drop_state(session, row.rollout_id)


def drop(session: Session, rollout_id: str) -> int:
    """Drop the steps and the state of an unfinished rollout.

    Args:
        session: The transaction.
        rollout_id: The rollout; it has no trajectory.

    Returns:
        Number of steps.
    """
    if not _may_have_steps(session, rollout_id):
        return 0
    if not _drop_state(session, rollout_id):
        return 0  # every step of an unfinished rollout is stored with the state after it
    return connection_of(session).execute(_DROP_STEPS, {"key": rollout_id}).rowcount


def save_state(session: Session, rollout_id: str, state: EpisodeState, n_steps: int, stored_s: float) -> int | None:
    """Save how an unfinished rollout stands.

    Args:
        session: The transaction.
        rollout_id: The rollout.
        state: Its state after the last step.
        n_steps: Number of stored steps.
        stored_s: Present time, in seconds since the epoch.

    Returns:
        The oldest version that wrote in it, None where none is known.
    """
    _note(session, rollout_id)
    found = session.get(EpisodeStateTable, rollout_id)
    last = session.get(StepTable, (rollout_id, n_steps - 1)) if n_steps else None
    wrote = [] if last is None else [span[0] for span in last.version_spans]
    if found is not None and found.version_min is not None:
        wrote.append(found.version_min)
    if found is not None:
        before, now = _snapshot_of(found.state), None if state.desktop is None else state.desktop.snapshot_id
        if before != now:
            _retire(session, before)
    row = found or EpisodeStateTable(rollout_id=rollout_id)
    row.version_min = min(wrote, default=None)
    row.state, row.n_steps, row.stored_s = state.model_dump(mode="json"), n_steps, stored_s
    session.add(row)
    session.flush()
    return row.version_min


def read_state(session: Session, rollout_id: str) -> EpisodeState | None:
    """Read the state of an unfinished rollout.

    Args:
        session: The transaction.
        rollout_id: The rollout.

    Returns:
        Its state, None where no step of it is stored.
    """
    found = session.get(EpisodeStateTable, rollout_id)
    return None if found is None else EpisodeState.model_validate(found.state)


def resumable_only_by(session: Session, worker_id: str, rollout_ids: Collection[str]) -> frozenset[str]:
    """Find the unfinished rollouts that no other worker can continue.

    Args:
        session: The transaction.
        worker_id: Name of the worker.
        rollout_ids: The rollouts that are looked at.

    Returns:
        Those of them that it did not park.
    """
    found = set()
    for rollout_id in rollout_ids:
        state = read_state(session, rollout_id) if _may_have_steps(session, rollout_id) else None
        if state is not None and state.resumable_by == worker_id:
            found.add(rollout_id)
    return frozenset(found)


def obsolete_snapshots(session: Session) -> list[str]:
    """List snapshots that no unfinished rollout is continued on any more, a few at a time.

    Args:
        session: The transaction.

    Returns:
        Their ids.
    """
    query = select(ObsoleteSnapshotTable.snapshot_id).order_by(ObsoleteSnapshotTable.snapshot_id)
    return list(connection_of(session).scalars(query.limit(MAX_LISTED_SNAPSHOTS)))


def forget_snapshots(session: Session, snapshot_ids: Collection[str]) -> None:
    """Forget obsolete snapshots that were deleted at the farm.

    Args:
        session: The transaction.
        snapshot_ids: The snapshots.
    """
    if snapshot_ids:
        gone = ObsoleteSnapshotTable.snapshot_id.in_(snapshot_ids)
        connection_of(session).execute(delete(ObsoleteSnapshotTable).where(gone))


def kept_leases(session: Session) -> list[str]:
    """List the leases whose desktops unfinished rollouts are continued on.

    Args:
        session: The transaction.

    Returns:
        Their references (`AsyncFarmClient.attach`).
    """
    desktops = (
        EpisodeState.model_validate(state).desktop for state in session.scalars(select(EpisodeStateTable.state))
    )
    return [desktop.lease for desktop in desktops if desktop is not None and desktop.lease is not None]


def count_stored(session: Session, rollout_id: str) -> int:
    """Count the stored steps of an unfinished rollout.

    Args:
        session: The transaction.
        rollout_id: The rollout.

    Returns:
        Number of steps.
    """
    if not _may_have_steps(session, rollout_id):
        return 0
    return connection_of(session).scalar(_COUNT, {"key": rollout_id}) or 0


def oldest_version(session: Session, rollout_id: str) -> int | None:
    """Find the oldest policy version that wrote in an unfinished rollout.

    Args:
        session: The transaction.
        rollout_id: The rollout.

    Returns:
        The version, None where none is known.
    """
    found: int | None = connection_of(session).scalar(_VERSION_MIN, {"key": rollout_id})
    return found


def stored_digest(session: Session, rollout_id: str) -> str:
    """Compute the digest of what is stored of a rollout (`dart_agent.data_client.payloads.steps_digest`)."""
    query = select(StepTable.token_ids).where(StepTable.rollout_id == rollout_id).order_by(StepTable.index)
    return steps_digest(session.scalars(query))


def versions(session: Session, row: TrajectoryPayload) -> list[int]:
    """Find the policy versions that wrote in a finished trajectory; what it leaves out is read.

    Args:
        session: The transaction.
        row: The trajectory.

    Returns:
        A version per span.
    """
    found = [span[0] for step in row.steps for span in step.version_spans]
    left_out = row.n_steps - len(row.steps)
    if left_out:
        query = select(StepTable.version_spans).where(StepTable.rollout_id == row.rollout_id)
        found += [span[0] for spans in session.scalars(query.where(StepTable.index < left_out)) for span in spans]
    return found


def read_steps(session: Session, rollout_id: str) -> tuple[StepRecord, ...]:
    """Read the steps of a rollout with their full prompts.

    Args:
        session: The transaction.
        rollout_id: The rollout.

    Returns:
        The steps in order.
    """
    rows = connection_of(session).execute(_READ_STEPS, {"keys": [rollout_id]})
    reader = StreamReader()
    return tuple(_record(row, reader) for row in rows)


def read_packed_steps(session: Session, rollout_ids: Collection[str]) -> dict[str, list[StepPayload]]:
    """Read the steps of rollouts with their full prompts, packed as the trainer gets them; no token id becomes an object.

    Args:
        session: The transaction.
        rollout_ids: The rollouts.

    Returns:
        By rollout, the steps in order; a rollout without steps is left out.
    """
    rows = connection_of(session).execute(_READ_STEPS, {"keys": list(rollout_ids)})
    found = {}
    for rollout_id, of_rollout in groupby(rows, lambda row: row.rollout_id):
        reader = PackedStreamReader()
        found[rollout_id] = [_packed(row, reader) for row in of_rollout]
    return found


def read_slices(session: Session, rollout_id: str) -> list[StreamStepPayload]:
    """Read the steps of a rollout as they are stored.

    Args:
        session: The transaction.
        rollout_id: The rollout.

    Returns:
        The slices in order.
    """
    return [_payload(row) for row in connection_of(session).execute(_READ_STEPS, {"keys": [rollout_id]})]


def _drop_state(session: Session, rollout_id: str) -> bool:
    """Drop the state of an unfinished rollout, whose snapshot nobody needs then; False where there is none."""
    connection = connection_of(session)
    _forget(session, rollout_id)
    state = connection.scalar(_READ_STATE, {"key": rollout_id})
    if state is None:
        return False
    _retire(session, _snapshot_of(state))
    connection.execute(_DROP_STATE, {"key": rollout_id})
    return True


def _snapshot_of(state: dict[str, Any]) -> str | None:
    """The snapshot that a stored state names."""
    desktop = state.get("desktop")
    return None if desktop is None else desktop.get("snapshot_id")


def _retire(session: Session, snapshot_id: str | None) -> None:
    if snapshot_id is not None and session.get(ObsoleteSnapshotTable, snapshot_id) is None:
        session.add(ObsoleteSnapshotTable(snapshot_id=snapshot_id))
        session.flush()


def _before(session: Session, rollout_id: str, index: int) -> StepBefore | None:
    if not index:
        return None
    found = connection_of(session).execute(_SEGMENT, {"key": rollout_id, "at": index - 1}).first()
    return None if found is None else StepBefore(*found)


def _record(row: Any, reader: StreamReader) -> StepRecord:
    tokens = tuple(unpacked_ids(row.token_ids).tolist())
    cut = StepSlice(
        row.segment,
        row.response_start,
        row.response_end,
        tuple(unpacked_ids(row.prompt_new).tolist()),
        tuple(row.image_sha256_new),
        tuple((hw[0], hw[1]) for hw in row.image_hw_new),
    )
    prompt, hashes, sizes = reader.read(row.index, cut, tokens)
    return StepRecord(
        index=row.index,
        prompt_ids_P=prompt,
        token_ids_T=tokens,
        logprobs_T=tuple(np.frombuffer(row.logprobs, dtype="<f4").tolist()),
        version_spans=tuple(VersionSpan(*span) for span in row.version_spans),
        image_sha256=hashes,
        image_hw=sizes,
        text=row.text,
        action=row.action,
        parse_error=row.parse_error,
        sampling=SamplingPayload(**row.sampling).to_value(),
        finish_reason=FinishReason(row.finish_reason),
        model_s=row.model_s,
        env_s=row.env_s,
        pointers=tuple(PointedTarget.unpack(fields) for fields in row.pointers or ()),
    )


def _packed(row: Any, reader: PackedStreamReader) -> StepPayload:
    """A step of the database, which was checked when it was stored, and is not checked again."""
    cut = PackedSlice(
        row.segment,
        row.response_start,
        row.response_end,
        row.prompt_new,
        row.token_ids,
        row.image_sha256_new,
        row.image_hw_new,
    )
    prompt, hashes, sizes = reader.read(row.index, cut)
    return StepPayload.model_construct(
        index=row.index,
        prompt_ids=_text(prompt),
        token_ids=_text(row.token_ids),
        logprobs=_text(row.logprobs),
        version_spans=[tuple(span) for span in row.version_spans],
        image_sha256=hashes,
        image_hw=sizes,
        text=row.text,
        action=row.action,
        parse_error=row.parse_error,
        sampling=SamplingPayload.model_construct(**row.sampling),
        finish_reason=FinishReason(row.finish_reason),
        model_s=row.model_s,
        env_s=row.env_s,
        pointers=[(*fields[:4], tuple(fields[4])) for fields in row.pointers or ()],
    )


def _payload(row: Any) -> StreamStepPayload:
    return StreamStepPayload(
        index=row.index,
        segment=row.segment,
        response_start=row.response_start,
        response_end=row.response_end,
        prompt_new=_text(row.prompt_new),
        token_ids=_text(row.token_ids),
        logprobs=_text(row.logprobs),
        version_spans=row.version_spans,
        image_sha256_new=row.image_sha256_new,
        image_hw_new=row.image_hw_new,
        text=row.text,
        action=row.action,
        parse_error=row.parse_error,
        sampling=SamplingPayload(**row.sampling),
        finish_reason=FinishReason(row.finish_reason),
        model_s=row.model_s,
        env_s=row.env_s,
        pointers=row.pointers or [],
    )


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
