"""Statements of every episode, compiled once.

Role: `PreparedStatement` executes an INSERT or UPDATE with the text and the conversions that SQLAlchemy makes of it. Rule: it is what
`Connection.execute` would send, without being looked up and put together again for each call; events and errors are SQLAlchemy's. Only
SQLite's statements are kept: on a server the way there takes longer than what this saves. Non-goals: statements that return rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult, Dialect
from sqlalchemy.sql.dml import Insert, Update

Row = dict[str, Any]


class PreparedStatement:
    """An INSERT or UPDATE.

    Args:
        statement: The statement.
        columns: What an INSERT gives values for.
    """

    def __init__(self, statement: Insert | Update, columns: Sequence[str] = ()) -> None:
        self._statement = statement
        self._columns = list(columns) or None
        self._compiled: tuple[str, list[tuple[str, Any, Callable[[Any], Any] | None]]] | None = None

    def execute(self, connection: Connection, rows: Row | list[Row]) -> CursorResult[Any]:
        """Execute it.

        Args:
            connection: The connection of the transaction.
            rows: The values by name, or several of them for as many executions.

        Returns:
            The result; its `rowcount` is that of one execution.
        """
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, rows)
        text, parameters = self._compiled or self._compile(connection.dialect)
        several = [rows] if isinstance(rows, dict) else rows
        values = [
            tuple(
                [
                    row.get(name, given) if convert is None else convert(row.get(name, given))
                    for name, given, convert in parameters
                ]
            )
            for row in several
        ]
        return connection.exec_driver_sql(text, values[0] if isinstance(rows, dict) else values)

    def _compile(self, dialect: Dialect) -> tuple[str, list[tuple[str, Any, Callable[[Any], Any] | None]]]:
        statement = self._statement.inline() if isinstance(self._statement, Insert) else self._statement
        compiled: Any = statement.compile(dialect=dialect, column_keys=self._columns)
        converters = compiled._bind_processors
        parameters = [(name, compiled.params[name], converters.get(name)) for name in compiled.positiontup]
        self._compiled = (str(compiled), parameters)
        return self._compiled
