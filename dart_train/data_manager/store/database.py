"""The connection to the trajectory database: SQLite (default) or PostgreSQL, by URL.

Role: `open_engine` returns an engine on a migrated database. Rule: alembic brings the schema up to date before the first use. A reader
never writes: it reads an older SQLite database from a migrated copy in memory, and refuses an older PostgreSQL one. A database whose
revision is not known here is refused. A committed transaction survives the death of the process (SQLite: WAL with `synchronous=NORMAL`).
An outage of the database is told from a fault of the statement by the database's own codes. Non-goals: queries; what is special about
PostgreSQL (`postgres`).
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from dart_agent.errors import StoreError, StoreUnavailableError
from dart_train.data_manager.store import postgres
from dart_train.data_manager.store.models import StoreBase

BUSY_TIMEOUT_MS = 10_000
"""How long a statement waits for a SQLite file that another process has locked."""
BRIEF_BUSY_TIMEOUT_MS = 20
"""The same where the event loop would wait with it; most locks of a few statements end earlier."""
OUTAGES_SQLITE = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM}
)
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

_JSON: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))


class DatabaseLockedError(StoreUnavailableError):
    """Another process has locked the file; the transaction was rolled back."""


DatabaseLocation = Path | str
"""A SQLite file, or the URL of a database."""


def parse_location(where: DatabaseLocation) -> URL:
    """Read where a trajectory database is.

    Args:
        where: A SQLite file, or a URL such as `postgresql://USER@HOST/NAME`.

    Returns:
        The URL, with the driver that we bring.

    Raises:
        StoreError: It is no URL, or of a database that is not supported.
    """
    if isinstance(where, Path) or "://" not in where:
        return URL.create("sqlite", database=str(where))
    try:
        parsed = make_url(where)
    except ArgumentError:
        raise StoreError(
            "data.database_url is no URL of a database; it looks like postgresql://USER@HOST/NAME"
        ) from None
    if parsed.drivername in {"postgres", "postgresql"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite", "postgresql+psycopg"}:
        raise StoreError(f"a database of {parsed.drivername} is not supported: use postgresql:// or sqlite:///")
    return parsed


def open_engine(where: DatabaseLocation, *, read_only: bool = False) -> Engine:
    """Open a trajectory database.

    Args:
        where: The SQLite file, or the URL. It is created (SQLite) and migrated unless `read_only`.
        read_only: Never write; any number of processes may read while one writes.

    Returns:
        The engine.

    Raises:
        StoreError: The database is missing, is no trajectory database, cannot be reached, was made by another version of DART, or is
            written by another data manager.
    """
    url = parse_location(where)
    shown = url.render_as_string() if url.get_backend_name() == "postgresql" else str(url.database)
    engine = (
        postgres.make_engine(url, read_only=read_only)
        if url.get_backend_name() == "postgresql"
        else _sqlite_engine(Path(str(url.database)), read_only)
    )
    try:
        older = _check_revision(engine, shown)
        if not read_only:
            migrate(engine)
        elif older and engine.dialect.name == "postgresql":
            raise StoreError(f"{shown} was made by an older version of DART: continue its run once, which migrates it")
        elif older:
            engine = _migrated_copy(engine)
    except DBAPIError as error:
        engine.dispose()
        if engine.dialect.name == "sqlite":
            raise StoreError(f"{shown} is not a trajectory database: {error.orig}") from error
        raise StoreError(f"the database {shown} cannot be used: {outage_reason(error)}") from error
    except StoreError:
        engine.dispose()
        raise
    return engine


def migrate(engine: Engine) -> None:
    """Bring the schema to the newest revision.

    Args:
        engine: An engine that may write.
    """
    config = _alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def holds_results(where: DatabaseLocation) -> bool:
    """Say whether a database has a run in it.

    Args:
        where: The SQLite file, or the URL.

    Returns:
        Whether a phase was ever started there.

    Raises:
        StoreError: As for `open_engine`.
    """
    url = parse_location(where)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return False
    engine = open_engine(where, read_only=True)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table("phases"):
                return False
            return connection.exec_driver_sql("SELECT 1 FROM phases LIMIT 1").first() is not None
    finally:
        engine.dispose()


def remove_results(where: DatabaseLocation) -> None:
    """Remove a run from a database, tables and all.

    Args:
        where: The SQLite file, or the URL.

    Raises:
        StoreError: As for `open_engine`.
    """
    url = parse_location(where)
    if url.get_backend_name() == "sqlite":
        file = Path(str(url.database))
        for each in file.parent.glob(f"{file.name}*"):
            each.unlink()
        return
    engine = open_engine(where)
    try:
        with engine.begin() as connection:
            StoreBase.metadata.drop_all(connection)
            connection.exec_driver_sql("DROP TABLE alembic_version")
    finally:
        engine.dispose()


CONNECTION = "connection"
"""Key in `Session.info` of the connection whose transaction the session takes part in."""


def connection_of(session: Session) -> Connection:
    """Return the connection of a transaction, without what a session does for objects where there are none.

    Args:
        session: The transaction.
    """
    found: Connection | None = session.info.get(CONNECTION)
    return session.connection() if found is None else found


def dump_json(value: object) -> str:
    """Write a JSON column; most values are small, and then the standard library's encoder takes longer than the statement.

    Args:
        value: A value of JSON.

    Returns:
        Its text.
    """
    try:
        return _JSON.dump_json(value).decode()
    except ValueError:  # half of a surrogate pair, which only `json` writes
        return json.dumps(value)


def set_busy_timeout(connection: Connection, timeout_ms: int) -> None:
    """Set how long statements wait for a locked file.

    Args:
        connection: A connection to a SQLite file, outside a transaction.
        timeout_ms: Milliseconds.
    """
    file: Any = connection.connection.driver_connection
    file.execute(f"PRAGMA busy_timeout={timeout_ms}").close()


def unavailable(error: DBAPIError) -> StoreUnavailableError:
    """Describe an outage of the database.

    Args:
        error: The error of a driver (`is_outage`).

    Returns:
        What to raise.
    """
    locked = isinstance(error.orig, sqlite3.Error) and (getattr(error.orig, "sqlite_errorcode", 0) & 0xFF) in _LOCKED
    kind = DatabaseLockedError if locked else StoreUnavailableError
    return kind(f"the trajectory database cannot be used now: {outage_reason(error)}")


def is_outage(error: DBAPIError) -> bool:
    """Whether the database is at fault, so that the statement may be repeated; else the statement is.

    Args:
        error: The error of a driver.
    """
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return (getattr(error.orig, "sqlite_errorcode", 0) & 0xFF) in OUTAGES_SQLITE
    return postgres.is_outage(error.orig)


def outage_reason(error: DBAPIError) -> str:
    """The first line of what the database said; parameters, which may be secrets, are not in it.

    Args:
        error: The error of a driver.
    """
    return next(iter(str(error.orig).strip().splitlines()), type(error.orig).__name__)


def _sqlite_engine(path: Path, read_only: bool) -> Engine:
    if read_only:
        if not path.exists():
            raise StoreError(f"there is no trajectory database at {path}")
        engine = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
        event.listen(engine, "connect", _reader_pragmas)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(f"sqlite:///{path}", json_serializer=dump_json)
        event.listen(engine, "connect", _writer_pragmas)
    return engine


def _migrated_copy(engine: Engine) -> Engine:
    """A copy of an older database in memory, with the newest schema; the given engine is disposed of."""
    copy = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with engine.connect() as source, copy.connect() as target:
        source.connection.driver_connection.backup(target.connection.driver_connection)  # type: ignore[union-attr]
    engine.dispose()
    migrate(copy)
    with copy.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only=ON")
    return copy


def _check_revision(engine: Engine, shown: str) -> bool:
    """Whether the schema is older than ours."""
    scripts = ScriptDirectory.from_config(_alembic_config())
    known = {script.revision for script in scripts.walk_revisions()}
    with engine.connect() as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
    if revision is not None and revision not in known:
        raise StoreError(
            f"{shown}: this trajectory database was made by another version of DART; start a new run with --name, "
            "or delete the run folder"
        )
    return revision is not None and revision != scripts.get_current_head()


def _alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def _writer_pragmas(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _reader_pragmas(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
