"""The database's statements that forget: what ended long ago and nobody stands on.

Rule: one call deletes a bounded number of rows, found without reading the others; the last event stays, so that event numbers never begin
again. Nothing that has ended is remembered longer than the events reach back. Non-goals: when to forget (`retention`), pools (a person
deletes them).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, or_, select
from sqlalchemy.orm import aliased

from dart_server import wire
from dart_server.database.models import DesktopRow, EventRow, KeyRow, LeaseRow, SetupRow, SnapshotRow
from dart_server.database.repository.base import Statements
from dart_server.database.write_queue import WriteReceipt

GONE = wire.DesktopState.GONE.value
ACTIVE = wire.LeaseState.ACTIVE.value
ADMIN = wire.KeyScope.ADMIN.value


class RetentionStatements(Statements):
    """Forgetting."""

    async def has_expired_events(self, before: float, max_events: int | None) -> bool:
        """Whether there is an event for `delete_old_events` to delete; costs next to nothing."""
        first = select(EventRow.id, EventRow.at).order_by(EventRow.id).limit(1)
        last = select(func.max(EventRow.id))
        found = await self._db.rows(first)
        if not found or found[0].at < before:
            return bool(found)
        return max_events is not None and found[0].id <= (await self._db.rows(last))[0][0] - max_events

    def delete_old_events(self, before: float, limit: int, *, max_events: int | None = None) -> WriteReceipt:
        """Delete events that are older than `before` (seconds since 1970), or not among the last `max_events`, of the `limit` oldest
        ones."""
        oldest = select(EventRow.id, EventRow.at).order_by(EventRow.id).limit(limit).subquery()
        last = select(func.max(EventRow.id)).scalar_subquery()
        too_old: ColumnElement[bool] = oldest.c.at < before
        if max_events is not None:
            too_old = or_(too_old, oldest.c.id <= last - max_events)
        old = select(oldest.c.id).where(too_old, oldest.c.id < last)
        return self._db.write(delete(EventRow).where(EventRow.id.in_(old)))

    def delete_old_leases(self, before: float, limit: int) -> WriteReceipt:
        """Delete at most `limit` leases that ended before then, with the builds that they made."""
        ended = select(LeaseRow.lease_id).where(LeaseRow.state != ACTIVE, self._past(LeaseRow.ended_at, before))
        old = ended.order_by(LeaseRow.ended_at, LeaseRow.lease_id).limit(limit)
        builds = delete(SetupRow).where(SetupRow.lease_id.in_(old))
        return self._db.write(builds, delete(LeaseRow).where(LeaseRow.lease_id.in_(old)))

    def delete_old_desktops(self, before: float, limit: int) -> WriteReceipt:
        """Delete at most `limit` desktops that were gone before then; those that are not have no end."""
        gone = select(DesktopRow.desktop_id).where(self._past(DesktopRow.ended_at, before))
        old = gone.order_by(DesktopRow.ended_at, DesktopRow.desktop_id).limit(limit)
        return self._db.write(delete(DesktopRow).where(DesktopRow.desktop_id.in_(old)))

    def delete_old_snapshots(self, before: float, limit: int) -> WriteReceipt:
        """Delete at most `limit` snapshots that were deleted before then and on which no other one and no desktop stands."""
        child = aliased(SnapshotRow)
        stands = select(child.snapshot_id).where(child.parent == SnapshotRow.snapshot_id).exists()
        used = select(DesktopRow.desktop_id).where(
            DesktopRow.snapshot_id == SnapshotRow.snapshot_id, DesktopRow.state != GONE
        )
        deleted = select(SnapshotRow.snapshot_id).where(
            SnapshotRow.state == "deleted",
            self._past(func.coalesce(SnapshotRow.ended_at, SnapshotRow.last_used_at), before),
            ~stands,
            ~used.exists(),
        )
        old = deleted.order_by(SnapshotRow.snapshot_id).limit(limit)
        return self._db.write(delete(SnapshotRow).where(SnapshotRow.snapshot_id.in_(old)))

    def delete_old_keys(self, before: float, limit: int) -> WriteReceipt:
        """Delete at most `limit` keys that ended before then. Those of scope admin stay: a start makes the farm's own anew."""
        ended = or_(self._past(KeyRow.revoked_at, before), self._past(KeyRow.expires_at, before))
        old = select(KeyRow.key_id).where(KeyRow.scope != ADMIN, ended).order_by(KeyRow.key_id).limit(limit)
        return self._db.write(delete(KeyRow).where(KeyRow.key_id.in_(old)))

    def _past(self, ended_at: Any, before: float) -> ColumnElement[bool]:
        """Whether it ended before then, or before the oldest event that is remembered."""
        first = select(EventRow.at).order_by(EventRow.id).limit(1).scalar_subquery()
        # One bound, so that an index on the column finds what lies before it.
        bound = case(((first > before) & (first <= self._clock.time()), first), else_=before)
        past: ColumnElement[bool] = ended_at < bound
        return past
