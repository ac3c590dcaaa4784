"""The database: engine, sessions, migrations. SQLite (WAL) for one machine, any other async URL of SQLAlchemy by setting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """One database of the farm. Writes go one after the other, so that SQLite never answers "locked"."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = create_async_engine(url)
        self._session = async_sessionmaker(self._engine, expire_on_commit=False)
        self._write_lock = asyncio.Lock()
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine.sync_engine, "connect", _sqlite_pragmas)

    async def migrate(self) -> None:
        """Bring the tables to this version of the package. Idempotent."""
        async with self._engine.begin() as connection:
            await connection.run_sync(_upgrade)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session for reading."""
        async with self._session() as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A session whose changes are committed together when the block ends well."""
        async with self._write_lock, self._session() as session, session.begin():
            yield session

    async def aclose(self) -> None:
        await self._engine.dispose()


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
