"""Databases for tests of the database: a fresh one for each test, of either kind.

Role: `fresh_database`. Rule: PostgreSQL is a real server, the one of DART_TEST_POSTGRES_URL (`make test-postgres` starts it); a test's
database is dropped with whoever is still connected to it. Non-goals: starting servers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import create_engine

from dart_server.database.engine import parse_url

VARIABLE = "DART_TEST_POSTGRES_URL"


@contextmanager
def fresh_database(kind: str, place: Path) -> Iterator[str]:
    """The URL of an empty database: a file in `place` for `sqlite`, one of the server for `postgres`."""
    if kind == "sqlite":
        yield f"sqlite:///{place / 'farm.db'}"
        return
    server = parse_url(os.environ[VARIABLE])
    name = f"t_{uuid4().hex}"
    _administer(f'CREATE DATABASE "{name}"')
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        _administer(f'DROP DATABASE "{name}" WITH (FORCE)')


def end_connections(url: str) -> int:
    """Cut every connection to a PostgreSQL database, as its administrator; how many there were."""
    name = parse_url(url).database
    return len(_administer(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"))


def _administer(statement: str) -> list[Any]:
    engine = create_engine(parse_url(os.environ[VARIABLE]), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            result = connection.exec_driver_sql(statement)
            return list(result.all()) if result.returns_rows else []
    finally:
        engine.dispose()
