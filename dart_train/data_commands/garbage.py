"""Garbage collection of images: blobs that no stored step needs are deleted.

Role: decide which blobs are needed, and delete the others. Rule: an image is needed by every stored step of a rollout that is unfinished or
parked, whose group is open, ready or with the trainer, that is in an issued batch, or that is kept; a blob that was written or refreshed
within `GRACE_S` is left alone, because the step that names it may not be stored yet. Blobs are listed before the database is read, and
looked at again just before they are deleted. Nothing in the database changes, so an interrupted collection is simply run again.
Non-goals: trajectories, which are never deleted.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_agent.data_client.image_store import BlobStorage
from dart_agent.types import Purpose
from dart_envs.success import SUCCESS_AT
from dart_train.data_manager.recovery import LIVE_GROUP_STATES
from dart_train.data_manager.store.models import BatchMemberTable, BatchTable, GroupTable, StepTable, TrajectoryTable

GRACE_S = 7200.0
"""Longer than a step waits to be stored, and than `dart_agent.data_client.image_store.REFRESH_S`."""
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ImageRetention:
    """Which finished trajectories keep their images.

    Attributes:
        keep_days: Images of trajectories that are older may go; None: all are kept, and only blobs that no step names go.
        keep_successes: Whether successful training trajectories are kept for ever: the experience pool may need them.
        keep_demonstrations: Whether demonstrations are kept for ever.
        success_at: Least reward of a success.
    """

    keep_days: float | None = None
    keep_successes: bool = True
    keep_demonstrations: bool = True
    success_at: float = SUCCESS_AT


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a collection did, or would do.

    Attributes:
        kept: Blobs that are needed.
        kept_bytes: Their length.
        young: Blobs that nobody needs but that are within the grace period.
        deleted: Blobs that were deleted.
        deleted_bytes: Their length.
    """

    kept: int = 0
    kept_bytes: int = 0
    young: int = 0
    deleted: int = 0
    deleted_bytes: int = 0


def expired_rollouts(session: Session, retention: ImageRetention, now_s: float) -> set[str]:
    """Find the rollouts whose images may go.

    Args:
        session: The transaction.
        retention: What is kept.
        now_s: Present time, in seconds since the epoch.

    Returns:
        Their ids.
    """
    if retention.keep_days is None:
        return set()
    live = select(GroupTable.group_id).where(GroupTable.state.in_(LIVE_GROUP_STATES))
    issued = (
        select(BatchMemberTable.rollout_id)
        .join(BatchTable, BatchTable.batch_id == BatchMemberTable.batch_id)
        .where(BatchTable.state == "issued")
    )
    query = select(TrajectoryTable.rollout_id).where(
        TrajectoryTable.stored_s < now_s - retention.keep_days * DAY_S,
        TrajectoryTable.group_id.not_in(live),
        TrajectoryTable.rollout_id.not_in(issued),
    )
    if retention.keep_successes:
        query = query.where(
            (TrajectoryTable.purpose != Purpose.TRAIN.value)
            | TrajectoryTable.reward.is_(None)
            | (TrajectoryTable.reward < retention.success_at)
        )
    if retention.keep_demonstrations:
        query = query.where(TrajectoryTable.purpose != Purpose.DEMO.value)
    return set(session.scalars(query))


def needed_images(session: Session, expired: Set[str]) -> set[str]:
    """Find the images that stored steps need.

    Args:
        session: The transaction.
        expired: Rollouts whose steps need none any more.

    Returns:
        Content hashes.
    """
    needed: set[str] = set()
    query = select(StepTable.rollout_id, StepTable.image_sha256_new).execution_options(yield_per=1000)
    for rollout_id, hashes in session.execute(query):
        if rollout_id not in expired:
            needed.update(hashes)
    return needed


def collect_garbage(
    session: Session, images: BlobStorage, retention: ImageRetention, now_s: float, *, dry_run: bool
) -> GarbageReport:
    """Delete the images that nobody needs.

    Args:
        session: A transaction on the database that has read nothing yet.
        images: The blobs.
        retention: What is kept.
        now_s: Present time, in seconds since the epoch.
        dry_run: Whether nothing is deleted.

    Returns:
        What was deleted, or would be.
    """
    blobs = list(images.list_blobs())
    needed = needed_images(session, expired_rollouts(session, retention, now_s))
    before_s = now_s - GRACE_S
    kept = kept_bytes = young = deleted = deleted_bytes = 0
    for blob in blobs:
        if blob.sha256 in needed:
            kept, kept_bytes = kept + 1, kept_bytes + blob.size_bytes
        elif blob.modified_s > before_s:
            young += 1
        elif dry_run or images.delete(blob.sha256, before_s):
            deleted, deleted_bytes = deleted + 1, deleted_bytes + blob.size_bytes
    return GarbageReport(kept, kept_bytes, young, deleted, deleted_bytes)
