"""How a suite's instructions call the elements of a screen.

Role: the protocol behind `Suite.screen_names`, from which supervised questions about annotated screens are made. Rule: names are words
of the suite's own instructions; a suite without them has no such questions. Non-goals: the questions, names of a suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dart_server.wire import A11yElement

WINDOW_ROLES = frozenset({"dialog", "frame", "window", "alert"})
"""Roles of elements that are windows."""


@dataclass(frozen=True, slots=True)
class NamedElement:
    """An element of the screen with a name.

    Attributes:
        name: Its name, for instance "last button above".
        sentence: The sentence that asks for it.
        element: The element.
        by_text: Whether the name is a text that varies from task to task and has to be read from the screen.
    """

    name: str
    sentence: str
    element: A11yElement
    by_text: bool = False


class ScreenNames(Protocol):
    """The names that a suite's instructions use."""

    def name_elements(self, elements: Sequence[A11yElement]) -> Sequence[NamedElement]:
        """Name the elements of a screen; an element may have several names.

        Args:
            elements: The accessibility tree.

        Returns:
            The named elements.
        """
        ...

    def is_mentioned(self, name: str, instruction: str) -> bool:
        """Say whether an instruction means the element of a name.

        Args:
            name: The name.
            instruction: The instruction.

        Returns:
            True where it does.
        """
        ...


def lies_within(inner: A11yElement, outer: A11yElement) -> bool:
    """Say whether an element covers no pixel outside of another one.

    Args:
        inner: The element.
        outer: The other one.

    Returns:
        True where it does not.
    """
    return (
        outer.x <= inner.x
        and outer.y <= inner.y
        and inner.x + inner.w <= outer.x + outer.w
        and inner.y + inner.h <= outer.y + outer.h
    )
