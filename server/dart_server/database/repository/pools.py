"""The database's statements about pools: how many ready desktops of what are wanted. Rule: a specification is plain JSON here."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, delete, insert, select

from dart_server.database.models import PoolRow
from dart_server.database.repository.base import NewEvent, Statements
from dart_server.database.write_queue import WriteReceipt
from dart_server.records import PoolRecord


class PoolStatements(Statements):
    """Pools by name."""

    def put_pool(self, record: PoolRecord) -> WriteReceipt:
        """Write a pool; one of the same name is replaced."""
        row = insert(PoolRow).values(
            name=record.name, spec=record.spec, created_at=record.created_at, updated_at=record.updated_at
        )
        note = NewEvent("pool_put", data={"name": record.name, "spec": record.spec})
        return self._db.write(delete(PoolRow).where(PoolRow.name == record.name), row, self._event(note))

    async def pool(self, name: str) -> PoolRecord | None:
        rows = await self._db.rows(select(PoolRow.__table__).where(PoolRow.name == name))
        return _pool(rows[0]) if rows else None

    async def pools(self) -> list[PoolRecord]:
        """Every pool, by name."""
        return [_pool(row) for row in await self._db.rows(select(PoolRow.__table__).order_by(PoolRow.name))]

    def delete_pool(self, name: str) -> WriteReceipt:
        return self._write(delete(PoolRow).where(PoolRow.name == name), NewEvent("pool_deleted", data={"name": name}))


def _pool(row: Row[Any]) -> PoolRecord:
    return PoolRecord(name=row.name, spec=dict(row.spec), created_at=row.created_at, updated_at=row.updated_at)
