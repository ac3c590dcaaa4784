"""Short words for what a solution does.

Role: constructors of `ActionTemplate`. Rule: data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dart_envs.tasks.script import ActionTemplate, ElementTarget


@dataclass(frozen=True, slots=True)
class Oracle:
    """A solution. how: by which means, in a few words, for the table. moves: in order; each target is waited for."""

    method: str
    moves: tuple[ActionTemplate, ...]


def click(role: str, name: str, **target: Any) -> ActionTemplate:
    """Point at an element and click."""
    return ActionTemplate(do="click", target=ElementTarget(role=role, name=name, **target))


def wait_for_element(role: str, name: str, **target: Any) -> ActionTemplate:
    """Wait for an element, and put the pointer on it."""
    return ActionTemplate(do="move", target=ElementTarget(role=role, name=name, **target))


def double_click(role: str, name: str, **target: Any) -> ActionTemplate:
    """Point at an element and click twice."""
    return ActionTemplate(do="double_click", target=ElementTarget(role=role, name=name, **target))


def triple_click(role: str, name: str, **target: Any) -> ActionTemplate:
    """Point at an element and click three times, which selects what a field holds."""
    return ActionTemplate(do="triple_click", target=ElementTarget(role=role, name=name, **target))


def key(*keys: str) -> ActionTemplate:
    """Press keys together."""
    return ActionTemplate(do="key", keys=keys)


def type_text(text: str) -> ActionTemplate:
    """Type with the keyboard."""
    return ActionTemplate(do="type", text=text)


def pause(seconds: float = 1.0) -> ActionTemplate:
    """Let a program catch up."""
    return ActionTemplate(do="wait", duration_s=seconds)


def run_shell(line: str) -> ActionTemplate:
    """What a person would enter in a terminal. The Python that runs it fails with the line."""
    return ActionTemplate(
        do="code", text=f"import subprocess; subprocess.run({line!r}, shell=True, check=True, executable='/bin/bash')"
    )
