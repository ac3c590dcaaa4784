"""The canonical actions as an action space (`dart_envs.spaces`). Non-goals: what an action needs (`dart_envs.actions`)."""

from __future__ import annotations

from typing import Any

from gymnasium import Space

from dart_envs.action_spaces.base import StatelessCodec, decode_common_action
from dart_envs.actions import decode_action
from dart_envs.spaces import action_from_space, make_action_space
from dart_envs.types import DecodedAction


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
