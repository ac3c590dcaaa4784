"""The database's statements about events, the append-only history."""

from __future__ import annotations

from sqlalchemy import select

from dart_server import wire
from dart_server.clock import utc
from dart_server.database.models import EventRow, LeaseRow
from dart_server.database.repository.base import NewEvent, Statements
from dart_server.database.write_queue import WriteReceipt


class EventStatements(Statements):
    """The history."""

    def add_event(self, note: NewEvent) -> WriteReceipt:
        """Write an event that goes with no change of state."""
        return self._db.write(self._event(note), history=True)

    async def events(
        self,
        after: int,
        limit: int,
        *,
        before: int | None = None,
        kind: str | None = None,
        desktop_id: str | None = None,
        lease_id: str | None = None,
        owner: str | None = None,
    ) -> list[wire.Event]:
        """Events with an id greater than `after`, oldest first; with `before` the last `limit` ones below that id.

        `owner`: only those of that key's leases.
        """
        wanted = select(EventRow.__table__).where(EventRow.id > after).limit(limit)
        for column, value in ((EventRow.kind, kind), (EventRow.desktop_id, desktop_id), (EventRow.lease_id, lease_id)):
            if value is not None:
                wanted = wanted.where(column == value)
        if owner is not None:
            wanted = wanted.where(EventRow.lease_id.in_(select(LeaseRow.lease_id).where(LeaseRow.owner == owner)))
        if before is None:
            rows = await self._db.rows(wanted.order_by(EventRow.id))
        else:
            newest_first = await self._db.rows(wanted.where(EventRow.id < before).order_by(EventRow.id.desc()))
            rows = newest_first[::-1]
        return [wire.Event.model_validate({**row._mapping, "at": utc(row.at)}) for row in rows]
