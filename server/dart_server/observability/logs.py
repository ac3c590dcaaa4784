"""Logging of the farm: standard library, one line per record, as text or as JSON, to standard error.

Rule: every line that belongs to a request, a lease or a desktop names it by id: what runs for one says so once (`bound`, `bind`), and all
lines from there on carry it, those of called parts too; ids given with the record itself go first. Keys, tokens, headers and bodies are
never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

IDS = ("request_id", "lease_id", "desktop_id")

_bound: ContextVar[Mapping[str, str]] = ContextVar("dart_log_ids")
_NONE: Mapping[str, str] = {}


def bind(**ids: str | None) -> None:
    """Name what the rest of this task's work, and of what it starts, is for."""
    given = {name: value for name, value in ids.items() if value is not None}
    _bound.set({**_bound.get(_NONE), **given})


@contextmanager
def bound(**ids: str | None) -> Iterator[None]:
    """The same for a block; what the block itself binds ends with it."""
    token = _bound.set(_bound.get(_NONE))
    try:
        bind(**ids)
        yield
    finally:
        _bound.reset(token)


def ids_of(record: logging.LogRecord) -> dict[str, str]:
    """The ids that a line carries."""
    context = _bound.get(_NONE)
    found = {name: getattr(record, name, None) or context.get(name) for name in IDS}
    return {name: str(value) for name, value in found.items() if value is not None}


class TextFormatter(logging.Formatter):
    """`time LEVEL logger message id=…`."""

    def format(self, record: logging.LogRecord) -> str:
        ids = "".join(f" {name}={value}" for name, value in ids_of(record).items())
        line, newline, trace = super().format(record).partition("\n")
        return line + ids + newline + trace


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **ids_of(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(style: Literal["text", "json"], level: str) -> None:
    """Send everything of this process to standard error; libraries only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if style == "json" else TextFormatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every request that is no HTTP
    logging.getLogger("dart_server").setLevel(level.upper())
