"""Exit codes of `dart-train`, and the one sentence that goes with wrong input.

Role: what the modules of the command line share. Rule: wrong input is told on standard error. Non-goals: exit codes of components.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130


def wrong_input(message: str) -> typer.Exit:
    """Tell a person what is wrong with the input.

    Args:
        message: One sentence with the fix.

    Returns:
        The exception to raise.
    """
    print(f"dart-train: {message}", file=sys.stderr)
    return typer.Exit(EXIT_WRONG_INPUT)


def check_output_file(option: str, file: Path | None) -> None:
    """Check before any work that a file can be written at its end.

    Args:
        option: The option that names it.
        file: The file; None: none is written.

    Raises:
        typer.Exit: It cannot.
    """
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        raise wrong_input(f"{option}: {file} is no file of a folder that exists: make the folder, or give another file")
