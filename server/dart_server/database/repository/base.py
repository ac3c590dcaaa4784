"""What every part of the database's statements shares: the event beside a change, and how it is queued.

Rule: a state change and the event that tells of it are one write. Non-goals: any table's own statements.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import insert

from dart_server import wire
from dart_server.database.bulk_statements import BoundStatement, Statement, StatementTemplate, table_of
from dart_server.database.models import EventRow
from dart_server.database.write_queue import Database, WriteReceipt
from dart_server.errors import DatabaseUnavailableError
from dart_server.wire import Clock

_EVENT = StatementTemplate(insert(table_of(EventRow)), rank=9)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be written: what happened, to what, and plain data about it."""

    kind: str
    desktop_id: str | None = None
    lease_id: str | None = None
    fencing_token: int | None = None
    data: dict[str, Any] | None = None


@lru_cache(maxsize=1024)
def shape_json(shape: wire.DesktopShape) -> str:
    """Canonical JSON of a shape: equal shapes give equal text."""
    return json.dumps(shape.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


class Statements:
    """Root of the parts of `Repository`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db = database
        self._clock = clock

    @property
    def unavailable_reason(self) -> str | None:
        """Why the database does not answer, None while it does."""
        return self._db.unavailable_reason

    async def wait_available(self) -> None:
        """Before something begins that must be written. Raises `DatabaseUnavailableError` when the database is away and stays so."""
        await self._db.wait_available()

    async def wait_committed(self, receipt: WriteReceipt) -> None:
        """Wait until a write is made. Raises its error; `DatabaseUnavailableError` when the database stays away: the write is made later
        then."""
        await self._db.wait_committed(receipt)

    async def flush_if_available(self) -> None:
        """Before somebody is told what was done: wait until it is written, but not for a database that is away."""
        with contextlib.suppress(DatabaseUnavailableError):
            await self._db.flush()

    def _event(self, note: NewEvent) -> BoundStatement:
        return _EVENT(
            at=self._clock.time(),
            kind=note.kind,
            desktop_id=note.desktop_id,
            lease_id=note.lease_id,
            fencing_token=note.fencing_token,
            data=note.data or {},
        )

    def _write(self, statement: Statement, note: NewEvent | None = None, *, key: str | None = None) -> WriteReceipt:
        """`key`: as `Database.write` has it."""
        return self._db.write(statement, self._event(note)) if note else self._db.write(statement, key=key)
