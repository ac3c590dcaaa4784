"""Trajectories as files that lose nothing, and their way into another run's experience pool.

Role: write `trajectories.jsonl` (one `TrajectoryPayload` per line) with `images/`, and read them into a database. Rule: what is read back
is what was written, ids and log-probs bit for bit. An imported trajectory keeps its reward, its tokens and their log-probs. It gets new
ids, a group of its own that is never trained on as a group, and version 0, because versions of another run are none of this one's: it ages
from there as the experience pool bounds it. It is imported once, by the digest of its task and tokens. Only successful training
trajectories of tasks of the train split with log-probs and versions are taken, and only those whose prompts hold images as this run's
model reads them, where the model is known. Non-goals: which success joins which group (`dart_train.curation.experience_pool`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select

from dart_agent.data_client.image_store import BlobError, BlobStorage, ImageStore
from dart_agent.data_client.payloads import StreamStepPayload, TrajectoryPayload
from dart_agent.data_client.wire import MAX_PHASE_NAME, PHASE_NAME, PhaseSpec
from dart_agent.errors import StoreError
from dart_agent.types import Purpose, RewardKind, Trajectory
from dart_envs.success import SUCCESS_AT, is_success
from dart_train.data_manager.catalog import task_family
from dart_train.data_manager.queries import IMPORT_PREFIX
from dart_train.data_manager.store.models import GroupTable, PhaseTable, RolloutTable, TrajectoryTable
from dart_train.data_manager.store.step_checks import ImagesUnfitError, StepBefore, checked_columns
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.data_manager.store.work import new_id

TRAJECTORIES = "trajectories.jsonl"
IMAGES = "images"
IMPORTED = "imported"
"""State of their groups."""
IMPORT_VERSION = 0
IMPORTED_BEFORE = "imported before"
"""Why a trajectory that is in the experience pool already is left out."""

OTHER_MODEL = "made for another model or image size"
"""Why a trajectory is left out whose prompts this run's model cannot read."""


def write_portable(trajectories: Iterable[Trajectory], images: BlobStorage, folder: Path) -> int:
    """Write trajectories with their images.

    Args:
        trajectories: The trajectories.
        images: Where their images are.
        folder: A folder; its files are replaced.

    Returns:
        Number of trajectories.

    Raises:
        BlobError: An image is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = ImageStore(folder / IMAGES)
    written = 0
    temporary = folder / f".{TRAJECTORIES}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            hashes = {sha256 for step in trajectory.steps_S for sha256 in step.image_sha256}
            for sha256 in target.missing(sorted(hashes)):
                target.put(images.get(sha256))
            file.write(TrajectoryPayload.from_value(trajectory).model_dump_json() + "\n")
            written += 1
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / TRAJECTORIES)
    return written


def read_portable(folder: Path) -> Iterator[TrajectoryPayload]:
    """Read trajectories that `write_portable` wrote.

    Args:
        folder: The folder.

    Yields:
        The trajectories.

    Raises:
        StoreError: There are none, or a line is damaged.
    """
    try:
        file = (folder / TRAJECTORIES).open(encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"{folder} has no {TRAJECTORIES} ({error.strerror}): dart-train data export --format portable writes it"
        ) from error
    with file:
        for number, line in enumerate(file, 1):
            try:
                yield TrajectoryPayload.model_validate_json(line)
            except ValidationError as error:
                raise StoreError(
                    f"{folder / TRAJECTORIES}: line {number} is damaged: {error.errors()[0]['msg']}"
                ) from None


def import_trajectories(
    store: TrajectoryStore,
    images: BlobStorage,
    folder: Path,
    origin: str,
    success_at: float = SUCCESS_AT,
    reward_source: RewardKind = RewardKind.EVALUATOR,
) -> tuple[int, Counter[str]]:
    """Take successful training trajectories of another run into the experience pool, all or none.

    Args:
        store: The database; no data manager is at work on it. It knows the placeholders of the run's model, where the model is known.
        images: Where its images are.
        folder: What `write_portable` wrote.
        origin: What the source is called; it names the phase.
        success_at: Least reward of a success.
        reward_source: What rewards the training of this run; another source's successes are left out.

    Returns:
        Number of imported trajectories, and by reason how many were not.

    Raises:
        StoreError: The folder cannot be read, or `origin` is no name of a phase.
    """
    phase = f"{IMPORT_PREFIX}{origin}"
    if re.fullmatch(PHASE_NAME, phase) is None:
        longest = MAX_PHASE_NAME - len(IMPORT_PREFIX)
        raise StoreError(
            f"the source cannot be called {origin!r}: give --name with a name of lower-case letters, digits, '.', '_' and '-', of at most "
            f"{longest} characters"
        )
    left_out: Counter[str] = Counter()
    taken: list[TrajectoryPayload] = []
    source = ImageStore(folder / IMAGES)
    for row in read_portable(folder):
        reason = _refusal(store, row, source, success_at, reward_source)
        if reason is None:
            taken.append(row)
        else:
            left_out[reason] += 1
    imported = 0
    with store.begin() as session:
        before = select(TrajectoryTable.info).where(TrajectoryTable.phase.startswith(IMPORT_PREFIX, autoescape=True))
        known = {info["imported"]["digest"] for info in session.scalars(before)}
        for row in taken:
            digest = _digest(row)
            if digest in known:
                left_out[IMPORTED_BEFORE] += 1
                continue
            known.add(digest)
            for step in row.steps:
                for sha256 in images.missing(step.image_sha256_new):
                    images.put(source.get(sha256))
            store.register_task(session, row.task_id, Purpose.TRAIN)
            if session.scalar(select(PhaseTable.seq).where(PhaseTable.name == phase)) is None:
                session.add(_phase(phase, row, store.now()))
                session.flush()
            ids = {"group_id": new_id("grp"), "rollout_id": new_id("roll")}
            session.add(
                GroupTable(
                    group_id=ids["group_id"], phase=phase, task_id=row.task_id, purpose=row.purpose.value, size=1,
                    max_steps=row.n_steps, state=IMPORTED, opened_s=store.now(), closed_s=store.now(),
                )
            )  # fmt: skip
            session.flush()
            session.add(
                RolloutTable(
                    rollout_id=ids["rollout_id"], group_id=ids["group_id"], phase=phase, task_id=row.task_id,
                    purpose=row.purpose.value, repeat=0, attempt=1, state="done", max_steps=row.n_steps,
                    sampling=row.steps[0].sampling.model_dump(),
                )
            )  # fmt: skip
            session.flush()
            versions = sorted({span[0] for step in row.steps for span in step.version_spans})
            told = {"from": origin, "rollout_id": row.rollout_id, "versions": versions, "digest": digest}
            changes: dict[str, Any] = {
                **ids,
                "phase": phase,
                "info": {**row.info, "imported": told},
                "steps": [_as_version_0(step) for step in row.steps],
            }
            store.add_trajectory(session, row.model_copy(update=changes))
            imported += 1
        if imported:
            store.record_event(session, "trajectories_imported", origin=origin, count=imported)
    return imported, left_out


def _refusal(
    store: TrajectoryStore, row: TrajectoryPayload, source: ImageStore, success_at: float, reward_source: RewardKind
) -> str | None:
    if row.purpose is not Purpose.TRAIN:
        return f"of purpose {row.purpose.value}"
    if not is_success(row.reward, success_at):
        return "not successful"
    if row.reward_source is not reward_source:
        return f"rewarded by {row.reward_source.value}"
    if not row.steps or not all(step.logprobs and step.version_spans for step in row.steps):
        return "without log-probs"
    if any(not any(step.token_ids) for step in row.steps):
        return "without tokens"
    try:
        task_family(row.task_id)
        store.check_task(row.task_id, Purpose.TRAIN)
    except StoreError as error:
        return str(error)
    if not _fits_model(store, row):
        return OTHER_MODEL
    hashes = [sha256 for step in row.steps for sha256 in step.image_sha256_new]
    try:
        for sha256 in dict.fromkeys(hashes):
            source.get(sha256)
    except BlobError:
        return "an image is missing or damaged"
    return None


def _fits_model(store: TrajectoryStore, row: TrajectoryPayload) -> bool:
    """Whether its prompts hold images as this run's model reads them; any other contradiction is told when it is stored."""
    before: StepBefore | None = None
    try:
        for step in row.steps:
            checked_columns(row.rollout_id, step, before, store.placeholders)
            before = StepBefore(step.segment, step.response_end)
    except ImagesUnfitError:
        return False
    return True


def _digest(row: TrajectoryPayload) -> str:
    digest = hashlib.sha256(row.task_id.encode())
    for step in row.steps:
        digest.update(f"|{step.prompt_new}|{step.token_ids}".encode())
    return digest.hexdigest()


def _phase(name: str, row: TrajectoryPayload, now_s: float) -> PhaseTable:
    spec = PhaseSpec(
        name=name,
        purpose=Purpose.TRAIN,
        task_ids=[row.task_id],
        rollouts_per_task=2,
        sampling=row.steps[0].sampling.model_copy(update={"top_p": 1.0}),
        max_steps=max(1, row.n_steps),
    )
    return PhaseTable(
        name=name, purpose=spec.purpose.value, spec=spec.model_dump(mode="json"), task_ids=[row.task_id], n_tasks=1,
        state="done", created_s=now_s,
    )  # fmt: skip


def _as_version_0(step: StreamStepPayload) -> StreamStepPayload:
    spans = [(IMPORT_VERSION, *span[1:]) for span in step.version_spans]
    return step.model_copy(update={"version_spans": spans})
