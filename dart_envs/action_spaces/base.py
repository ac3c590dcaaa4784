"""The protocol of action codecs, what several codecs share, and the codec of canonical actions."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium import Space

from dart_envs.actions import decode_action
from dart_envs.errors import ActionError
from dart_envs.spaces import action_from_space, make_action_space
from dart_envs.types import Action, DecodedAction


class ActionCodec(Protocol):
    """Reads the actions that a caller of `env.step` gives. Each desktop has its own, because it may remember what is held down."""

    @property
    def space(self) -> Space[Any]:
        """The Gymnasium space; every sample of it can be decoded."""
        ...

    def reset(self) -> None:
        """Forget what is held: an episode begins."""
        ...

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """Read an action, without changing the codec's state.

        Args:
            value: An element of `space`, an `Action`, or a `DecodedAction`.
            pointer: Pointer position, in screen pixels.

        Returns:
            What to perform.

        Raises:
            ActionError: If the value cannot be performed.
        """
        ...

    def commit(self) -> None:
        """Remember that the action decoded last is performed now."""
        ...


class StatelessCodec:
    """Base of codecs that remember nothing between actions."""

    def reset(self) -> None:
        """Do nothing: there is no state."""

    def commit(self) -> None:
        """Do nothing: there is no state."""


class TextActionSpace(Space[str]):
    """Base of spaces of texts for one screen size; two are equal when class and resolution are.

    Args:
        resolution: (width, height) of the screen in pixels.
        part: A space that samples are drawn with, seeded together with this one.
        seed: Seeds the samples.

    Attributes:
        resolution: (width, height) of the screen in pixels.
    """

    def __init__(self, resolution: tuple[int, int], part: Space[Any], seed: int | np.random.Generator | None) -> None:
        self.resolution = resolution
        self._part = part
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: texts have no array form."""
        return False

    def seed(self, seed: Any = None) -> Any:
        """Seed this space and its part.

        Args:
            seed: The seed; None takes a random one.

        Returns:
            The seed in use, as `Space.seed`.
        """
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
    """Read an `Action` or a `DecodedAction`, which every action space takes beside its own elements.

    Args:
        value: The value of `env.step`.
        resolution: (width, height) of the screen in pixels.

    Returns:
        What to perform, or None for any other value.

    Raises:
        ActionError: If an `Action` cannot be performed.
    """
    if isinstance(value, DecodedAction):
        return value
    return decode_action(value, resolution) if isinstance(value, Action) else None


def parse_int(value: object, low: int, high: int, name: str) -> int:
    """Read an integer, also from a NumPy scalar or an array of one element.

    Args:
        value: The value.
        low: The smallest allowed integer.
        high: The largest allowed integer.
        name: Name of the value, for the message.

    Returns:
        The integer.

    Raises:
        ActionError: If it is not an integer of that range.
    """
    element = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
    if isinstance(element, float) and element.is_integer():
        element = int(element)
    if isinstance(element, bool) or not isinstance(element, int) or not low <= element <= high:
        raise ActionError(f"{name} is a whole number from {low} to {high}, not {value!r}.")
    return element


class CanonicalCodec(StatelessCodec):
    """Elements of the canonical Dict, `Action`s, and the JSON form of an action.

    Args:
        resolution: (width, height) of the screen in pixels.
    """

    def __init__(self, resolution: tuple[int, int]) -> None:
        self._resolution = resolution
        self._space = make_action_space(resolution)

    @property
    def space(self) -> Space[Any]:
        """The canonical Dict (`dart_envs.spaces.make_action_space`)."""
        return self._space

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """Read an action; see `ActionCodec.decode`."""
        own = decode_common_action(value, self._resolution)
        return own or decode_action(action_from_space(value, self._resolution), self._resolution)
