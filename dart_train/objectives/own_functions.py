"""Functions that a user gives by name, in the place of formulas of this package.

Role: `load_function`. Rule: what cannot be loaded is refused in one sentence, before a run starts. Non-goals: what a function gets and
returns (`algorithms`, `advantages`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any


def load_function(kind: str, name: str, known: Iterable[str]) -> Callable[..., Any]:
    """Load a function.

    Args:
        kind: What it is, for messages.
        name: `module:function`.
        known: Names of those that this package has, for messages.

    Returns:
        The function.

    Raises:
        ValueError: There is no such function.
    """
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"there is no {kind} {name!r}: use one of {', '.join(known)}, or your own as module:function")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise ValueError(f"the {kind} {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"the {kind} {name!r} is no function: it is of the type {type(found).__name__}")
    return found
