"""The metrics files of a run: JSON lines, one writer per file.

Rule: a line is written with one `write`, so that a reader never sees half of it after the writer is killed.
"""

from __future__ import annotations

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
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
