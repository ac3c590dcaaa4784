"""Logging of the farm: standard library, one line per record, as text or as JSON, to standard error.

Rule: records name things by id (`request_id`, `lease_id`, `desktop_id`); keys, tokens, headers and bodies are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

IDS = ("request_id", "lease_id", "desktop_id")


def _ids(record: logging.LogRecord) -> dict[str, str]:
    return {name: str(value) for name in IDS if (value := getattr(record, name, None)) is not None}


class TextFormatter(logging.Formatter):
    """`time LEVEL logger message id=…`."""

    def format(self, record: logging.LogRecord) -> str:
        ids = "".join(f" {name}={value}" for name, value in _ids(record).items())
        return super().format(record) + ids


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_ids(record),
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
    logging.getLogger("dart_server").setLevel(level.upper())
