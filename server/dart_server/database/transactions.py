"""The thread's side of the database: transactions that are made exactly once, also when the connection is lost while one is committed.

Rule: a transaction carries its number into the row of its writer; before it is tried again, that row tells whether the first try was
committed after all. Blocking calls only. Non-goals: queues and waiting (`db`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Executable, Row, bindparam, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from dart_server.database.bulk_statements import Statement, StatementTemplate, execute_all, table_of
from dart_server.database.checkpoints import CheckpointThread
from dart_server.database.engine import DatabaseInUse, is_outage, make_engine, upgrade
from dart_server.database.models import WriterRow
from dart_server.errors import FarmConfigError
from dart_server.ids import new_id
from dart_server.wire import Clock

FARM_WRITER_ID = "farm"
"""The writer that is the farm itself, of which there is one."""
START_S, START_POLL_S = 10.0, 0.2
"""How long a start waits for the last one's connection to be noticed as dead."""

_TABLE = table_of(WriterRow)
_NUMBER = StatementTemplate(update(_TABLE).where(_TABLE.c.writer_id == bindparam("row_key")), rank=10)
"""The one statement of every transaction, its last."""


class TransactionWriter:
    """One writer of a database. `exclusive`: it is the farm, and no other may be at work there."""

    def __init__(self, url: str, clock: Clock, *, exclusive: bool) -> None:
        self._engine = make_engine(url, exclusive=exclusive)
        self._clock = clock
        self._writer = FARM_WRITER_ID if exclusive else new_id("writer")
        self._number = 0
        self._sole = exclusive
        self._checkpoints: CheckpointThread | None = None
        self.last_write_at: float | None = None
        """When this writer's former life wrote last, None when it had none."""

    def start(self) -> None:
        """Migrate, and take the writer's row. Raises `FarmConfigError` when the database cannot be used."""
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                upgrade(self._engine)
                self._enter()
                break
            except DatabaseInUse as error:
                if time.monotonic() >= deadline_s:
                    raise FarmConfigError(f"DART_DB_URL: {error}.") from error
            except SQLAlchemyError as error:
                self._engine.dispose()
                if not is_outage(error):
                    raise
                reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
                raise FarmConfigError(
                    f"the database {self._engine.url.render_as_string()} cannot be used: {reason}. Check DART_DB_URL."
                ) from error
            time.sleep(START_POLL_S)
        if self._sole and self._engine.dialect.name == "sqlite":
            self._begin_checkpoints()

    def _begin_checkpoints(self) -> None:
        with self._engine.connect() as connection:
            # However the URL writes it; empty when the database is in memory.
            file = connection.exec_driver_sql("SELECT file FROM pragma_database_list WHERE name = 'main'").scalar()
        if file:
            self._checkpoints = CheckpointThread(Path(file))
            self._checkpoints.start()

    def _enter(self) -> None:
        with self._engine.begin() as connection:
            row = connection.execute(
                select(WriterRow.number, WriterRow.at).where(WriterRow.writer_id == self._writer)
            ).first()
            if row is None:
                connection.execute(insert(WriterRow).values(writer_id=self._writer, number=0, at=self._clock.time()))
            else:
                self._number, self.last_write_at = row.number, row.at

    def next_transaction_number(self) -> int:
        """The number of the next transaction."""
        self._number += 1
        return self._number

    def commit(self, number: int, statements: Sequence[Statement], *, is_retry: bool) -> None:
        """Make one transaction; `is_retry`: an earlier try of it ended in an outage. Raises what the database raises."""
        mine = WriterRow.writer_id == self._writer
        with self._engine.begin() as connection:
            if is_retry and connection.execute(select(WriterRow.number).where(mine)).scalar() == number:
                return
            execute_all(connection, [*statements, _NUMBER(row_key=self._writer, number=number, at=self._clock.time())])
        if self._checkpoints is not None:
            self._checkpoints.note_commit()

    def select(self, statement: Executable) -> Sequence[Row[Any]]:
        with self._engine.connect() as connection:
            return connection.execute(statement).all()

    def disconnect(self) -> None:
        """Let go of the connection, so that the next call makes a new one."""
        self._engine.dispose()

    def leave(self) -> None:
        """Close; a writer that is not the farm leaves no row."""
        if self._checkpoints is not None:
            self._checkpoints.stop()
        try:
            if self._writer != FARM_WRITER_ID:
                with self._engine.begin() as connection:
                    connection.execute(delete(WriterRow).where(WriterRow.writer_id == self._writer))
        finally:
            self._engine.dispose()
