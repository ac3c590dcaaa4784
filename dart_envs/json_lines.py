"""Files of JSON lines that grow while something is done, and are read again by the command that goes on.

Role: append a value, and read the lines. Rule: one line per value, ASCII only, so that no character of a value ends a line or cannot be
encoded; what a killed process wrote half is cut off before more is appended. Non-goals: what the lines mean.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append_json_line(path: Path, value: Any) -> None:
    """Append a value as one line.

    Args:
        path: The file; made where it is not there.
        value: A JSON value.
    """
    with path.open("a", encoding="ascii") as file:
        file.write(json.dumps(value) + "\n")


def read_json_lines(path: Path) -> list[str]:
    """Read the lines of a file.

    Args:
        path: The file.

    Returns:
        The lines, without their ends; line feeds alone end a line.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not UTF-8.
    """
    lines = path.read_bytes().decode("utf-8").split("\n")
    return lines if lines[-1] else lines[:-1]


def cut_incomplete_line(path: Path) -> None:
    """Remove the last line of a file where it has no end: whoever wrote it was killed, or the disk was full.

    Args:
        path: The file.
    """
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
