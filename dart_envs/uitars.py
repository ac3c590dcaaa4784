r"""Model text to canonical actions, and back.

`parse` reads `Thought: ... Action: click(start_box='(x,y)')` in UI-TARS' action language. `format_action` writes it, which
turns demonstrations into training text. No text makes `parse` raise: it returns a `ParseError` for what is not an action.
What `format_action` writes, `parse` reads back as the same action, up to the picture's resolution. This module does not
perform actions and has no prompts.

    click left_double left_triple right_single middle_single hover   (start_box='(x,y)')
    drag(start_box='(x,y)', end_box='(x,y)')        scroll(start_box='(x,y)', direction='down' [, amount='3'])
    type(content='text, \\n is Enter')               hotkey(key='ctrl s')
    wait([seconds='2'])                             finished([content='...'])                     call_user()

Boxes may be written as `(x,y)`, `x,y`, `[x1,y1,x2,y2]` (its centre), `<|box_start|>(x,y)<|box_end|>` or `<point>x y</point>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dart_envs.actions import check_action
from dart_envs.errors import ActionError
from dart_envs.key_names import is_key
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType

SCROLL_CLICKS = 5
"""Wheel clicks of a scroll that names no amount."""

DEFAULT_WAIT_S = 1.0


_MAX_BOX_CHARS = 120


class ParseErrorKind(StrEnum):
    """Whether a text is not in the action language, or is in it but cannot be performed."""

    STRUCTURE = "structure"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why a text is not an action.

    Attributes:
        kind: Whether the form or the content is wrong.
        detail: One sentence for people.
    """

    kind: ParseErrorKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """An action, and the thought written before it.

    Attributes:
        action: The action, in screen pixels.
        thought: The text before `Action:`.
    """

    action: Action
    thought: str


class _ParseFailed(Exception):
    """Passes a `ParseError` up to `parse`; it does not leave this module."""

    def __init__(self, kind: ParseErrorKind, detail: str) -> None:
        super().__init__(detail)
        self.error = ParseError(kind, detail)


_ACTION = re.compile(r"Action\s*:", re.IGNORECASE)
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_ARGUMENT = re.compile(r"\s*,?\s*([A-Za-z_]\w*)\s*=\s*")
_BARE_VALUE = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|<point>[^<]*</point>|<\|box_start\|>.*?<\|box_end\|>|[^\s,()'\"]+")
_AFTER_VALUE = re.compile(r"\s*(,\s*[A-Za-z_]\w*\s*=|\)\s*(\n|$))")
_MARKS = re.compile(r"<\|box_start\|>|<\|box_end\|>|</?point>|</?bbox>")
_BOX = re.compile(r"[\[(]?\s*(-?\d+(?:\.\d+)?(?:\s*[,\s]\s*-?\d+(?:\.\d+)?)*)\s*[\])]?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_POINT_TYPES: Mapping[str, ActionType] = {
    "click": ActionType.CLICK,
    "left_single": ActionType.CLICK,
    "left_double": ActionType.DOUBLE_CLICK,
    "double_click": ActionType.DOUBLE_CLICK,
    "left_triple": ActionType.TRIPLE_CLICK,
    "triple_click": ActionType.TRIPLE_CLICK,
    "right_single": ActionType.RIGHT_CLICK,
    "right_click": ActionType.RIGHT_CLICK,
    "middle_single": ActionType.MIDDLE_CLICK,
    "middle_click": ActionType.MIDDLE_CLICK,
    "hover": ActionType.MOVE,
    "move": ActionType.MOVE,
}
_POINT_NAMES: Mapping[ActionType, str] = {
    ActionType.CLICK: "click",
    ActionType.DOUBLE_CLICK: "left_double",
    ActionType.TRIPLE_CLICK: "left_triple",
    ActionType.RIGHT_CLICK: "right_single",
    ActionType.MIDDLE_CLICK: "middle_single",
    ActionType.MOVE: "hover",
}
_KEY_ALIASES = {
    "control": "ctrl",
    "cmd": "win",
    "command": "win",
    "meta": "win",
    "super": "win",
    "option": "alt",
    "arrowup": "up",
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
    "page_up": "pageup",
    "page_down": "pagedown",
}
_DIRECTIONS = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}


def parse(text: str, points: PointMap) -> ParsedAction | ParseError:
    """Read the first and only action of a model's answer; this never raises.

    Args:
        text: The answer.
        points: Maps the points of the text to screen pixels.

    Returns:
        The action, or why the text is none.
    """
    try:
        thought, name, arguments = _read(text)
        action = _to_action(name, arguments, points)
        check_action(action, points.screen_wh)
    except _ParseFailed as refused:
        return refused.error
    except ActionError as error:
        return ParseError(ParseErrorKind.CONTENT, str(error))
    return ParsedAction(action, thought)


def format_action(action: Action, points: PointMap, *, thought: str = "") -> str:
    """Write an action as the answer that `parse` reads.

    Args:
        action: The action, in screen pixels.
        points: Maps screen pixels to the points of the text.
        thought: Text before the action; empty leaves it out.

    Returns:
        The answer.

    Raises:
        ActionError: If the action is outside the action space.
    """
    check_action(action, points.screen_wh)
    head = f"Thought: {' '.join(thought.split())}\n" if thought.strip() else ""
    return f"{head}Action: {_call(action, points)}"


def _read(text: str) -> tuple[str, str, dict[str, str]]:
    """Return thought, action name and arguments of an answer."""
    marker = _ACTION.search(text)
    if marker is None:
        raise _ParseFailed(ParseErrorKind.STRUCTURE, "there is no 'Action:'")
    thought = text[: marker.start()].strip()
    if thought.lower().startswith("thought:"):
        thought = thought[len("thought:") :].strip()
    call = _CALL.match(text, marker.end())
    if call is None:
        raise _ParseFailed(ParseErrorKind.STRUCTURE, "no call such as click(start_box='(x,y)') follows 'Action:'")
    position = call.end()
    arguments: dict[str, str] = {}
    while (argument := _ARGUMENT.match(text, position)) is not None:
        if argument.group(1) in arguments:
            raise _ParseFailed(ParseErrorKind.STRUCTURE, f"the argument {argument.group(1)} is given twice")
        arguments[argument.group(1)], position = _value(text, argument.end(), free=argument.group(1) == "content")
    rest = text[position:].lstrip(" \t,")
    if not rest.startswith(")"):
        raise _ParseFailed(ParseErrorKind.STRUCTURE, f"the arguments of {call.group(1)} are not closed by ')'")
    if rest[1:].strip():
        raise _ParseFailed(ParseErrorKind.STRUCTURE, f"more text follows the action {call.group(1)}")
    return thought, call.group(1).lower(), arguments


def _value(text: str, start: int, *, free: bool) -> tuple[str, int]:
    """Return one argument's value from `start`, and where it ends.

    In `free` text, quotes need not be escaped where they cannot be the end.
    """
    quote = text[start : start + 1]
    if quote not in ("'", '"') or not quote:
        bare = _BARE_VALUE.match(text, start)
        if bare is None:
            raise _ParseFailed(ParseErrorKind.STRUCTURE, "an argument has no value")
        return bare.group(), bare.end()
    pieces: list[str] = []
    index = start + 1
    while index < len(text):
        character = text[index]
        if character == "\\" and index + 1 < len(text):
            following = text[index + 1]
            pieces.append(_ESCAPES.get(following, "\\" + following))
            index += 2
        elif character == quote and (not free or _AFTER_VALUE.match(text, index + 1)):
            return "".join(pieces), index + 1
        else:
            pieces.append(character)
            index += 1
    raise _ParseFailed(ParseErrorKind.STRUCTURE, "a quoted value is not closed")


def _to_action(name: str, arguments: dict[str, str], points: PointMap) -> Action:
    if name in _POINT_TYPES:
        x, y = _point(name, arguments, "start", points)
        return Action(_POINT_TYPES[name], x=x, y=y)
    read = _READERS.get(name)
    if read is None:
        raise _ParseFailed(ParseErrorKind.CONTENT, f"there is no action {name!r}")
    return read(name, arguments, points)


def _point(name: str, arguments: dict[str, str], which: str, points: PointMap) -> tuple[int, int]:
    keys = (f"{which}_box", f"{which}_point", *(("point", "box") if which == "start" else ()))
    written = next((arguments[key] for key in keys if key in arguments), None)
    if written is None:
        raise _ParseFailed(ParseErrorKind.CONTENT, f"{name} needs {which}_box='(x,y)'")
    box = _BOX.fullmatch(_MARKS.sub("", written[:_MAX_BOX_CHARS]).strip())
    numbers = [float(number) for number in re.split(r"[,\s]+", box.group(1))] if box else []
    if len(numbers) == 4:
        numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
    if len(numbers) != 2:
        raise _ParseFailed(ParseErrorKind.CONTENT, f"{written[:80]!r} is not a point (x,y)")
    screen = points.to_screen(*numbers)
    if screen is None:
        width, height = points.coordinate_wh
        raise _ParseFailed(
            ParseErrorKind.CONTENT, f"the point {written[:80]!r} is outside the {width}x{height} picture"
        )
    return screen


def _number(name: str, arguments: dict[str, str], key: str, default: float) -> float:
    written = arguments.get(key)
    if written is None:
        return default
    if not re.fullmatch(r"-?\d{1,6}(\.\d{1,6})?", written.strip()):
        raise _ParseFailed(ParseErrorKind.CONTENT, f"{key} of {name} is not a number: {written[:80]!r}")
    return float(written)


def _read_drag(name: str, arguments: dict[str, str], points: PointMap) -> Action:
    x, y = _point(name, arguments, "start", points)
    x2, y2 = _point(name, arguments, "end", points)
    return Action(ActionType.DRAG, x=x, y=y, x2=x2, y2=y2)


def _read_scroll(name: str, arguments: dict[str, str], points: PointMap) -> Action:
    x, y = _point(name, arguments, "start", points)
    if "direction" in arguments:
        direction = _DIRECTIONS.get(arguments["direction"].strip().lower())
        if direction is None:
            raise _ParseFailed(ParseErrorKind.CONTENT, "the direction of a scroll is up, down, left or right")
        clicks = int(_number(name, arguments, "amount", SCROLL_CLICKS))
        return Action(ActionType.SCROLL, x=x, y=y, dx=direction[0] * clicks, dy=direction[1] * clicks)
    if "dx" not in arguments and "dy" not in arguments:
        raise _ParseFailed(ParseErrorKind.CONTENT, "scroll needs direction='down'")
    dx, dy = (int(_number(name, arguments, key, 0)) for key in ("dx", "dy"))
    return Action(ActionType.SCROLL, x=x, y=y, dx=dx, dy=dy)


def _read_type(name: str, arguments: dict[str, str], points: PointMap) -> Action:
    if "content" not in arguments:
        raise _ParseFailed(ParseErrorKind.CONTENT, "type needs content='...'")
    return Action(ActionType.TYPE, text=arguments["content"])


def _read_hotkey(name: str, arguments: dict[str, str], points: PointMap) -> Action:
    keys: list[str] = []
    for token in arguments.get("key", arguments.get("keys", "")).split():
        names = token.split("+") if "+" in token and len(token) > 1 else [token]
        keys += [_key(key) for key in names]
    if not keys:
        raise _ParseFailed(ParseErrorKind.CONTENT, "hotkey needs key='ctrl s'")
    return Action(ActionType.KEY, keys=tuple(keys))


def _key(written: str) -> str:
    lowered = written.lower()
    name = _KEY_ALIASES.get(lowered, lowered if is_key(lowered) and len(written) > 1 else written)
    return name if is_key(name) else written


def _read_wait(name: str, arguments: dict[str, str], points: PointMap) -> Action:
    return Action(ActionType.WAIT, duration_s=_number(name, arguments, "seconds", DEFAULT_WAIT_S))


_READERS: Mapping[str, Callable[[str, dict[str, str], PointMap], Action]] = {
    "drag": _read_drag,
    "select": _read_drag,
    "scroll": _read_scroll,
    "type": _read_type,
    "hotkey": _read_hotkey,
    "press": _read_hotkey,
    "wait": _read_wait,
    "finished": lambda name, arguments, points: Action(ActionType.DONE),
    "call_user": lambda name, arguments, points: Action(ActionType.FAIL),
}


def _call(action: Action, points: PointMap) -> str:
    if action.type in _POINT_NAMES:
        return f"{_POINT_NAMES[action.type]}(start_box={_box(action.x, action.y, points)})"
    return _WRITERS[action.type](action, points)


def _box(x: int | None, y: int | None, points: PointMap) -> str:
    assert x is not None
    assert y is not None
    written_x, written_y = points.to_model(x, y)
    return f"'({written_x},{written_y})'"


def _write_drag(action: Action, points: PointMap) -> str:
    return f"drag(start_box={_box(action.x, action.y, points)}, end_box={_box(action.x2, action.y2, points)})"


def _write_scroll(action: Action, points: PointMap) -> str:
    start = f"scroll(start_box={_box(action.x, action.y, points)}"
    if (action.dx == 0) == (action.dy == 0):
        return f"{start}, dx='{action.dx}', dy='{action.dy}')"
    clicks = abs(action.dx + action.dy)
    sign = (_sign(action.dx), _sign(action.dy))
    direction = next(name for name, step in _DIRECTIONS.items() if step == sign)
    amount = "" if clicks == SCROLL_CLICKS else f", amount='{clicks}'"
    return f"{start}, direction='{direction}'{amount})"


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _write_hotkey(action: Action, points: PointMap) -> str:
    return f"hotkey(key='{_escape(' '.join('space' if key == ' ' else key for key in action.keys))}')"


def _write_wait(action: Action, points: PointMap) -> str:
    return "wait()" if action.duration_s == DEFAULT_WAIT_S else f"wait(seconds='{action.duration_s:g}')"


def _escape(text: str) -> str:
    for plain, written in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        text = text.replace(plain, written)
    return text


_WRITERS: Mapping[ActionType, Callable[[Action, PointMap], str]] = {
    ActionType.DRAG: _write_drag,
    ActionType.SCROLL: _write_scroll,
    ActionType.TYPE: lambda action, points: f"type(content='{_escape(action.text)}')",
    ActionType.KEY: _write_hotkey,
    ActionType.WAIT: _write_wait,
    ActionType.DONE: lambda action, points: "finished(content='')",
    ActionType.FAIL: lambda action, points: "call_user()",
}
