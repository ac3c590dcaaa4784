"""Many rows in one step of SQLite: the text of a frequent statement for several rows at once, and its values in order.

Role: Python's driver lets go of the interpreter's lock for every row that it executes, and on a busy farm getting it back takes longer than
the row; so rows of one statement are given to it together. Rule: the rows are written as if one after the other; of two that update one
row only the later is. Texts are made for powers of two of rows, so that the driver's cache of statements knows all of them.
Non-goals: other databases (psycopg sends many rows at once by itself), statements that are not frequent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, Table, Update

MOST = 64
"""Rows of one text."""
ROW_KEY = "row_key"
"""The value that says which row an update is of."""


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
