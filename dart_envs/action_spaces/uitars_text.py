"""UI-TARS' action language as an action space: `click(start_box='(412,80)')`, with or without `Thought:` and `Action:`.

Points are screen pixels. Points of a picture of another size are read by a policy's own map
(`dart_envs.action_formats.uitars.parse`).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from gymnasium import Space

from dart_envs.action_formats import ParseError
from dart_envs.action_formats.uitars import format_action, parse
from dart_envs.action_spaces.base import StatelessCodec, TextActionSpace, decode_common_action
from dart_envs.actions import MAX_TEXT_LENGTH, decode_action
from dart_envs.errors import ActionError
from dart_envs.observations.geometry import PointMap
from dart_envs.spaces import action_from_space, make_action_space, reject_masks
from dart_envs.types import DecodedAction

_BARE_CALL = re.compile(r"\s*[A-Za-z_]\w*\s*\(")


class UitarsTextSpace(TextActionSpace):
    """Texts of the language that can be performed on a screen.

    Args:
        resolution: (width, height) of the screen in pixels.
        seed: Seeds the samples.
    """

    def __init__(self, resolution: tuple[int, int], *, seed: int | np.random.Generator | None = None) -> None:
        self._points = PointMap(resolution, resolution)
        self._actions = make_action_space(resolution)
        super().__init__(resolution, self._actions, seed)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a text.

        Args:
            mask: Must be None.
            probability: Must be None.

        Returns:
            One action in the language.
        """
        reject_masks(mask, probability)
        return format_action(action_from_space(self._actions.sample(), self.resolution), self._points)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text that can be performed."""
        return isinstance(x, str) and not isinstance(parse(_with_action_prefix(x), self._points), ParseError)


class UitarsCodec(StatelessCodec):
    """Codec of `uitars`: texts, and `Action`s.

    Args:
        resolution: (width, height) of the screen in pixels.
    """

    def __init__(self, resolution: tuple[int, int]) -> None:
        self._resolution = resolution
        self._points = PointMap(resolution, resolution)
        self._space = UitarsTextSpace(resolution)

    @property
    def space(self) -> Space[Any]:
        """The texts that can be performed."""
        return self._space

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """Read an action; see `ActionCodec.decode`."""
        own = decode_common_action(value, self._resolution)
        if own is not None:
            return own
        if not isinstance(value, str):
            raise ActionError(f"An action of this space is a text in UI-TARS' language, not {type(value).__name__}.")
        if len(value) > 4 * MAX_TEXT_LENGTH:
            raise ActionError(f"The text of an action has {len(value)} characters; the limit is {4 * MAX_TEXT_LENGTH}.")
        parsed = parse(_with_action_prefix(value), self._points)
        if isinstance(parsed, ParseError):
            raise ActionError(parsed.detail, parsed.fault)
        action = parsed.action
        return action if isinstance(action, DecodedAction) else decode_action(action, self._resolution)


def _with_action_prefix(text: str) -> str:
    """Put `Action:` before a bare call."""
    return f"Action: {text}" if _BARE_CALL.match(text) else text
