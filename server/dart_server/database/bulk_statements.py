"""The database's frequent statements: built once, executed many at a time.

Role: `BoundStatement` is one of them with the values of one row; `execute_all` gives a transaction's statements to the database, rows of
the same statement together. Rule: building a statement costs more than executing it, so the frequent ones are built once, at import, on
tables and not on mapped classes. Rows of one statement keep their order; statements of different `rank` may change places, so ranks are
given such that this changes nothing: a row is inserted before it is updated, events come last, and two updates of one table touch
different columns.

Python's driver for SQLite releases the interpreter's lock for every row that it executes, and on a busy farm getting the lock back takes
longer than the row. `BulkStatement` therefore gives many rows of one statement to SQLite in one text. The texts are made for powers of two
of rows, so that the driver's statement cache holds all of them. Of two rows that update the same row only the later is written.
psycopg sends many rows at once by itself. Non-goals: which statements there are (`repository`), transactions (`transactions`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, Insert, Table, Update
from sqlalchemy.orm import DeclarativeBase

MOST = 64
"""Rows of one text."""
ROW_KEY = "row_key"
"""The value that says which row an update is of."""
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


class BulkStatement:
    """An insert, or an update of one row by its key, in texts for SQLite. `names`: of the values that every row brings."""

    def __init__(self, statement: Insert | Update, names: tuple[str, ...], dialect: Dialect) -> None:
        self._statement = statement
        self._names = names
        self._dialect = dialect

    @cached_property
    def _table(self) -> Table:
        table = self._statement.table
        assert isinstance(table, Table)
        return table

    @cached_property
    def _key(self) -> str | None:
        """The column that an update finds its row by; None of an insert."""
        if isinstance(self._statement, Insert):
            return None
        return str(self._statement.whereclause.left.name)  # type: ignore[union-attr]

    @cached_property
    def _processors(self) -> list[tuple[str, Callable[[Any], Any] | None]]:
        """What brings each value to what the driver takes."""
        found: list[tuple[str, Callable[[Any], Any] | None]] = []
        for name in self._names:
            column = self._table.c[self._key if name == ROW_KEY and self._key is not None else name]
            found.append((name, column.type.dialect_impl(self._dialect).bind_processor(self._dialect)))
        return found

    @lru_cache(maxsize=16)  # noqa: B019 - of a few statements that live as long as the process
    def text(self, nrows: int) -> str:
        """The statement for so many rows."""
        names = [f'"{name}"' for name in self._names]
        row = f"({', '.join('?' * len(names))})"
        rows = ", ".join([row] * nrows)
        if self._key is None:
            return f'INSERT INTO "{self._table.name}" ({", ".join(names)}) VALUES {rows}'
        changes = ", ".join(f"{name} = given.{name}" for name in names if name != f'"{ROW_KEY}"')
        found = f'"{self._table.name}"."{self._key}" = given."{ROW_KEY}"'
        given = f"WITH given ({', '.join(names)}) AS (VALUES {rows})"
        return f'{given} UPDATE "{self._table.name}" SET {changes} FROM given WHERE {found}'

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute it for all rows, in as few steps as may be."""
        if self._key is not None and len(rows) > 1:
            rows = list({row[ROW_KEY]: row for row in rows}.values())
        begin = 0
        while begin < len(rows):
            nrows = min(MOST, 1 << (len(rows) - begin).bit_length() - 1)
            values = tuple(self._value(row, each) for row in rows[begin : begin + nrows] for each in self._processors)
            connection.exec_driver_sql(self.text(nrows), values)
            begin += nrows

    @staticmethod
    def _value(row: Mapping[str, Any], each: tuple[str, Callable[[Any], Any] | None]) -> Any:
        name, process = each
        return row[name] if process is None else process(row[name])
