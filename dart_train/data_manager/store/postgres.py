"""What is special about a trajectory database in PostgreSQL.

Role: its engine, its lock, and which of its errors are outages. Rule: one process writes: its one connection holds an advisory lock of the
schema, so that a second data manager is refused wherever it runs; a password is in no message; a reader's transactions are read-only, and
the server enforces it. Text that PostgreSQL cannot hold (NUL) is stored with U+FFFD in its place: sampled ids are the truth, their text is
for people. Non-goals: when to try again (`dart_agent.data_client.client`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL

from dart_agent.errors import StoreError
from dart_server.wire.extras import install_command

WRITER_LOCK = 0x64617274
"""First part of the advisory lock; the second is a hash of the schema, so that one database can hold a run in each schema."""
CONNECT_ARGS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""libpq: a server that vanished is found out within seconds, not within hours."""
SERVER_SETTINGS = {
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 5,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""The same at the server, which ends the session of a writer that vanished, and with it the lock."""
NOTICE_LIMIT_S = float(
    max(
        SERVER_SETTINGS["tcp_keepalives_idle"]
        + SERVER_SETTINGS["tcp_keepalives_interval"] * SERVER_SETTINGS["tcp_keepalives_count"],
        SERVER_SETTINGS["tcp_user_timeout"] / 1000,
    )
)
"""How long the server needs at most to notice that the host of a writer vanished: an idle session has keepalives, another one the time-out
of data that nobody acknowledges."""
OUTAGE_STATES = ("08", "40", "53", "57", "58", "F0", "XX", "25006", "55P03", "28", "3D")
"""Classes and codes of SQLSTATE: connection, serialisation, resources, intervention, system, configuration, inside; read-only, locked;
login and database, which an administrator may be changing."""


class DatabaseInUseError(StoreError):
    """Another data manager writes to this database."""


def make_engine(url: URL, *, read_only: bool) -> Engine:
    """Make an engine.

    Args:
        url: The URL of the database.
        read_only: Whether the server refuses every change.

    Returns:
        The engine; a writer's has one connection.

    Raises:
        StoreError: The driver is not installed. Its connections raise it where the schema does not exist.
    """
    try:
        import psycopg  # noqa: F401 - its absence is told before anything starts
    except ImportError:
        raise StoreError(f"PostgreSQL needs its driver: {install_command('postgres')}") from None
    given = {name: value for name, value in CONNECT_ARGS.items() if name not in url.query}
    # What a refused statement was given is in no error, and so in no log.
    if read_only:
        engine = create_engine(url, hide_parameters=True, connect_args=given)
        event.listen(engine, "connect", _refuse_changes)
    else:
        engine = create_engine(url, hide_parameters=True, connect_args=given, pool_size=1, max_overflow=0)
        event.listen(engine, "connect", _hold_lock)
        event.listen(engine, "connect", _replace_nul)
    return engine


def is_outage(origin: BaseException | None) -> bool:
    """Whether the server is at fault, and not the statement.

    Args:
        origin: The error of the driver.
    """
    state = getattr(origin, "sqlstate", None)
    if state is not None:
        return str(state).startswith(OUTAGE_STATES)
    # libpq itself tells of lost connections, without a code; psycopg refuses values that it cannot send as data errors.
    return type(origin).__name__ in {"OperationalError", "InterfaceError", "InternalError"}


def _refuse_changes(connection: Any, _record: Any) -> None:
    connection.read_only = True
    _check_schema(connection)


def _hold_lock(connection: Any, _record: Any) -> None:
    _check_schema(connection)
    with connection.cursor() as cursor:
        for name, value in SERVER_SETTINGS.items():
            cursor.execute(f"SET {name} = {value}")
        cursor.execute(f"SELECT pg_try_advisory_lock({WRITER_LOCK}, hashtext(current_schema()))")
        held = cursor.fetchone()[0]
    connection.commit()
    if not held:
        connection.close()
        raise DatabaseInUseError(
            "another data manager writes to this database: stop it first, or give each run a database of its own"
        )


def _check_schema(connection: Any) -> None:
    """Raise StoreError where tables have no schema; the number of the lock would be NULL, too."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        schema = cursor.fetchone()[0]
    connection.commit()
    if schema is None:
        connection.close()
        raise StoreError(
            "the schema of data.database_url does not exist, or its user may not use it: create it with CREATE SCHEMA NAME, "
            "or name another in search_path"
        )


def _replace_nul(connection: Any, _record: Any) -> None:
    from psycopg.types.string import StrDumper

    class TextDumper(StrDumper):
        """Text without NUL."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\ufffd"))

    connection.adapters.register_dumper(str, TextDumper)
