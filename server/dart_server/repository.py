"""The ledger: the only place with SQL.

Rule: a state change and the event that tells of it are one write. What is written is what holds at the call; the returned receipt is
awaited by those for whom it must be on disk first. Nothing here decides anything. Non-goals: live state (that is `records`, in memory).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Executable, Row, insert, select, update

from dart_server import wire
from dart_server.clock import Clock, utc
from dart_server.db import Database, Receipt
from dart_server.models import DesktopRow, EventRow, KeyRow, LeaseRow, SetupRow, SnapshotRow
from dart_server.records import LeaseRecord, Slot, SnapshotRecord

GONE = wire.DesktopState.GONE.value
ACTIVE = wire.LeaseState.ACTIVE.value


@dataclass(frozen=True, slots=True)
class EventNote:
    """An event to be written: what happened, to what, and plain data about it."""

    kind: str
    desktop_id: str | None = None
    lease_id: str | None = None
    fence: int | None = None
    data: dict[str, Any] | None = None


def shape_text(shape: wire.DesktopShape) -> str:
    """Canonical JSON of a shape: equal shapes give equal text."""
    return json.dumps(shape.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


class Repository:
    """Reads and writes of the ledger."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db = database
        self._clock = clock

    def _event(self, note: EventNote) -> Executable:
        return insert(EventRow).values(
            at=self._clock.time(),
            kind=note.kind,
            desktop_id=note.desktop_id,
            lease_id=note.lease_id,
            fence=note.fence,
            data=note.data or {},
        )

    def _write(self, statement: Executable, note: EventNote | None = None) -> Receipt:
        return self._db.write(statement, self._event(note)) if note else self._db.write(statement)

    def add_event(self, note: EventNote) -> Receipt:
        return self._db.write(self._event(note))

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
        `owner`: only those of that key's leases."""
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

    # Desktops

    def save_desktop(self, slot: Slot, note: EventNote | None = None) -> Receipt:
        """Insert or update one slot's row."""
        return self._write(self._desktop(slot), note)

    def _desktop(self, slot: Slot) -> Executable:
        changing = {
            "state": slot.state.value,
            "fence": slot.fence,
            "lease_id": slot.lease_id,
            "snapshot_id": slot.snapshot_id,
            "setup_key": slot.setup_key,
        }
        if slot.recorded:
            return update(DesktopRow).where(DesktopRow.desktop_id == slot.desktop_id).values(changing)
        slot.recorded = True
        return insert(DesktopRow).values(
            desktop_id=slot.desktop_id,
            shape=shape_text(slot.shape),
            image_digest=slot.image_digest,
            provider=slot.provider,
            created_at=slot.created_at,
            **changing,
        )

    async def living_desktops(self) -> list[Slot]:
        """Every slot that is not written down as gone."""
        return [
            Slot(
                desktop_id=row.desktop_id,
                shape=wire.DesktopShape.model_validate_json(row.shape),
                image_digest=row.image_digest,
                provider=row.provider,
                created_at=row.created_at,
                state=wire.DesktopState(row.state),
                fence=row.fence,
                lease_id=row.lease_id,
                snapshot_id=row.snapshot_id,
                setup_key=row.setup_key,
                recorded=True,
            )
            for row in await self._db.rows(select(DesktopRow.__table__).where(DesktopRow.state != GONE))
        ]

    # Leases

    def add_lease(self, lease: LeaseRecord, slot: Slot) -> Receipt:
        """Write a grant: the lease, its slot and the event. Fails with IntegrityError when the client request id was used before."""
        row = insert(LeaseRow).values(
            lease_id=lease.lease_id,
            owner=lease.owner,
            client_request_id=lease.client_request_id,
            token_sha256=lease.token_sha256,
            state=lease.state.value,
            desktop_id=lease.desktop_id,
            fence=lease.fence,
            shape=shape_text(lease.shape),
            image_digest=lease.image_digest,
            setup_key=lease.setup_key,
            ttl_s=lease.ttl_s,
            created_at=lease.created_at,
            expires_at=lease.expires_at,
            ended_at=None,
            labels=lease.labels,
        )
        note = EventNote("lease_granted", slot.desktop_id, lease.lease_id, slot.fence, {"owner": lease.owner})
        return self._db.write(row, self._desktop(slot), self._event(note))

    def extend_lease(self, lease: LeaseRecord) -> Receipt:
        return self._write(
            update(LeaseRow).where(LeaseRow.lease_id == lease.lease_id).values(expires_at=lease.expires_at)
        )

    def move_lease(self, lease: LeaseRecord) -> Receipt:
        """Write which desktop a lease has now."""
        return self._write(
            update(LeaseRow).where(LeaseRow.lease_id == lease.lease_id).values(desktop_id=lease.desktop_id)
        )

    def end_lease(self, lease: LeaseRecord) -> Receipt:
        """Write the end of a lease with its final fence."""
        values = {
            "state": lease.state.value,
            "ended_at": self._clock.time(),
            "fence": lease.fence,
            "setup_key": lease.setup_key,
        }
        note = EventNote(f"lease_{lease.state.value}", lease.desktop_id, lease.lease_id, lease.fence)
        return self._write(update(LeaseRow).where(LeaseRow.lease_id == lease.lease_id).values(values), note)

    async def lease(self, lease_id: str) -> LeaseRecord | None:
        rows = await self._db.rows(select(LeaseRow.__table__).where(LeaseRow.lease_id == lease_id))
        return _lease(rows[0]) if rows else None

    async def active_leases(self) -> list[LeaseRecord]:
        return [_lease(row) for row in await self._db.rows(select(LeaseRow.__table__).where(LeaseRow.state == ACTIVE))]

    # Snapshots

    def add_snapshot(self, record: SnapshotRecord) -> Receipt:
        """Write the intention to make a snapshot, before anything of it exists."""
        return self._write(
            insert(SnapshotRow).values(
                snapshot_id=record.snapshot_id,
                kind=record.kind,
                state="writing",
                name=record.name,
                owner=record.owner,
                setup_key=record.setup_key,
                shape=shape_text(record.shape),
                image_digest=record.image_digest,
                parent=record.parent,
                bytes=record.bytes,
                created_at=record.created_at,
                last_used_at=record.last_used_at,
                description=record.description,
            )
        )

    def finish_snapshot(self, record: SnapshotRecord, slot: Slot) -> Receipt:
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
        note = EventNote("snapshot_made", slot.desktop_id, slot.lease_id, slot.fence, data)
        return self._write(_snapshot_update(record.snapshot_id, values), note)

    def touch_snapshot(self, record: SnapshotRecord) -> Receipt:
        return self._write(_snapshot_update(record.snapshot_id, {"last_used_at": record.last_used_at}))

    def end_snapshot(self, snapshot_id: str, state: str, reason: str, place: str | None = None) -> Receipt:
        """Write that a snapshot was deleted, or quarantined and kept at `place`."""
        note = EventNote(f"snapshot_{state}", data={"snapshot_id": snapshot_id, "reason": reason, "place": place})
        values = {"state": state, "reason": reason[:500], "place": place, "ended_at": self._clock.time()}
        return self._write(_snapshot_update(snapshot_id, values), note)

    async def kept_snapshots(self) -> list[SnapshotRecord]:
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
                place=row.place,
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

    def forget_unfinished_snapshots(self) -> Receipt:
        """Mark what was being written when a farm died as deleted."""
        return self._write(update(SnapshotRow).where(SnapshotRow.state == "writing").values(state="deleted"))

    # Set-ups

    def add_setup(self, owner: str, key: str, lease_id: str, grant_sha256: str) -> Receipt:
        row = insert(SetupRow).values(
            owner=owner,
            key=key,
            lease_id=lease_id,
            grant_sha256=grant_sha256,
            state="building",
            reason=None,
            started_at=self._clock.time(),
            ended_at=None,
        )
        return self._write(row, EventNote("setup_started", lease_id=lease_id, data={"key": key}))

    def end_setup(self, grant_sha256: str, state: str, key: str, lease_id: str, reason: str | None) -> Receipt:
        values = {"state": state, "reason": reason, "ended_at": self._clock.time()}
        note = EventNote(f"setup_{state}", lease_id=lease_id, data={"key": key, "reason": reason})
        return self._write(update(SetupRow).where(SetupRow.grant_sha256 == grant_sha256).values(values), note)

    def abandon_all_setups(self, reason: str) -> Receipt:
        """Free every builder of a former life of this farm."""
        values = {"state": "abandoned", "reason": reason, "ended_at": self._clock.time()}
        return self._write(update(SetupRow).where(SetupRow.state == "building").values(values))

    # Keys

    async def add_key(self, key_id: str, name: str, sha256: str, scope: str) -> None:
        """Insert a key; one with the same hash stays as it is."""
        if not await self._db.rows(select(KeyRow.key_id).where(KeyRow.sha256 == sha256)):
            values = {"key_id": key_id, "name": name, "sha256": sha256, "scope": scope}
            await self._write(insert(KeyRow).values(created_at=self._clock.time(), revoked_at=None, **values))

    async def key_by_hash(self, sha256: str) -> tuple[str, str] | None:
        """(key id, scope) of a key that was not revoked."""
        rows = await self._db.rows(
            select(KeyRow.key_id, KeyRow.scope).where(KeyRow.sha256 == sha256, KeyRow.revoked_at.is_(None))
        )
        return (rows[0].key_id, rows[0].scope) if rows else None


def _snapshot_update(snapshot_id: str, values: dict[str, Any]) -> Executable:
    return update(SnapshotRow).where(SnapshotRow.snapshot_id == snapshot_id).values(values)


def _lease(row: Row[Any]) -> LeaseRecord:
    return LeaseRecord(
        lease_id=row.lease_id,
        owner=row.owner,
        client_request_id=row.client_request_id,
        token_sha256=row.token_sha256,
        shape=wire.DesktopShape.model_validate_json(row.shape),
        image_digest=row.image_digest,
        setup_key=row.setup_key,
        ttl_s=row.ttl_s,
        created_at=row.created_at,
        expires_at=row.expires_at,
        deadline_s=0.0,
        labels=dict(row.labels),
        slot=None,
        desktop_id=row.desktop_id,
        fence=row.fence,
        state=wire.LeaseState(row.state),
    )
