"""The database: engine, migrations, one writer. SQLite (WAL) for one machine, any other URL of SQLAlchemy by setting.

Rule: the database is spoken to by one thread of its own, so that the event loop never waits for it and a batch costs one hand-over (an
async driver hands over for every statement: forty times per lease). Writes are queued, in order, and committed in batches; who needs to
know that something is written awaits its receipt. A read sees every write that was queued before it. Non-goals: statements (`repository`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Executable, Row, create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from dart_server.batches import Statement, execute_all

log = logging.getLogger(__name__)
MIGRATIONS = Path(__file__).parent / "migrations"

Receipt = asyncio.Future[None]
"""Done when the write is committed; carries its error otherwise. It need not be awaited."""


class Database:
    """One database of the farm, used from one event loop."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dart-ledger")
        self._queue: list[tuple[Sequence[Statement], Receipt]] = []
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _sqlite_pragmas)

    async def start(self) -> None:
        """Bring the tables to this version of the package, and begin to write."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._migrate)
        self._writer = asyncio.get_running_loop().create_task(self._write_forever())

    def _migrate(self) -> None:
        with self._engine.begin() as connection:
            _upgrade(connection)

    def write(self, *statements: Statement) -> Receipt:
        """Queue statements that are committed together."""
        receipt: Receipt = asyncio.get_running_loop().create_future()
        receipt.add_done_callback(_log_failure)
        self._queue.append((statements, receipt))
        self._wake.set()
        return receipt

    async def rows(self, statement: Executable) -> Sequence[Row[Any]]:
        """Everything a select gives."""
        if self._queue:
            await self.write()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._select, statement)

    def _select(self, statement: Executable) -> Sequence[Row[Any]]:
        with self._engine.connect() as connection:
            return connection.execute(statement).all()

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            batch, self._queue = self._queue, []
            self._wake.clear()
            failures = await loop.run_in_executor(
                self._thread, self._commit_batch, [statements for statements, _ in batch]
            )
            for (_, receipt), failure in zip(batch, failures, strict=True):
                if receipt.done():
                    continue
                if failure is None:
                    receipt.set_result(None)
                else:
                    receipt.set_exception(failure)

    def _commit_batch(self, batch: Sequence[Sequence[Statement]]) -> list[SQLAlchemyError | None]:
        """Commit writes together; when that fails, each by itself, so that only the faulty ones are told so."""
        together = self._commit([statement for statements in batch for statement in statements])
        return [None] * len(batch) if together is None else [self._commit(statements) for statements in batch]

    def _commit(self, statements: Sequence[Statement]) -> SQLAlchemyError | None:
        try:
            with self._engine.begin() as connection:
                execute_all(connection, statements)
        except SQLAlchemyError as error:
            return error
        return None

    async def aclose(self) -> None:
        """Write what is queued, then close. Idempotent."""
        if self._writer is not None:
            await self.write()
            self._writer.cancel()
            await asyncio.wait({self._writer})
            self._writer = None
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._thread.shutdown(wait=True)
        self._engine.dispose()


def _log_failure(receipt: Receipt) -> None:
    if not receipt.cancelled() and receipt.exception() is not None:
        log.error("a write to the ledger failed: %s", receipt.exception())


def _sqlite_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
