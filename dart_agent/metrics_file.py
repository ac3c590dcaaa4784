"""The metrics files of a run: JSON lines, one writer per file.

Rule: a line is written with one `write`, so that a reader never sees half of it after the writer is killed. What a full disk cut off spoils
no other line.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append_metrics(path: Path, line: Mapping[str, Any]) -> None:
    """Add one JSON line to a metrics file.

    Args:
        path: The file. It and its directory are made where they do not exist.
        line: The fields of the line.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


class MetricsReader:
    """Reads the lines that were added to a metrics file since the last time.

    Args:
        path: The file; it need not exist yet.
        from_end: Whether the lines that are there already are left out.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read_new(self) -> list[dict[str, Any]]:
        """Read what is new.

        Returns:
            The complete new lines. A line that is being written is read the next time; one that a full disk cut off is left out.
        """
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [line for text in complete.splitlines() if (line := _object(text)) is not None]


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
