"""What an action space is to an environment. Role: the protocol and what several codecs share. Non-goals: any one space."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium import Space

from dart_envs.actions import decode_action
from dart_envs.errors import ActionError
from dart_envs.spaces import action_from_space, make_action_space
from dart_envs.types import Action, DecodedAction


class ActionCodec(Protocol):
    """Reads what a caller of `env.step` gives. One per desktop: it may remember what is held down."""

    @property
    def space(self) -> Space[Any]:
        """The Gymnasium space; every sample of it can be decoded."""
        ...

    def reset(self) -> None:
        """An episode begins: nothing is held."""
        ...

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """What to perform; `pointer` is where the pointer is, screen pixels. Changes nothing. Raises `ActionError`."""
        ...

    def commit(self) -> None:
        """What was decoded last is performed now."""
        ...


class StatelessCodec:
    """Base of codecs that remember nothing between actions."""

    def reset(self) -> None:
        """Nothing is remembered."""

    def commit(self) -> None:
        """Nothing is remembered."""


class TextActionSpace(Space[str]):
    """Base of spaces of texts for a screen of `resolution`: two are equal when class and resolution are. `part`: a space that samples are
    drawn with, seeded together with this one."""

    def __init__(self, resolution: tuple[int, int], part: Space[Any], seed: int | np.random.Generator | None) -> None:
        self.resolution = resolution
        self._part = part
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def seed(self, seed: Any = None) -> Any:
        seeds = super().seed(seed)
        self._part.seed(None if seed is None else int(np.random.default_rng(seed).integers(2**31)))
        return seeds

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.resolution})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, TextActionSpace) and other.resolution == self.resolution

    def __hash__(self) -> int:
        return hash((type(self), self.resolution))


def decode_common_action(value: object, resolution: tuple[int, int]) -> DecodedAction | None:
    """What an `Action` or a `DecodedAction` means, which every action space takes beside its own elements; None for all else."""
    if isinstance(value, DecodedAction):
        return value
    return decode_action(value, resolution) if isinstance(value, Action) else None


def parse_int(value: object, low: int, high: int, name: str) -> int:
    """An integer of [low, high], also as a NumPy scalar or an array of one element. Raises `ActionError`."""
    element = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
    if isinstance(element, float) and element.is_integer():
        element = int(element)
    if isinstance(element, bool) or not isinstance(element, int) or not low <= element <= high:
        raise ActionError(f"{name} is a whole number from {low} to {high}, not {value!r}.")
    return element


class CanonicalCodec(StatelessCodec):
    """Elements of the Dict, `Action`s, and the JSON form of an action."""

    def __init__(self, resolution: tuple[int, int]) -> None:
        self._resolution = resolution
        self._space = make_action_space(resolution)

    @property
    def space(self) -> Space[Any]:
        return self._space

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        own = decode_common_action(value, self._resolution)
        return own or decode_action(action_from_space(value, self._resolution), self._resolution)
