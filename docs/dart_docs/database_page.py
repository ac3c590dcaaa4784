"""The page of the two databases: that of the farm and that of a run's trajectories.

Role: one table per table. Rule: columns come from the SQLAlchemy models. Non-goals: queries.
"""

from __future__ import annotations

import inspect
from typing import Any

from sqlalchemy.orm import DeclarativeBase

from dart_docs.markdown import code, table
from dart_server.database.models import FarmTable
from dart_train.data_manager.store.models import StoreBase


def database_page() -> str:
    """Render the page."""
    return (
        "# Database schema\n\n"
        "This page is for people who query a farm's or a run's database, for example with `sqlite3` or `psql`. "
        "After it you know every table and column. "
        "Both are SQLite files unless a PostgreSQL URL is "
        "given. Only read them: the farm and the data manager are their only writers. Times are in seconds "
        "since 1970.\n\n"
        "## The farm\n\n" + _tables(FarmTable) + "## The trajectories of a run\n\n"
        "Token ids are little-endian int32, log-probs are little-endian float32.\n\n" + _tables(StoreBase)
    )


def _tables(base: type[DeclarativeBase]) -> str:
    parts = []
    documented = {mapper.local_table: inspect.getdoc(mapper.class_) or "" for mapper in base.registry.mappers}
    for described in base.metadata.sorted_tables:
        parts += [f"### `{described.name}`\n\n", documented[described], "\n\n"]
        parts.append(table(("column", "type", "", "refers to"), (_column(each) for each in described.columns)))
    return "".join(parts)


def _column(column: Any) -> tuple[str, str, str, str]:
    marks = [
        word
        for word, holds in (
            ("primary key", column.primary_key),
            ("unique", column.unique),
            ("may be null", column.nullable and not column.primary_key),
        )
        if holds
    ]
    target = ", ".join(code(each.target_fullname) for each in column.foreign_keys)
    return code(column.name), code(column.type), ", ".join(marks), target
