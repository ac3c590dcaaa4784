"""The database's statements about leases. Rule: a grant, its slot and its event are one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, update

from dart_server import wire
from dart_server.database.bulk_statements import BoundStatement, StatementTemplate, table_of
from dart_server.database.models import LeaseRow
from dart_server.database.repository.base import NewEvent, Statements, shape_json
from dart_server.database.repository.desktops import desktop_row
from dart_server.database.write_queue import WriteReceipt
from dart_server.records import LeaseRecord, Slot

ACTIVE = wire.LeaseState.ACTIVE.value
_TABLE = table_of(LeaseRow)
_INSERT = StatementTemplate(insert(_TABLE), rank=1)
_ITS_ROW = update(_TABLE).where(_TABLE.c.lease_id == bindparam("row_key"))
_EXTEND, _MOVE, _END = (StatementTemplate(_ITS_ROW, rank) for rank in (3, 4, 5))


class LeaseStatements(Statements):
    """Claims, from their grant to their end."""

    async def add_lease(self, lease: LeaseRecord, slot: Slot) -> None:
        """Write one grant, as `add_leases` does."""
        await self.add_leases([(lease, slot)])

    async def add_leases(self, grants: Sequence[tuple[LeaseRecord, Slot]]) -> None:
        """Write the grants of one claim, all or none: leases, their slots and the events.

        Raises IntegrityError when a client request id was used before, `DatabaseUnavailableError` when the database is away: then no
        grant stands, now or later.
        """
        statements: list[BoundStatement] = []
        new = [slot for _, slot in grants if not slot.has_row]
        for lease, slot in grants:
            note = NewEvent(
                "lease_granted", slot.desktop_id, lease.lease_id, slot.fencing_token, {"owner": lease.owner}
            )
            statements += [_insert(lease), desktop_row(slot, lease.created_at), self._event(note)]
        receipt = self._db.write(*statements)
        try:
            await self._db.wait_committed(receipt)
        except BaseException:  # cancelled too: a grant that nobody was told must not stand later; raised again
            if self._db.cancel_write(receipt):
                for slot in new:
                    slot.has_row = False
            else:
                for lease, _ in grants:
                    if lease.state is wire.LeaseState.ACTIVE:  # whoever ended it meanwhile has written that
                        lease.state = wire.LeaseState.RELEASED
                        self.end_lease(lease)
            raise

    def extend_lease(self, lease: LeaseRecord) -> WriteReceipt:
        """Write until when a lease lasts, and its time to live. While it waits to be written, a later one takes its place."""
        extended = _EXTEND(row_key=lease.lease_id, expires_at=lease.expires_at, ttl_s=lease.ttl_s)
        return self._write(extended, key=f"until {lease.lease_id}")

    def move_lease(self, lease: LeaseRecord, slot: Slot, former: Slot, note: NewEvent | None = None) -> WriteReceipt:
        """Write that a lease goes on in another desktop, and that the former one is nobody's; `note`: what became of that one."""
        now = self._clock.time()
        moved = _MOVE(row_key=lease.lease_id, desktop_id=slot.desktop_id)
        told = NewEvent("lease_moved", slot.desktop_id, lease.lease_id, slot.fencing_token, {"from": former.desktop_id})
        events = [self._event(event) for event in (note, told) if event is not None]
        return self._db.write(moved, desktop_row(slot, now), desktop_row(former, now), *events)

    def end_lease(self, lease: LeaseRecord, reason: str | None = None) -> WriteReceipt:
        """Write the end of a lease with its final fencing_token; its event tells the reason when it is not the lease's own time."""
        values = {
            "state": lease.state.value,
            "ended_at": self._clock.time(),
            "fencing_token": lease.fencing_token,
            "setup_key": lease.setup_key,
        }
        data = {} if reason is None else {"reason": reason}
        note = NewEvent(f"lease_{lease.state.value}", lease.desktop_id, lease.lease_id, lease.fencing_token, data)
        return self._write(_END(row_key=lease.lease_id, **values), note)

    async def lease(self, lease_id: str) -> LeaseRecord | None:
        rows = await self._db.rows(select(LeaseRow.__table__).where(LeaseRow.lease_id == lease_id))
        return _lease(rows[0]) if rows else None

    async def active_leases(self) -> list[LeaseRecord]:
        """Every lease that was not ended, oldest first."""
        active = select(LeaseRow.__table__).where(LeaseRow.state == ACTIVE)
        rows = await self._db.rows(active.order_by(LeaseRow.created_at, LeaseRow.lease_id))
        return [_lease(row) for row in rows]

    async def leases_of_claim(self, claim_id: str) -> list[LeaseRecord]:
        """Every lease that a claim was granted, ended ones too."""
        rows = await self._db.rows(
            select(LeaseRow.__table__).where(LeaseRow.claim_id == claim_id).order_by(LeaseRow.lease_id)
        )
        return [_lease(row) for row in rows]


def _insert(lease: LeaseRecord) -> BoundStatement:
    return _INSERT(
        lease_id=lease.lease_id,
        owner=lease.owner,
        client_request_id=lease.client_request_id,
        token_sha256=lease.token_sha256,
        state=lease.state.value,
        desktop_id=lease.desktop_id,
        fencing_token=lease.fencing_token,
        shape=shape_json(lease.shape),
        image_digest=lease.image_digest,
        setup_key=lease.setup_key,
        ttl_s=lease.ttl_s,
        created_at=lease.created_at,
        expires_at=lease.expires_at,
        ended_at=None,
        labels=lease.labels,
        claim_id=lease.claim_id,
        priority=lease.priority,
        gang_size=lease.gang_size,
    )


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
        fencing_token=row.fencing_token,
        state=wire.LeaseState(row.state),
        claim_id=row.claim_id,
        priority=row.priority,
        gang_size=row.gang_size,
    )
