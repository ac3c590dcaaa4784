"""What an action space is to an environment. Role: the protocol and what several codecs share. Non-goals: any one space."""

from __future__ import annotations

from typing import Any, Protocol

from gymnasium import Space

from dart_envs.actions import to_gesture
from dart_envs.errors import ActionError
from dart_envs.types import Action, Gesture


class ActionCodec(Protocol):
    """Reads what a caller of `env.step` gives. One per desktop: it may remember what is held down."""

    @property
    def space(self) -> Space[Any]:
        """The Gymnasium space; every sample of it can be decoded."""
        ...

    def reset(self) -> None:
        """An episode begins: nothing is held."""
        ...

    def decode(self, value: Any, pointer: tuple[int, int]) -> Gesture:
        """What to perform; `pointer` is where the pointer is, screen pixels. Changes nothing. Raises `ActionError`."""
        ...

    def performed(self) -> None:
        """What was decoded last is performed now."""
        ...


def own_action(value: object, resolution: tuple[int, int]) -> Gesture | None:
    """What an `Action` or a `Gesture` means, which every action space takes beside its own elements; None for all else."""
    if isinstance(value, Gesture):
        return value
    return to_gesture(value, resolution) if isinstance(value, Action) else None


def whole_number(value: object, low: int, high: int, name: str) -> int:
    """An integer of [low, high], also as a NumPy scalar or an array of one element. Raises `ActionError`."""
    element = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
    if isinstance(element, float) and element.is_integer():
        element = int(element)
    if isinstance(element, bool) or not isinstance(element, int) or not low <= element <= high:
        raise ActionError(f"{name} is a whole number from {low} to {high}, not {value!r}.")
    return element
