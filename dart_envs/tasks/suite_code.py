"""Errors of the code that a suite brings along, as one sentence.

Role: `suite_code_errors`. Rule: whatever that code raises becomes a `TaskError` that names file and line; a `TaskError` of its own
stays as it is. Non-goals: running that code (`dart_envs.tasks.loader`, `dart_envs.tasks.suite`).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from dart_envs.errors import TaskError

NOT_OF_A_SUITE = sys.stdlib_module_names | {"dart_envs"}


@contextmanager
def suite_code_errors(what: str, *, defined_at: str = "") -> Iterator[None]:
    """Run code of a suite in the context.

    Args:
        what: What the code does, as the subject of a sentence.
        defined_at: File and line to name where no line of the suite raised the error.

    Raises:
        TaskError: If the code raised an error.
    """
    try:
        yield
    except TaskError:
        raise
    except Exception as error:
        place = error_place(error) or defined_at
        said = " ".join(str(error).split()).rstrip(".")
        raise TaskError(
            f"{what} failed{f' in {place}' if place else ''}: {type(error).__name__}{f': {said}' if said else ''}."
        ) from error


def error_place(error: Exception) -> str:
    """Say which line of a suite's own code raised an error.

    Args:
        error: The error.

    Returns:
        File and line of the innermost frame in the package that was entered first, the standard library and this package left out;
        empty where there is none.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [
        (str(frame.f_globals.get("__name__", "")).partition(".")[0], f"{frame.f_code.co_filename}, line {line}")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [(package, place) for package, place in frames if package not in NOT_OF_A_SUITE]
    return [place for package, place in own if package == own[0][0]][-1] if own else ""
