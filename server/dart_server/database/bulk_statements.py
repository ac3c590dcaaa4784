"""The database's frequent statements: built once, executed many at a time.

Role: `BoundStatement` is one of them with the values of one row; `execute_all` gives a transaction's statements to the database, rows of
the same statement together. Rule: building a statement costs more than executing it, so the frequent ones are built once, at import, on
tables and not on mapped classes. Rows of one statement keep their order; statements of different `rank` may change places, so ranks are
given such that this changes nothing: a row is inserted before it is updated, events come last, and two updates of one table touch
different columns. Non-goals: which statements there are (`repository`), transactions (`db`), how SQLite takes many rows (`rows`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, Insert, Table, Update
from sqlalchemy.orm import DeclarativeBase

from dart_server.database.bulk_rows import BulkStatement

UPDATES_FROM = (3, 33)
"""SQLite's version from which an update may take its values from rows; an older one is given them one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class StatementTemplate:
    """A statement that is executed often. `rank`: lower ones are executed first among those between two ordinary statements."""

    statement: Insert | Update
    rank: int

    def __call__(self, **values: Any) -> BoundStatement:
        return BoundStatement(self, values)


@dataclass(frozen=True, slots=True, eq=False)
class BoundStatement:
    """A frequent statement with the values of one row."""

    template: StatementTemplate
    values: Mapping[str, Any]


Statement = Executable | BoundStatement


def table_of(row: type[DeclarativeBase]) -> Table:
    """The table of a mapped class: statements on it skip what the mapper would look up each time."""
    table = row.__table__
    assert isinstance(table, Table)
    return table


def execute_all(connection: Connection, statements: Sequence[Statement]) -> None:
    """Execute them. An ordinary statement finds everything before it done."""
    rows: dict[StatementTemplate, list[Mapping[str, Any]]] = {}
    for statement in statements:
        if isinstance(statement, BoundStatement):
            rows.setdefault(statement.template, []).append(statement.values)
        else:
            _flush(connection, rows)
            connection.execute(statement)
    _flush(connection, rows)


def _flush(connection: Connection, rows: dict[StatementTemplate, list[Mapping[str, Any]]]) -> None:
    for template in sorted(rows, key=lambda each: each.rank):
        found = rows[template]
        if connection.dialect.name == "sqlite" and sqlite3.sqlite_version_info >= UPDATES_FROM:
            _bulk_statement(template, tuple(found[0]), connection.dialect).execute(connection, found)
        else:
            connection.execute(template.statement, found)
    rows.clear()


@lru_cache(maxsize=64)
def _bulk_statement(template: StatementTemplate, names: tuple[str, ...], dialect: Dialect) -> BulkStatement:
    return BulkStatement(template.statement, names, dialect)
