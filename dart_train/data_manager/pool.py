"""The experience pool of the trajectory database: which stored success completes a group in which every rollout failed.

Role: reads the successes of a task with their ages, contents and uses, and lets `dart_train.curation.experience_pool` choose. Rule: a use
is a batch that the trainer has or has finished; a success with tokens of a lost future, or whose images were deleted, is none. Non-goals:
the rule itself, forming batches.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlalchemy import func, literal_column, select
from sqlalchemy.orm import Session

from dart_agent.data_client.image_store import BlobStorage
from dart_agent.types import Purpose
from dart_train.curation.experience_pool import ExperiencePoolSettings, StoredSuccess, select_success
from dart_train.curation.lineage import lost_versions
from dart_train.data_manager import queries
from dart_train.data_manager.store.models import (
    BatchMemberTable,
    BatchTable,
    QuarantinedStepTable,
    StepTable,
    TrajectoryTable,
)
from dart_train.scheduling.settings import CurationSettings

POOL = "pool"
"""Source of a batch member that completes a group."""
_POOLED = (
    select(BatchMemberTable)
    .join(BatchTable, BatchTable.batch_id == BatchMemberTable.batch_id)
    .where(BatchMemberTable.source == literal_column(f"'{POOL}'"), BatchTable.state.in_(("issued", "done")))
)
SUCCESS_WINDOW = 64
"""Latest successes of a task that are looked at."""


def choose_success(
    session: Session,
    images: BlobStorage,
    task_id: str,
    settings: ExperiencePoolSettings,
    *,
    success_at: float,
    version: int,
    lost: Collection[int],
    batch_groups: Collection[str],
    pooled: Collection[str],
    recheck_images: bool = True,
) -> str | None:
    """Choose a stored success of a task.

    Args:
        session: The transaction.
        images: Where images are stored.
        task_id: The task.
        settings: Settings of the experience pool.
        success_at: Least reward of a success.
        version: Present version of the trainer.
        lost: Versions that are no ancestors of the trainer's weights.
        batch_groups: The groups of the batch that is formed; what their own members sampled is in it already.
        pooled: Rollouts that complete other groups of the batch.
        recheck_images: Whether the storage is asked for images that it is remembered to have, too: another process may have deleted them.

    Returns:
        Its rollout, None where none may be used.
    """
    if not settings.enabled:
        return None
    query = (
        select(
            TrajectoryTable.rollout_id,
            TrajectoryTable.group_id,
            TrajectoryTable.version_min,
            TrajectoryTable.version_max,
        )
        .where(
            TrajectoryTable.purpose == Purpose.TRAIN.value,
            TrajectoryTable.task_id == task_id,
            TrajectoryTable.reward >= success_at,
            TrajectoryTable.version_min.is_not(None),
            TrajectoryTable.rollout_id.not_in(select(QuarantinedStepTable.rollout_id)),
        )
        .order_by(TrajectoryTable.seq.desc())
        .limit(SUCCESS_WINDOW)
    )
    rows = session.execute(query).all()
    if not rows:
        return None
    contents = _contents(session, [row.rollout_id for row in rows])
    uses = _uses(session, [row.rollout_id for row in rows])
    taken = {contents[row.rollout_id] for row in rows if row.group_id in batch_groups or row.rollout_id in pooled}
    successes = [
        StoredSuccess(row.rollout_id, contents[row.rollout_id], version - row.version_min, uses.get(row.rollout_id, 0))
        for row in rows
        if not any(row.version_min <= each <= row.version_max for each in lost)
    ]

    def has_images(success: StoredSuccess) -> bool:
        return not images.missing(_images(session, success.rollout_id), recheck=recheck_images)

    chosen = select_success(successes, settings, taken, has_images)
    return None if chosen is None else chosen.rollout_id


def has_success(session: Session, images: BlobStorage, task_id: str, curation: CurationSettings, version: int) -> bool:
    """Say whether a stored success may complete a group of a task in which every rollout failed.

    A batch decides again when it is formed: the success may be in it already, too old by then, or without images. Images that the storage
    is remembered to have count here, because a look at remote storage delays all other operations.

    Args:
        session: The transaction.
        images: Where images are stored.
        task_id: The task.
        curation: Settings of the curation.
        version: Newest version.

    Returns:
        True where there is one.
    """
    identities = queries.version_identities(session)
    found = choose_success(
        session,
        images,
        task_id,
        curation.experience_pool,
        success_at=curation.success_at,
        version=version,
        lost=lost_versions(identities, identities[-1].digest) if identities else (),
        batch_groups=(),
        pooled=(),
        recheck_images=False,
    )
    return found is not None


def count_uses(session: Session, states: Collection[str]) -> int:
    """Count how often stored successes completed groups.

    Args:
        session: The transaction.
        states: States of the batches that count.

    Returns:
        Number of groups, over all batches that the trainer has or has finished and that are in these states.
    """
    query = _POOLED.with_only_columns(BatchMemberTable.batch_id, BatchMemberTable.group_id).distinct()
    query = query.where(BatchTable.state.in_(states))
    return session.scalar(select(func.count()).select_from(query.subquery())) or 0


def _contents(session: Session, rollout_ids: Sequence[str]) -> dict[str, str]:
    """A digest of the sampled tokens of each rollout."""
    digests: defaultdict[str, hashlib._Hash] = defaultdict(hashlib.sha256)
    query = select(StepTable.rollout_id, StepTable.token_ids).where(StepTable.rollout_id.in_(rollout_ids))
    for rollout_id, token_ids in session.execute(query.order_by(StepTable.rollout_id, StepTable.index)):
        digests[rollout_id].update(len(token_ids).to_bytes(4, "little") + token_ids)
    return {rollout_id: digests[rollout_id].hexdigest() for rollout_id in rollout_ids}


def _images(session: Session, rollout_id: str) -> list[str]:
    """The images of all steps of a rollout."""
    query = select(StepTable.image_sha256_new).where(StepTable.rollout_id == rollout_id)
    return [sha256 for hashes in session.scalars(query) for sha256 in hashes]


def _uses(session: Session, rollout_ids: Sequence[str]) -> dict[str, int]:
    """In how many batches each rollout completed a group."""
    query = _POOLED.with_only_columns(
        BatchMemberTable.rollout_id, func.count(BatchMemberTable.batch_id.distinct())
    ).where(BatchMemberTable.rollout_id.in_(rollout_ids))
    query = query.group_by(BatchMemberTable.rollout_id)
    return {rollout_id: uses for rollout_id, uses in session.execute(query)}
