"""Mouse and keyboard as one Box in [-1, 1], for continuous control.

    0, 1     pointer: -1 is the left (top) edge, 1 the right (bottom) one
    2, 3, 4  left, middle and right button: held while above 0
    5, 6     wheel: clicks to the right, clicks up, WHEEL_CLICKS at 1
    7 ..     KEYS in order: held while above 0
    last     the end: DONE above DONE_THRESHOLD

Keys are pressed before buttons and released after them. They stay held between steps, so that a drag takes three
steps, and are released before DONE. There is no text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from dart_envs.action_spaces.base import decode_common_action
from dart_envs.errors import ActionError
from dart_envs.types import ActionType, DecodedAction
from dart_server.wire import ButtonEvent, InputEvent, KeyEvent, MoveEvent, ScrollEvent

BUTTONS = (1, 2, 3)
KEYS = ("ctrl", "shift", "alt", "enter", "tab", "escape", "space", "backspace", "up", "down", "left", "right")
WHEEL_CLICKS = 5
DONE_THRESHOLD = 0.95
SIZE = 2 + len(BUTTONS) + 2 + len(KEYS) + 1


class NormalizedCodec:
    """Codec of `normalized`, which remembers what is held since the last `reset`; the module's docstring has the layout.

    Args:
        resolution: (width, height) of the screen in pixels.
    """

    def __init__(self, resolution: tuple[int, int]) -> None:
        self._resolution = resolution
        self._space = spaces.Box(-1.0, 1.0, (SIZE,), np.float32)
        self._held: frozenset[int | str] = frozenset()
        self._decoded: frozenset[int | str] = frozenset()

    @property
    def space(self) -> spaces.Box:
        """A Box of 20 numbers in [-1, 1]."""
        return self._space

    def reset(self) -> None:
        """Forget what is held: a fresh desktop holds nothing."""
        self._held = self._decoded = frozenset()

    def commit(self) -> None:
        """Remember that the keys and buttons of the action decoded last are held now."""
        self._held = self._decoded

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """Read an action; see `ActionCodec.decode`."""
        own = decode_common_action(value, self._resolution)
        if own is not None:
            self._decoded = self._held
            return own
        try:
            numbers = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise ActionError(f"An action of normalized is {SIZE} numbers in [-1, 1], not {value!r}.") from None
        if numbers.shape != (SIZE,) or not np.all(np.abs(numbers) <= 1.0):
            raise ActionError(f"An action of normalized is {SIZE} numbers in [-1, 1], not {numbers.tolist()!r}.")
        width, height = self._resolution
        events: list[InputEvent] = [
            MoveEvent(x=round((numbers[0] + 1) / 2 * (width - 1)), y=round((numbers[1] + 1) / 2 * (height - 1)))
        ]
        named: tuple[int | str, ...] = (*BUTTONS, *KEYS)
        levels = np.concatenate([numbers[2:5], numbers[7 : 7 + len(KEYS)]])
        done = bool(numbers[-1] > DONE_THRESHOLD)
        wanted = frozenset(name for name, level in zip(named, levels, strict=True) if level > 0 and not done)
        order: tuple[int | str, ...] = (*KEYS, *BUTTONS)
        events += [_press(name, down=False) for name in reversed(order) if name in self._held - wanted]
        events += [_press(name, down=True) for name in order if name in wanted - self._held]
        wheel = [round(level * WHEEL_CLICKS) for level in numbers[5:7]]
        if any(wheel):
            events.append(ScrollEvent(dx=wheel[0], dy=wheel[1]))
        self._decoded = wanted
        return DecodedAction(tuple(events), ActionType.DONE if done else None)


def _press(name: int | str, *, down: bool) -> InputEvent:
    if isinstance(name, int):
        return ButtonEvent(type="down" if down else "up", button=name)
    return KeyEvent(type="key_down" if down else "key_up", key=name)
