"""The database's statements about bearer keys. Rule: only their hashes are known here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, insert, select, update

from dart_server.database.models import KeyRow
from dart_server.database.repository.base import NewEvent, Statements
from dart_server.database.write_queue import WriteReceipt
from dart_server.records import KeyRecord


class KeyStatements(Statements):
    """Bearer keys."""

    async def add_key(
        self,
        key_id: str,
        name: str,
        sha256: str,
        scope: str,
        *,
        expires_at: float | None = None,
        max_leases: int | None = None,
        max_waiting: int | None = None,
        weight: float = 1.0,
        max_priority: int = 0,
    ) -> KeyRecord:
        """Insert a key; one with the same hash stays as it is. Returns the key with that hash."""
        known = await self._db.rows(select(KeyRow.__table__).where(KeyRow.sha256 == sha256))
        if known:
            return _key(known[0])
        record = KeyRecord(
            key_id=key_id,
            name=name,
            scope=scope,
            created_at=self._clock.time(),
            expires_at=expires_at,
            max_leases=max_leases,
            max_waiting=max_waiting,
            weight=weight,
            max_priority=max_priority,
        )
        row = insert(KeyRow).values(
            key_id=key_id,
            name=name,
            sha256=sha256,
            scope=scope,
            created_at=record.created_at,
            revoked_at=None,
            expires_at=expires_at,
            max_leases=max_leases,
            max_waiting=max_waiting,
            weight=weight,
            max_priority=max_priority,
            last_used_at=None,
        )
        note = NewEvent("key_created", data={"key_id": key_id, "name": name, "scope": scope})
        receipt = self._write(row, note)
        try:
            await self._db.wait_committed(receipt)
        except BaseException:  # cancelled too: a secret that nobody was told must not open anything later; raised again
            if not self._db.cancel_write(receipt):
                self.revoke_key(key_id)
            raise
        return record

    async def keys(self) -> list[KeyRecord]:
        """Every key, those that were revoked too, oldest first."""
        rows = await self._db.rows(select(KeyRow.__table__).order_by(KeyRow.created_at, KeyRow.key_id))
        return [_key(row) for row in rows]

    async def keys_by_id(self, key_ids: Collection[str]) -> list[KeyRecord]:
        """Those of these keys that there are."""
        rows = await self._db.rows(select(KeyRow.__table__).where(KeyRow.key_id.in_(key_ids)))
        return [_key(row) for row in rows]

    async def key(self, key_id: str) -> KeyRecord | None:
        rows = await self._db.rows(select(KeyRow.__table__).where(KeyRow.key_id == key_id))
        return _key(rows[0]) if rows else None

    async def key_by_hash(self, sha256: str) -> KeyRecord | None:
        """The key of this secret; whether it was revoked or has expired is for the caller to judge."""
        rows = await self._db.rows(select(KeyRow.__table__).where(KeyRow.sha256 == sha256))
        return _key(rows[0]) if rows else None

    def revoke_key(self, key_id: str) -> WriteReceipt:
        """Write that a key is not good any more; a key that was revoked keeps its first time."""
        statement = update(KeyRow).where(KeyRow.key_id == key_id, KeyRow.revoked_at.is_(None))
        return self._write(
            statement.values(revoked_at=self._clock.time()), NewEvent("key_revoked", data={"key_id": key_id})
        )

    def touch_key(self, key_id: str) -> WriteReceipt:
        """Write that a key is used now. Not for every request: once a minute is enough for a person."""
        used = update(KeyRow).where(KeyRow.key_id == key_id).values(last_used_at=self._clock.time())
        return self._write(used, key=f"used {key_id}")


def _key(row: Row[Any]) -> KeyRecord:
    return KeyRecord(
        key_id=row.key_id,
        name=row.name,
        scope=row.scope,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        expires_at=row.expires_at,
        max_leases=row.max_leases,
        max_waiting=row.max_waiting,
        weight=row.weight,
        max_priority=row.max_priority,
        last_used_at=row.last_used_at,
    )
