"""The published policies in the trajectory database.

Role: registers versions, and reads them for whoever serves or asks for one. Rule: a version belongs to one path and to one digest for
ever. Non-goals: what a new version means for rollouts and groups (`dart_train.scheduling`), which versions are lost
(`dart_train.curation.lineage`).
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dart_agent.data_client.wire import VersionRecord, VersionReply
from dart_agent.errors import StoreError
from dart_train.curation.lineage import lost_versions
from dart_train.data_manager import queries
from dart_train.data_manager.store.models import VersionTable
from dart_train.data_manager.store.trajectories import TrajectoryStore


def register(session: Session, store: TrajectoryStore, record: VersionRecord) -> bool:
    """Register a published policy, or compare it with what is registered.

    Args:
        session: The transaction.
        store: The trajectory database.
        record: The version with its path and its identity.

    Returns:
        Whether the version was new.

    Raises:
        StoreError: The version is registered with another path or with other weights.
    """
    known = session.get(VersionTable, record.version)
    if known is None:
        _add(session, store, record)
        return True
    if known.path != record.path:
        raise StoreError(f"version {record.version} is registered with another path: {known.path}")
    if known.digest is None:
        known.digest, known.parent = record.digest, record.parent
    elif record.digest is not None and known.digest != record.digest:
        raise StoreError(f"version {record.version} is registered with other weights: {known.digest}")
    return False


def read(session: Session, version: int) -> VersionReply:
    """Read a version.

    Args:
        session: The transaction.
        version: The version.

    Returns:
        The version; empty where it was never published.
    """
    return _reply(session.get(VersionTable, version))


def latest(session: Session) -> VersionReply:
    """Read the newest version.

    Args:
        session: The transaction.

    Returns:
        The version; empty where none was published.
    """
    return _reply(_newest(session))


def _newest(session: Session) -> VersionTable | None:
    newest = session.scalar(select(func.max(VersionTable.version)))
    return None if newest is None else session.get(VersionTable, newest)


def _reply(row: VersionTable | None) -> VersionReply:
    if row is None:
        return VersionReply(policy=None)
    return VersionReply(policy=VersionRecord(version=row.version, path=row.path, digest=row.digest, parent=row.parent))


def _add(session: Session, store: TrajectoryStore, record: VersionRecord) -> None:
    """Add a version, and record which versions its weights do not descend from, where these are new."""
    before = _newest(session)
    known_lost = frozenset() if before is None else lost_versions(queries.version_identities(session), before.digest)
    session.add(
        VersionTable(
            version=record.version,
            path=record.path,
            digest=record.digest,
            parent=record.parent,
            created_s=store.now(),
        )
    )
    session.flush()
    store.record_event(session, "version_published", version=record.version)
    lost = lost_versions(queries.version_identities(session), record.digest) - known_lost
    if lost:
        store.record_event(session, "versions_lost", version=record.version, lost=sorted(lost))
