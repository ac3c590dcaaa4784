"""The connection to the database: SQLite (WAL) or PostgreSQL, by URL.

Rule: a URL that cannot work is a `FarmConfigError` without the password in it; every error of a driver is either an outage (try again, the
statement is good) or the statement's own fault, told apart by the database's own codes and never by text.
Non-goals: when to try again (`db`), statements (`repository`).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from dart_server.database.checkpoints import AUTOCHECKPOINT_PAGES
from dart_server.errors import FarmConfigError
from dart_server.wire.extras import install_command

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_MS = 2000
"""How long SQLite waits for another process's lock before it says so."""
FARM_LOCK = 0x64617274
"""Advisory lock of a PostgreSQL database that one farm holds while it lives ("dart")."""
MIGRATION_LOCK = FARM_LOCK + 1
POSTGRES_CONNECT_ARGS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""libpq: a server that vanished is found out within seconds, not within hours."""
OUTAGES_SQLITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    }
)
OUTAGES_POSTGRES = ("08", "40", "53", "57", "58", "F0", "XX", "25006", "55P03", "28", "3D")
"""Classes and codes of SQLSTATE: connection, serialisation, resources, intervention, system, configuration, inside; read-only, locked;
login and database, which an administrator may be changing."""


class DatabaseInUse(Exception):
    """Another farm holds this database."""


def make_engine(url: str, *, exclusive: bool) -> Engine:
    """The engine of a database.

    `exclusive`: a PostgreSQL one is held for this process alone, and an SQLite one's commits make no checkpoints (`checkpoints` does)
    but for a log that was lost sight of. Raises `FarmConfigError`.
    """
    parsed = parse_url(url)
    given: dict[str, Any] = {}
    if parsed.get_backend_name() == "postgresql":
        given["connect_args"] = {
            name: value for name, value in POSTGRES_CONNECT_ARGS.items() if name not in parsed.query
        }
    try:
        # What a refused statement was given (labels, hashes of tokens) is in no error, and so in no log.
        engine = create_engine(parsed, hide_parameters=True, **given)
    except (ArgumentError, ImportError) as error:
        raise FarmConfigError(f"DART_DB_URL: {parsed.render_as_string()} cannot be used: {error}.") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _sqlite_connected)
        event.listen(engine, "begin", _sqlite_begin)
        if exclusive:
            event.listen(engine, "connect", _sqlite_checkpoints_late)
    elif exclusive:
        event.listen(engine, "connect", _hold_postgres)
    return engine


def parse_url(url: str) -> URL:
    """The URL with the driver that we bring. Raises `FarmConfigError`."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise FarmConfigError(
            "DART_DB_URL is no URL of a database; it looks like postgresql://USER:PASSWORD@HOST/NAME."
        ) from None
    if parsed.drivername in {"postgres", "postgresql"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite", "postgresql+psycopg"}:
        raise FarmConfigError(f"DART_DB_URL: {parsed.drivername} is not supported; use postgresql:// or sqlite:///.")
    if parsed.get_backend_name() == "postgresql":
        try:
            import psycopg  # noqa: F401 - its absence is told before anything starts
        except ImportError:
            raise FarmConfigError(f"PostgreSQL needs its driver: {install_command('postgres')}.") from None
    return parsed


def is_outage(error: Exception) -> bool:
    """Whether the database is at fault (True), or the statement."""
    if isinstance(error, DatabaseInUse):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    origin = error.orig
    if isinstance(origin, sqlite3.Error):
        code = getattr(origin, "sqlite_errorcode", None)
        return code is None or (code & 0xFF) in OUTAGES_SQLITE
    state = getattr(origin, "sqlstate", None)
    if state is not None:
        return str(state).startswith(OUTAGES_POSTGRES)
    # libpq itself tells of lost connections, without a code; psycopg refuses values that it cannot send as data errors.
    return type(origin).__name__ in {"OperationalError", "InterfaceError", "InternalError"}


def upgrade(engine: Engine) -> None:
    """Bring the tables to this version of the package, whole or not at all."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        _run_migrations(connection)


def _run_migrations(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _sqlite_connected(connection: Any, _record: Any) -> None:
    # The driver would begin transactions by itself, and none for changes of tables: a migration could be left half made.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={BUSY_MS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_checkpoints_late(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA wal_autocheckpoint={AUTOCHECKPOINT_PAGES}")


def _sqlite_begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _hold_postgres(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_try_advisory_lock({FARM_LOCK})")
        held = cursor.fetchone()[0]
    connection.commit()
    if not held:
        connection.close()
        raise DatabaseInUse("another farm uses this database; give each farm a database of its own")
