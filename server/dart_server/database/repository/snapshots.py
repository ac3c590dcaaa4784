"""The database's statements about live snapshots. Rule: the intention is written before anything of a snapshot exists."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Executable, bindparam, insert, select, update

from dart_server import wire
from dart_server.database.bulk_statements import StatementTemplate, table_of
from dart_server.database.models import SnapshotRow
from dart_server.database.repository.base import NewEvent, Statements, shape_json
from dart_server.database.write_queue import WriteReceipt
from dart_server.records import Slot, SnapshotRecord

_TABLE = table_of(SnapshotRow)
_TOUCH = StatementTemplate(update(_TABLE).where(_TABLE.c.snapshot_id == bindparam("row_key")), rank=6)


class SnapshotStatements(Statements):
    """Live snapshots and what they stand on."""

    def add_snapshot(self, record: SnapshotRecord) -> WriteReceipt:
        """Write the intention to make a snapshot, before anything of it exists."""
        return self._write(
            insert(SnapshotRow).values(
                snapshot_id=record.snapshot_id,
                kind=record.kind,
                state="writing",
                name=record.name,
                owner=record.owner,
                setup_key=record.setup_key,
                shape=shape_json(record.shape),
                image_digest=record.image_digest,
                parent=record.parent,
                bytes=record.bytes,
                created_at=record.created_at,
                last_used_at=record.last_used_at,
                description=record.description,
            )
        )

    def finish_snapshot(self, record: SnapshotRecord, slot: Slot) -> WriteReceipt:
        """Write that a snapshot is whole, and how long its desktop stood still for it."""
        values = {
            "state": "ready",
            "bytes": record.bytes,
            "files_bytes": record.files_bytes,
            "processes": record.processes,
            "pause_s": record.pause_s,
        }
        data = {
            "snapshot_id": record.snapshot_id,
            "kind": record.kind,
            "name": record.name,
            "parent": record.parent,
            "bytes": record.bytes,
            "setup_key": record.setup_key,
            "pause_ms": None if record.pause_s is None else round(record.pause_s * 1000, 1),
        }
        note = NewEvent("snapshot_created", slot.desktop_id, slot.lease_id, slot.fencing_token, data)
        return self._write(_snapshot_update(record.snapshot_id, values), note)

    def touch_snapshot(self, record: SnapshotRecord) -> WriteReceipt:
        used = _TOUCH(row_key=record.snapshot_id, last_used_at=record.last_used_at)
        return self._write(used, key=f"used {record.snapshot_id}")

    def end_snapshot(
        self, snapshot_id: str, state: str, reason: str, quarantine_path: str | None = None
    ) -> WriteReceipt:
        """Write that a snapshot was deleted, or quarantined and kept at `quarantine_path`."""
        note = NewEvent(
            f"snapshot_{state}", data={"snapshot_id": snapshot_id, "reason": reason, "quarantine_path": quarantine_path}
        )
        values = {
            "state": state,
            "reason": reason[:500],
            "quarantine_path": quarantine_path,
            "ended_at": self._clock.time(),
        }
        return self._write(_snapshot_update(snapshot_id, values), note)

    async def stored_snapshots(self) -> list[SnapshotRecord]:
        """Every snapshot that is ready or quarantined."""
        states = [state.value for state in wire.SnapshotState]
        rows = await self._db.rows(select(SnapshotRow.__table__).where(SnapshotRow.state.in_(states)))
        return [
            SnapshotRecord(
                snapshot_id=row.snapshot_id,
                kind=row.kind,
                name=row.name,
                owner=row.owner,
                setup_key=row.setup_key,
                shape=wire.DesktopShape.model_validate_json(row.shape),
                image_digest=row.image_digest,
                parent=row.parent,
                bytes=row.bytes,
                created_at=row.created_at,
                last_used_at=row.last_used_at,
                description=row.description,
                files_bytes=row.files_bytes,
                processes=row.processes,
                pause_s=row.pause_s,
                state=wire.SnapshotState(row.state),
                reason=row.reason,
                quarantine_path=row.quarantine_path,
            )
            for row in rows
        ]

    async def snapshot_ancestry(self, snapshot_ids: set[str]) -> dict[str, tuple[str | None, int]]:
        """(parent, files_bytes) of these snapshots and of all they stand on, those that are gone included."""
        found: dict[str, tuple[str | None, int]] = {}
        wanted = set(snapshot_ids)
        while wanted:
            columns = select(SnapshotRow.snapshot_id, SnapshotRow.parent, SnapshotRow.files_bytes)
            rows = await self._db.rows(columns.where(SnapshotRow.snapshot_id.in_(wanted)))
            found |= {row.snapshot_id: (row.parent, row.files_bytes) for row in rows}
            wanted = {row.parent for row in rows if row.parent is not None} - found.keys()
        return found

    def discard_unfinished_snapshots(self) -> WriteReceipt:
        """Mark what was being written when a farm died as deleted."""
        return self._write(update(SnapshotRow).where(SnapshotRow.state == "writing").values(state="deleted"))


def _snapshot_update(snapshot_id: str, values: dict[str, Any]) -> Executable:
    return update(SnapshotRow).where(SnapshotRow.snapshot_id == snapshot_id).values(values)
