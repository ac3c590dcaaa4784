"""The ledger: the only place with SQL.

Rule: one method, one transaction; a state change and the event that tells of it are written together. Nothing here decides anything.
Non-goals: keeping live state (that is `records`, in memory).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from dart_server import wire
from dart_server.clock import Clock, utc
from dart_server.db import Database
from dart_server.models import DesktopRow, EventRow, KeyRow, LeaseRow, SetupRow, SnapshotRow
from dart_server.records import LeaseRecord, Slot, SnapshotKind, SnapshotRecord

GONE = wire.DesktopState.GONE.value


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

    def _note(self, session: AsyncSession, note: EventNote | None) -> None:
        if note is not None:
            session.add(
                EventRow(
                    at=self._clock.time(),
                    kind=note.kind,
                    desktop_id=note.desktop_id,
                    lease_id=note.lease_id,
                    fence=note.fence,
                    data=note.data or {},
                )
            )

    async def add_event(self, note: EventNote) -> None:
        async with self._db.write() as session:
            self._note(session, note)

    async def events(self, after: int, limit: int) -> list[wire.Event]:
        """Events with an id greater than `after`, oldest first."""
        async with self._db.read() as session:
            rows = await session.scalars(select(EventRow).where(EventRow.id > after).order_by(EventRow.id).limit(limit))
            return [
                wire.Event(
                    id=row.id,
                    at=utc(row.at),
                    kind=row.kind,
                    desktop_id=row.desktop_id,
                    lease_id=row.lease_id,
                    fence=row.fence,
                    data=row.data,
                )
                for row in rows
            ]

    # Desktops

    async def save_desktop(self, slot: Slot, note: EventNote | None = None) -> None:
        """Insert or update one slot's row."""
        async with self._db.write() as session:
            await session.merge(_desktop_row(slot))
            self._note(session, note)

    async def living_desktops(self) -> list[Slot]:
        """Every slot that is not written down as gone."""
        async with self._db.read() as session:
            rows = await session.scalars(select(DesktopRow).where(DesktopRow.state != GONE))
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
                )
                for row in rows
            ]

    # Leases

    async def add_lease(self, lease: LeaseRecord, slot: Slot) -> None:
        """Write a grant: the lease, its slot and the event, together."""
        async with self._db.write() as session:
            session.add(
                LeaseRow(
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
            )
            await session.merge(_desktop_row(slot))
            self._note(
                session, EventNote("lease_granted", slot.desktop_id, lease.lease_id, slot.fence, {"owner": lease.owner})
            )

    async def extend_lease(self, lease: LeaseRecord) -> None:
        async with self._db.write() as session:
            await session.execute(
                update(LeaseRow).where(LeaseRow.lease_id == lease.lease_id).values(expires_at=lease.expires_at)
            )

    async def end_lease(self, lease: LeaseRecord) -> None:
        """Write the end of a lease with its final fence."""
        async with self._db.write() as session:
            await session.execute(
                update(LeaseRow)
                .where(LeaseRow.lease_id == lease.lease_id)
                .values(
                    state=lease.state.value, ended_at=self._clock.time(), fence=lease.fence, setup_key=lease.setup_key
                )
            )
            self._note(session, EventNote(f"lease_{lease.state.value}", lease.desktop_id, lease.lease_id, lease.fence))

    async def lease(self, lease_id: str) -> LeaseRecord | None:
        async with self._db.read() as session:
            row = await session.get(LeaseRow, lease_id)
            return _lease(row) if row else None

    async def lease_by_request(self, owner: str, client_request_id: str) -> LeaseRecord | None:
        async with self._db.read() as session:
            query = select(LeaseRow).where(LeaseRow.owner == owner, LeaseRow.client_request_id == client_request_id)
            row = await session.scalar(query)
            return _lease(row) if row else None

    async def active_leases(self) -> list[LeaseRecord]:
        async with self._db.read() as session:
            rows = await session.scalars(select(LeaseRow).where(LeaseRow.state == wire.LeaseState.ACTIVE.value))
            return [_lease(row) for row in rows]

    # Snapshots

    async def add_snapshot(self, record: SnapshotRecord) -> None:
        """Write the intention to make a snapshot, before anything of it exists."""
        async with self._db.write() as session:
            session.add(_snapshot_row(record, "writing"))

    async def finish_snapshot(self, record: SnapshotRecord, desktop_id: str) -> None:
        async with self._db.write() as session:
            await session.merge(_snapshot_row(record, "ready"))
            data = {
                "snapshot_id": record.snapshot_id,
                "kind": record.kind,
                "bytes": record.bytes,
                "setup_key": record.setup_key,
            }
            self._note(session, EventNote("snapshot_made", desktop_id, data=data))

    async def touch_snapshot(self, record: SnapshotRecord) -> None:
        async with self._db.write() as session:
            await session.execute(
                update(SnapshotRow)
                .where(SnapshotRow.snapshot_id == record.snapshot_id)
                .values(last_used_at=record.last_used_at)
            )

    async def end_snapshot(self, snapshot_id: str, state: str, reason: str) -> None:
        """Write that a snapshot was deleted or quarantined."""
        async with self._db.write() as session:
            await session.execute(update(SnapshotRow).where(SnapshotRow.snapshot_id == snapshot_id).values(state=state))
            self._note(session, EventNote(f"snapshot_{state}", data={"snapshot_id": snapshot_id, "reason": reason}))

    async def ready_snapshots(self) -> list[SnapshotRecord]:
        async with self._db.read() as session:
            rows = await session.scalars(select(SnapshotRow).where(SnapshotRow.state == "ready"))
            return [_snapshot(row) for row in rows]

    async def forget_unfinished_snapshots(self) -> None:
        """Mark what was being written when a farm died as deleted."""
        async with self._db.write() as session:
            await session.execute(update(SnapshotRow).where(SnapshotRow.state == "writing").values(state="deleted"))

    # Set-ups

    async def add_setup(self, owner: str, key: str, lease_id: str, grant_sha256: str) -> None:
        async with self._db.write() as session:
            session.add(
                SetupRow(
                    owner=owner,
                    key=key,
                    lease_id=lease_id,
                    grant_sha256=grant_sha256,
                    state="building",
                    reason=None,
                    started_at=self._clock.time(),
                    ended_at=None,
                )
            )
            self._note(session, EventNote("setup_started", lease_id=lease_id, data={"key": key}))

    async def end_setup(self, grant_sha256: str, state: str, key: str, lease_id: str, reason: str | None) -> None:
        async with self._db.write() as session:
            await session.execute(
                update(SetupRow)
                .where(SetupRow.grant_sha256 == grant_sha256)
                .values(state=state, reason=reason, ended_at=self._clock.time())
            )
            self._note(session, EventNote(f"setup_{state}", lease_id=lease_id, data={"key": key, "reason": reason}))

    async def abandon_all_setups(self, reason: str) -> None:
        """Free every builder of a former life of this farm."""
        async with self._db.write() as session:
            await session.execute(
                update(SetupRow)
                .where(SetupRow.state == "building")
                .values(state="abandoned", reason=reason, ended_at=self._clock.time())
            )

    # Keys

    async def add_key(self, key_id: str, name: str, sha256: str, scope: str) -> None:
        """Insert a key; one with the same hash stays as it is."""
        async with self._db.write() as session:
            if await session.scalar(select(KeyRow).where(KeyRow.sha256 == sha256)) is None:
                row = KeyRow(
                    key_id=key_id, name=name, sha256=sha256, scope=scope, created_at=self._clock.time(), revoked_at=None
                )
                session.add(row)

    async def key_by_hash(self, sha256: str) -> tuple[str, str] | None:
        """(key id, scope) of a key that was not revoked."""
        async with self._db.read() as session:
            row = await session.scalar(select(KeyRow).where(KeyRow.sha256 == sha256, KeyRow.revoked_at.is_(None)))
            return (row.key_id, row.scope) if row else None

    async def key_names(self) -> Sequence[tuple[str, str, str]]:
        """(key id, name, scope) of every key that was not revoked."""
        async with self._db.read() as session:
            rows = await session.scalars(select(KeyRow).where(KeyRow.revoked_at.is_(None)).order_by(KeyRow.created_at))
            return [(row.key_id, row.name, row.scope) for row in rows]


def _desktop_row(slot: Slot) -> DesktopRow:
    return DesktopRow(
        desktop_id=slot.desktop_id,
        shape=shape_text(slot.shape),
        image_digest=slot.image_digest,
        provider=slot.provider,
        state=slot.state.value,
        fence=slot.fence,
        lease_id=slot.lease_id,
        snapshot_id=slot.snapshot_id,
        setup_key=slot.setup_key,
        created_at=slot.created_at,
    )


def _lease(row: LeaseRow) -> LeaseRecord:
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


def _snapshot_row(record: SnapshotRecord, state: str) -> SnapshotRow:
    return SnapshotRow(
        snapshot_id=record.snapshot_id,
        kind=record.kind,
        state=state,
        name=record.name,
        owner=record.owner,
        setup_key=record.setup_key,
        shape=shape_text(record.shape),
        image_digest=record.image_digest,
        parent=record.parent,
        bytes=record.bytes,
        created_at=record.created_at,
        last_used_at=record.last_used_at,
    )


def _snapshot(row: SnapshotRow) -> SnapshotRecord:
    kinds: dict[str, SnapshotKind] = {"booted": "booted", "setup": "setup", "user": "user"}
    return SnapshotRecord(
        snapshot_id=row.snapshot_id,
        kind=kinds[row.kind],
        name=row.name,
        owner=row.owner,
        setup_key=row.setup_key,
        shape=wire.DesktopShape.model_validate_json(row.shape),
        image_digest=row.image_digest,
        parent=row.parent,
        bytes=row.bytes,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
    )
