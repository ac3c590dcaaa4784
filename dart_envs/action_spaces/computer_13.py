"""OSWorld's `computer_13`: thirteen actions of mouse and keyboard, and WAIT, FAIL, DONE.

The codec reads an element of the Dict space, or what OSWorld's agents send: `{"action_type": "CLICK", "parameters":
{"x": 3, "y": 4}}`, the same with flat parameters, or the bare word `WAIT`, `FAIL` or `DONE`. Parameters are OSWorld's;
a point may have fractions and is rounded down. Buttons and keys stay held until they are released. Python text is in
`pyautogui_text`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from dart_envs.action_spaces.base import StatelessCodec, decode_common_action, parse_int
from dart_envs.actions import MAX_KEYS, MAX_TEXT_LENGTH, MAX_WHEEL_CLICKS, check_text, chord_events, clicks, drag
from dart_envs.errors import ActionError
from dart_envs.key_names import to_guest_key
from dart_envs.spaces import WHEEL_CLICKS, KeyChord, UnicodeText
from dart_envs.types import ActionType, DecodedAction
from dart_server.wire import ButtonEvent, InputEvent, KeyEvent, MoveEvent, ScrollEvent, TextEvent, WaitEvent

BUTTONS = ("left", "right", "middle")
BUTTON_NUMBERS = {"left": 1, "middle": 2, "right": 3}
WAIT_MS = 1_000
MAX_CLICKS = 3


class Computer13Codec(StatelessCodec):
    """Codec of `computer_13`; the module's docstring describes its actions.

    Args:
        resolution: (width, height) of the screen in pixels.
    """

    def __init__(self, resolution: tuple[int, int]) -> None:
        self._resolution = resolution
        width, height = resolution
        wheel = 2 * WHEEL_CLICKS + 1
        self._space = spaces.Dict(
            {
                "action_type": spaces.Discrete(len(ACTION_TYPES)),
                "x": spaces.Discrete(width),
                "y": spaces.Discrete(height),
                "button": spaces.Discrete(len(BUTTONS)),
                "num_clicks": spaces.Discrete(MAX_CLICKS, start=1),
                "dx": spaces.Discrete(wheel, start=-WHEEL_CLICKS),
                "dy": spaces.Discrete(wheel, start=-WHEEL_CLICKS),
                "text": UnicodeText(MAX_TEXT_LENGTH),
                "key": KeyChord(max_keys=1),
                "keys": KeyChord(),
            }
        )

    @property
    def space(self) -> Space[Any]:
        """The Dict space of action type and parameters."""
        return self._space

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """Read an action; see `ActionCodec.decode`."""
        own = decode_common_action(value, self._resolution)
        if own is not None:
            return own
        kind, given = self._read(value)
        unknown = sorted(set(given) - _PARAMETERS[kind])
        if unknown:
            raise ActionError(f"{kind} takes no {', '.join(unknown)}.")
        end = _ENDS.get(kind)
        return DecodedAction((), end) if end is not None else DecodedAction(tuple(_EVENTS[kind](self, given, pointer)))

    def _read(self, value: Any) -> tuple[str, dict[str, Any]]:
        """Return name and parameters of an action in any of its forms."""
        if isinstance(value, str):
            if value not in ("WAIT", "FAIL", "DONE"):
                raise ActionError(f"{value!r} is no action of computer_13; a bare word is WAIT, FAIL or DONE.")
            return value, {}
        if not isinstance(value, Mapping):
            raise ActionError(f"An action of computer_13 is a dict with action_type, not {type(value).__name__}.")
        record = dict(value)
        kind = record.pop("action_type", None)
        if isinstance(kind, str):
            if kind not in _PARAMETERS:
                raise ActionError(f"There is no action_type {kind!r}; the types are {', '.join(ACTION_TYPES)}.")
            nested = record.pop("parameters", {}) or {}
            if not isinstance(nested, Mapping):
                raise ActionError(f"The parameters of {kind} are a dict, not {type(nested).__name__}.")
            return kind, record | dict(nested)
        kind = ACTION_TYPES[parse_int(kind, 0, len(ACTION_TYPES) - 1, "action_type")]
        chosen = {name: record[name] for name in _PARAMETERS[kind] if name in record}
        if "button" in chosen:
            chosen["button"] = BUTTONS[parse_int(chosen["button"], 0, len(BUTTONS) - 1, "button")]
        if isinstance(chosen.get("keys"), str):
            chosen["keys"] = _split(chosen["keys"])
        return kind, chosen

    def _point(self, kind: str, given: Mapping[str, Any], *, needed: bool = True) -> list[InputEvent]:
        """Return the move to the point, or nothing where the point is optional and missing."""
        if not needed and "x" not in given and "y" not in given:
            return []
        point = [
            _coordinate(kind, name, given.get(name), side) for name, side in zip("xy", self._resolution, strict=True)
        ]
        return [MoveEvent(x=point[0], y=point[1])]

    def _clicks(self, given: Mapping[str, Any], kind: str, button: str, times: int) -> list[InputEvent]:
        return [*self._point(kind, given, needed=False), *clicks(BUTTON_NUMBERS[button], times)]

    def move_to(self, given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
        """Return the events of MOVE_TO."""
        return self._point("MOVE_TO", given)

    def click(self, given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
        """Return the events of CLICK."""
        times = parse_int(given.get("num_clicks", 1), 1, MAX_CLICKS, "num_clicks of CLICK")
        return self._clicks(given, "CLICK", _button(given), times)

    def right_click(self, given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
        """Return the events of RIGHT_CLICK."""
        return self._clicks(given, "RIGHT_CLICK", "right", 1)

    def double_click(self, given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
        """Return the events of DOUBLE_CLICK."""
        return self._clicks(given, "DOUBLE_CLICK", "left", 2)

    def drag_to(self, given: Mapping[str, Any], pointer: tuple[int, int]) -> list[InputEvent]:
        """Return the events of DRAG_TO, from the pointer's position."""
        target = self._point("DRAG_TO", given)[0]
        assert isinstance(target, MoveEvent)
        return drag(pointer, (target.x, target.y), BUTTON_NUMBERS["left"])


Perform = Callable[[Computer13Codec, Mapping[str, Any], tuple[int, int]], list[InputEvent]]


def _mouse(kind: str) -> Perform:
    def perform(_codec: Computer13Codec, given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
        return [ButtonEvent(type="down" if kind == "MOUSE_DOWN" else "up", button=BUTTON_NUMBERS[_button(given)])]

    return perform


def _keys(kind: str) -> Perform:
    def perform(_codec: Computer13Codec, given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
        names = given.get("keys") if kind == "HOTKEY" else [given.get("key")]
        if not isinstance(names, list | tuple) or not 1 <= len(names) <= MAX_KEYS:
            raise ActionError(f"HOTKEY needs keys, a list of 1 to {MAX_KEYS} names, not {names!r}.")
        pressed = [_key(kind, name) for name in names]
        if kind == "KEY_DOWN":
            return [KeyEvent(type="key_down", key=key) for key in pressed]
        if kind == "KEY_UP":
            return [KeyEvent(type="key_up", key=key) for key in pressed]
        return chord_events(pressed)

    return perform


def _scroll(_codec: Computer13Codec, given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
    if "dx" not in given and "dy" not in given:
        raise ActionError("SCROLL needs dx or dy, in clicks of the wheel.")
    dx, dy = (
        parse_int(given.get(name, 0), -MAX_WHEEL_CLICKS, MAX_WHEEL_CLICKS, f"{name} of SCROLL") for name in ("dx", "dy")
    )
    return [ScrollEvent(dx=dx, dy=dy)] if dx or dy else []


def _typing(_codec: Computer13Codec, given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
    text = given.get("text")
    check_text(text)  # type: ignore[arg-type]
    return [TextEvent(text=str(text))] if text else []


def _wait(_codec: Computer13Codec, _given: Mapping[str, Any], _pointer: tuple[int, int]) -> list[InputEvent]:
    return [WaitEvent(ms=WAIT_MS)]


def _button(given: Mapping[str, Any]) -> str:
    button = given.get("button", "left")
    if button not in BUTTON_NUMBERS:
        raise ActionError(f"A button is left, right or middle, not {button!r}.")
    return str(button)


def _key(kind: str, name: object) -> str:
    key = to_guest_key(name) if isinstance(name, str) else None
    if key is None:
        raise ActionError(f"{kind} needs a key of pyautogui's names or one character, not {name!r}.")
    return key


def _coordinate(kind: str, name: str, value: object, side: int) -> int:
    number = value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ActionError(f"{kind} needs {name} as a number, not {value!r}.")
    if not 0 <= math.floor(number) < side:
        raise ActionError(f"{name} of {kind} must be between 0 and {side - 1}, not {number!r}.")
    return math.floor(number)


def _split(chord: str) -> list[str]:
    """The keys of a chord of the Dict space; a plus sign itself is the last one."""
    return [*chord[:-2].split("+"), "+"] if chord.endswith("++") else ["+"] if chord == "+" else chord.split("+")


_POINT = frozenset({"x", "y"})
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "MOVE_TO": _POINT,
    "CLICK": _POINT | {"button", "num_clicks"},
    "MOUSE_DOWN": frozenset({"button"}),
    "MOUSE_UP": frozenset({"button"}),
    "RIGHT_CLICK": _POINT,
    "DOUBLE_CLICK": _POINT,
    "DRAG_TO": _POINT,
    "SCROLL": frozenset({"dx", "dy"}),
    "TYPING": frozenset({"text"}),
    "PRESS": frozenset({"key"}),
    "KEY_DOWN": frozenset({"key"}),
    "KEY_UP": frozenset({"key"}),
    "HOTKEY": frozenset({"keys"}),
    "WAIT": frozenset(),
    "FAIL": frozenset(),
    "DONE": frozenset(),
}
ACTION_TYPES = tuple(_PARAMETERS)
"""The order of the space's `action_type` index."""
_ENDS: Mapping[str, ActionType] = {"FAIL": ActionType.FAIL, "DONE": ActionType.DONE}
_EVENTS: Mapping[str, Perform] = {
    "MOVE_TO": Computer13Codec.move_to,
    "CLICK": Computer13Codec.click,
    "MOUSE_DOWN": _mouse("MOUSE_DOWN"),
    "MOUSE_UP": _mouse("MOUSE_UP"),
    "RIGHT_CLICK": Computer13Codec.right_click,
    "DOUBLE_CLICK": Computer13Codec.double_click,
    "DRAG_TO": Computer13Codec.drag_to,
    "SCROLL": _scroll,
    "TYPING": _typing,
    "WAIT": _wait,
    **{kind: _keys(kind) for kind in ("PRESS", "KEY_DOWN", "KEY_UP", "HOTKEY")},
}
