"""The ledger's statements that forget: what ended long ago and nobody stands on.

Rule: one call deletes a bounded number of rows, found without reading the others; the last event stays, so that event numbers never begin
again. Non-goals: when to forget (`farm`), keys and pools (a person deletes them).
"""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import aliased

from dart_server import wire
from dart_server.db import Receipt
from dart_server.models import DesktopRow, EventRow, LeaseRow, SetupRow, SnapshotRow
from dart_server.repository.base import Statements

GONE = wire.DesktopState.GONE.value
ACTIVE = wire.LeaseState.ACTIVE.value


class RetentionStatements(Statements):
    """Forgetting."""

    def forget_events(self, before: float, limit: int) -> Receipt:
        """Delete events that are older than `before` (seconds since 1970), looking at the `limit` oldest ones."""
        oldest = select(EventRow.id, EventRow.at).order_by(EventRow.id).limit(limit).subquery()
        last = select(func.max(EventRow.id)).scalar_subquery()
        old = select(oldest.c.id).where(oldest.c.at < before, oldest.c.id < last)
        return self._db.write(delete(EventRow).where(EventRow.id.in_(old)))

    def forget_leases(self, before: float, limit: int) -> Receipt:
        """Delete at most `limit` leases that ended before then, with the builds that they made."""
        ended = select(LeaseRow.lease_id).where(LeaseRow.state != ACTIVE, LeaseRow.ended_at < before)
        old = ended.order_by(LeaseRow.ended_at, LeaseRow.lease_id).limit(limit)
        builds = delete(SetupRow).where(SetupRow.lease_id.in_(old))
        return self._db.write(builds, delete(LeaseRow).where(LeaseRow.lease_id.in_(old)))

    def forget_desktops(self, before: float, limit: int) -> Receipt:
        """Delete at most `limit` desktops that were gone before then."""
        gone = select(DesktopRow.desktop_id).where(DesktopRow.state == GONE, DesktopRow.ended_at < before)
        old = gone.order_by(DesktopRow.ended_at, DesktopRow.desktop_id).limit(limit)
        return self._db.write(delete(DesktopRow).where(DesktopRow.desktop_id.in_(old)))

    def forget_snapshots(self, before: float, limit: int) -> Receipt:
        """Delete at most `limit` snapshots that were deleted before then and on which no other one and no desktop stands."""
        child = aliased(SnapshotRow)
        stands = select(child.snapshot_id).where(child.parent == SnapshotRow.snapshot_id).exists()
        used = select(DesktopRow.desktop_id).where(
            DesktopRow.snapshot_id == SnapshotRow.snapshot_id, DesktopRow.state != GONE
        )
        deleted = select(SnapshotRow.snapshot_id).where(
            SnapshotRow.state == "deleted",
            func.coalesce(SnapshotRow.ended_at, SnapshotRow.last_used_at) < before,
            ~stands,
            ~used.exists(),
        )
        old = deleted.order_by(SnapshotRow.snapshot_id).limit(limit)
        return self._db.write(delete(SnapshotRow).where(SnapshotRow.snapshot_id.in_(old)))
