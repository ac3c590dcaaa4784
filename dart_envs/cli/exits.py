"""Exit codes of `dart-envs`, and the one sentence that goes with each. Non-goals: tracebacks, which are defects."""

from __future__ import annotations

import sys

import typer

EXIT_RUNTIME_ERROR = 1
EXIT_USAGE_ERROR = 2


def usage_error(message: str) -> typer.Exit:
    """One sentence about wrong input; raise what is returned."""
    print(f"dart-envs: {message}", file=sys.stderr)
    return typer.Exit(EXIT_USAGE_ERROR)


def runtime_error(message: str) -> typer.Exit:
    """One sentence about what did not work; raise what is returned."""
    print(f"dart-envs: {message}", file=sys.stderr)
    return typer.Exit(EXIT_RUNTIME_ERROR)
