"""The database's statements about desktops. Rule: a row is written before the desktop is made and kept after it is gone."""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select, update

from dart_server import wire
from dart_server.database.bulk_statements import BoundStatement, StatementTemplate, table_of
from dart_server.database.models import DesktopRow
from dart_server.database.repository.base import NewEvent, Statements, shape_json
from dart_server.database.write_queue import WriteReceipt
from dart_server.records import Slot

GONE = wire.DesktopState.GONE.value
_TABLE = table_of(DesktopRow)
_INSERT = StatementTemplate(insert(_TABLE), rank=0)
_UPDATE = StatementTemplate(update(_TABLE).where(_TABLE.c.desktop_id == bindparam("row_key")), rank=2)


def desktop_row(slot: Slot, now: float) -> BoundStatement:
    """The statement that inserts or updates one slot's row; one that is gone ended `now`."""
    changing = {
        "state": slot.state.value,
        "fencing_token": slot.fencing_token,
        "reset_id": slot.reset_id,
        "lease_id": slot.lease_id,
        "snapshot_id": slot.snapshot_id,
        "setup_key": slot.setup_key,
        "ended_at": now if slot.state is wire.DesktopState.GONE else None,
    }
    if slot.has_row:
        return _UPDATE(row_key=slot.desktop_id, **changing)
    slot.has_row = True
    return _INSERT(
        desktop_id=slot.desktop_id,
        shape=shape_json(slot.shape),
        image_digest=slot.image_digest,
        provider=slot.provider,
        created_at=slot.created_at,
        **changing,
    )


class DesktopStatements(Statements):
    """Desktop slots."""

    def save_desktop(self, slot: Slot, note: NewEvent | None = None) -> WriteReceipt:
        """Insert or update one slot's row."""
        return self._write(desktop_row(slot, self._clock.time()), note)

    async def existing_desktops(self) -> list[Slot]:
        """Every slot that is not written down as gone."""
        return [
            Slot(
                desktop_id=row.desktop_id,
                shape=wire.DesktopShape.model_validate_json(row.shape),
                image_digest=row.image_digest,
                provider=row.provider,
                created_at=row.created_at,
                state=wire.DesktopState(row.state),
                fencing_token=row.fencing_token,
                reset_id=row.reset_id,
                lease_id=row.lease_id,
                snapshot_id=row.snapshot_id,
                setup_key=row.setup_key,
                has_row=True,
            )
            for row in await self._db.rows(select(DesktopRow.__table__).where(DesktopRow.state != GONE))
        ]
