"""Short words for what a solution does.

Role: constructors of `Move`. Rule: data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dart_envs.tasks.script import ElementTarget, Move


@dataclass(frozen=True, slots=True)
class Oracle:
    """A solution. how: by which means, in a few words, for the table. moves: in order; each target is waited for."""

    how: str
    moves: tuple[Move, ...]


def click(role: str, name: str, **target: Any) -> Move:
    """Point at an element and click."""
    return Move(do="click", target=ElementTarget(role=role, name=name, **target))


def appear(role: str, name: str, **target: Any) -> Move:
    """Wait for an element, and put the pointer on it."""
    return Move(do="move", target=ElementTarget(role=role, name=name, **target))


def double_click(role: str, name: str, **target: Any) -> Move:
    """Point at an element and click twice."""
    return Move(do="double_click", target=ElementTarget(role=role, name=name, **target))


def triple_click(role: str, name: str, **target: Any) -> Move:
    """Point at an element and click three times, which selects what a field holds."""
    return Move(do="triple_click", target=ElementTarget(role=role, name=name, **target))


def key(*keys: str) -> Move:
    """Press keys together."""
    return Move(do="key", keys=keys)


def type_text(text: str) -> Move:
    """Type with the keyboard."""
    return Move(do="type", text=text)


def pause(seconds: float = 1.0) -> Move:
    """Let a program catch up."""
    return Move(do="wait", seconds=seconds)


def shell(line: str) -> Move:
    """What a person would enter in a terminal. The Python that runs it fails with the line."""
    return Move(
        do="code", text=f"import subprocess; subprocess.run({line!r}, shell=True, check=True, executable='/bin/bash')"
    )
