r"""UI-TARS' action language: model text to canonical actions, and back.

`parse` reads `Thought: ... Action: click(start_box='(x,y)')`. `format_action` writes it, which turns demonstrations into
training text. No text makes `parse` raise: it returns a `ParseError` for what is not an action. What `format_action`
writes, `parse` reads back as the same action, up to the picture's resolution. Prompts are in `uitars_prompts`.

    click left_double left_triple right_single middle_single hover   (start_box='(x,y)')
    drag(start_box='(x,y)', end_box='(x,y)')        scroll(start_box='(x,y)', direction='down' [, amount='3'])
    type(content='text, \\n is Enter')               hotkey(key='ctrl s')
    wait([seconds='2'])                             finished([content='...'])                     call_user()

Boxes may be written as `(x,y)`, `x,y`, `[x1,y1,x2,y2]` (its centre), `<|box_start|>(x,y)<|box_end|>` or `<point>x y</point>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dart_envs.action_formats.base import MAX_ACTIONS, ParsedAnswer, ParseError, point_to_screen, read_answer
from dart_envs.actions import check_action
from dart_envs.errors import ActionError, ActionFault
from dart_envs.key_names import canonical_key
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType

SCROLL_CLICKS = 5
"""Wheel clicks of a scroll that names no amount."""

_MAX_BOX_CHARS = 120


@dataclass(frozen=True, slots=True)
class UitarsDialect:
    """What differs between the checkpoints that were trained with the language.

    Attributes:
        wait_s: Seconds of a `wait()` that names none.
        box: How a point is written; `{x}` and `{y}` are filled in.
        batches: Whether an answer may hold several calls, each on a line of its own.
    """

    wait_s: float = 1.0
    box: str = "({x},{y})"
    batches: bool = False


OWN_DIALECT = UitarsDialect()
"""The dialect of models that are trained here."""

_ACTION = re.compile(r"Action\s*:", re.IGNORECASE)
_ACTION_LINE = re.compile(r"^[ \t]*Action\s*:", re.IGNORECASE | re.MULTILINE)
_CALL_SEPARATOR = "\n\n"
_END = re.compile(r"[ \t,]*\)")
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_ARGUMENT = re.compile(r"\s*(?:,\s*)?([A-Za-z_]\w*)\s*=\s*")
_BARE_VALUE = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|<point>[^<]*</point>|<\|box_start\|>.*?<\|box_end\|>|[^\s,()'\"]+")
_AFTER_VALUE = re.compile(r"\s*(,\s*[A-Za-z_]\w*\s*=|\)\s*(\n|$))")
_MARKS = re.compile(r"<\|box_start\|>|<\|box_end\|>|</?point>|</?bbox>")
_COORDINATE = re.compile(r"-?\d{1,15}(\.\d{1,18})?", re.ASCII)
_SEPARATOR = re.compile(r"\s*,\s*|\s+")
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
_DIRECTIONS = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}


def parse(text: str, points: PointMap, dialect: UitarsDialect = OWN_DIALECT) -> ParsedAnswer | ParseError:
    """Read a model's answer; this never raises.

    Args:
        text: The answer.
        points: Maps the points of the text to screen pixels.
        dialect: The dialect of the model.

    Returns:
        What it performs, or why the text is no action.
    """

    def read() -> tuple[list[Action], str]:
        thought, calls = _read(text, dialect)
        return [_to_action(name, arguments, points, dialect) for name, arguments in calls], thought

    return read_answer(read, points.screen_wh)


def format_action(action: Action, points: PointMap, *, thought: str = "", dialect: UitarsDialect = OWN_DIALECT) -> str:
    """Write an action as the answer that `parse` reads.

    Args:
        action: The action, in screen pixels.
        points: Maps screen pixels to the points of the text.
        thought: Text before the action; empty leaves it out.
        dialect: The dialect of the model.

    Returns:
        The answer.

    Raises:
        ActionError: If the action is outside the action space.
    """
    return format_actions([action], points, thought=thought, dialect=dialect)


def format_actions(
    actions: Sequence[Action], points: PointMap, *, thought: str = "", dialect: UitarsDialect = OWN_DIALECT
) -> str:
    """Write actions as the answer that `parse` reads, with an empty line between two calls; see `format_action`."""
    for action in actions:
        check_action(action, points.screen_wh)
    head = f"Thought: {' '.join(thought.split())}\n" if thought.strip() else ""
    return f"{head}Action: {_CALL_SEPARATOR.join(_call(action, points, dialect) for action in actions)}"


def _read(text: str, dialect: UitarsDialect) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    """Return the thought, and name and arguments of each call of an answer."""
    marker = _ACTION.search(text)
    if dialect.batches:
        marker = max(_ACTION_LINE.finditer(text), key=re.Match.start, default=marker)
    if marker is None:
        raise ActionError("There is no 'Action:'.", ActionFault.NO_ACTION)
    thought = text[: marker.start()].strip()
    if thought.lower().startswith("thought:"):
        thought = thought[len("thought:") :].strip()
    calls: list[tuple[str, dict[str, str]]] = []
    position = marker.end()
    while not calls or (dialect.batches and text[position:].strip()):
        if len(calls) == MAX_ACTIONS:
            raise ActionError(f"An answer has at most {MAX_ACTIONS} actions.", ActionFault.TOO_MANY)
        name, arguments, position = _read_call(text, position)
        calls.append((name, arguments))
    if text[position:].strip():
        raise ActionError(f"More text follows the action {calls[0][0]}.", ActionFault.BAD_SYNTAX)
    return thought, calls


def _read_call(text: str, start: int) -> tuple[str, dict[str, str], int]:
    """Return name and arguments of the call that begins at `start`, and where it ends."""
    call = _CALL.match(text, start)
    if call is None:
        fault = ActionFault.BAD_SYNTAX if text[start:].strip() else ActionFault.NO_ACTION
        raise ActionError("No call such as click(start_box='(x,y)') follows 'Action:'.", fault)
    position = call.end()
    arguments: dict[str, str] = {}
    while (argument := _ARGUMENT.match(text, position)) is not None:
        if argument.group(1) in arguments:
            raise ActionError(f"The argument {argument.group(1)} is given twice.", ActionFault.BAD_SYNTAX)
        arguments[argument.group(1)], position = _value(text, argument.end(), free=argument.group(1) == "content")
    end = _END.match(text, position)
    if end is None:
        raise ActionError(f"The arguments of {call.group(1)} are not closed by ')'.", ActionFault.BAD_SYNTAX)
    return call.group(1).lower(), arguments, end.end()


def _value(text: str, start: int, *, free: bool) -> tuple[str, int]:
    """Return one argument's value from `start`, and where it ends.

    In `free` text, quotes need not be escaped where they cannot be the end.
    """
    quote = text[start : start + 1]
    if quote not in ("'", '"') or not quote:
        bare = _BARE_VALUE.match(text, start)
        if bare is None:
            raise ActionError("An argument has no value.", ActionFault.BAD_SYNTAX)
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
    raise ActionError("A quoted value is not closed.", ActionFault.BAD_SYNTAX)


def _to_action(name: str, arguments: dict[str, str], points: PointMap, dialect: UitarsDialect) -> Action:
    if name in _POINT_TYPES:
        x, y = _point(name, arguments, "start", points)
        return Action(_POINT_TYPES[name], x=x, y=y)
    if name == "wait":
        return Action(ActionType.WAIT, duration_s=_number(name, arguments, "seconds", dialect.wait_s))
    read = _READERS.get(name)
    if read is None:
        raise ActionError(f"There is no action {name[:40]!r}.", ActionFault.UNKNOWN_ACTION)
    return read(name, arguments, points)


def _point(name: str, arguments: dict[str, str], which: str, points: PointMap) -> tuple[int, int]:
    keys = (f"{which}_box", f"{which}_point", *(("point", "box") if which == "start" else ()))
    written = next((arguments[key] for key in keys if key in arguments), None)
    if written is None:
        raise ActionError(f"{name} needs {which}_box='(x,y)'.", ActionFault.MISSING_FIELD)
    box = _MARKS.sub("", written[:_MAX_BOX_CHARS]).strip()
    inner = box[box[:1] in ("(", "[") : len(box) - (box[-1:] in (")", "]"))].strip()
    words = _SEPARATOR.split(inner)
    numbers = [float(word) for word in words if _COORDINATE.fullmatch(word)]
    if len(numbers) == 4:
        numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
    if len(numbers) != 2 or len(words) not in (2, 4):
        raise ActionError(f"{written[:80]!r} is not a point (x,y).")
    return point_to_screen(numbers[0], numbers[1], points)


def _number(name: str, arguments: dict[str, str], key: str, default: float) -> float:
    written = arguments.get(key)
    if written is None:
        return default
    if not re.fullmatch(r"-?\d{1,6}(\.\d{1,6})?", written.strip()):
        raise ActionError(f"{key} of {name} is not a number: {written[:80]!r}.")
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
            raise ActionError("The direction of a scroll is up, down, left or right.")
        clicks = int(_number(name, arguments, "amount", SCROLL_CLICKS))
        return Action(ActionType.SCROLL, x=x, y=y, dx=direction[0] * clicks, dy=direction[1] * clicks)
    if "dx" not in arguments and "dy" not in arguments:
        raise ActionError("scroll needs direction='down'.", ActionFault.MISSING_FIELD)
    dx, dy = (int(_number(name, arguments, key, 0)) for key in ("dx", "dy"))
    return Action(ActionType.SCROLL, x=x, y=y, dx=dx, dy=dy)


def _read_type(name: str, arguments: dict[str, str], points: PointMap) -> Action:
    if "content" not in arguments:
        raise ActionError("type needs content='...'.", ActionFault.MISSING_FIELD)
    return Action(ActionType.TYPE, text=arguments["content"])


def _read_hotkey(name: str, arguments: dict[str, str], points: PointMap) -> Action:
    keys: list[str] = []
    for token in arguments.get("key", arguments.get("keys", "")).split():
        names = token.split("+") if "+" in token and len(token) > 1 else [token]
        keys += [canonical_key(key) or key for key in names]
    if not keys:
        raise ActionError("hotkey needs key='ctrl s'.", ActionFault.MISSING_FIELD)
    return Action(ActionType.KEY, keys=tuple(keys))


_READERS: Mapping[str, Callable[[str, dict[str, str], PointMap], Action]] = {
    "drag": _read_drag,
    "select": _read_drag,
    "scroll": _read_scroll,
    "type": _read_type,
    "hotkey": _read_hotkey,
    "press": _read_hotkey,
    "finished": lambda name, arguments, points: Action(ActionType.DONE),
    "call_user": lambda name, arguments, points: Action(ActionType.FAIL),
}


def _call(action: Action, points: PointMap, dialect: UitarsDialect) -> str:
    if action.type in _POINT_NAMES:
        return f"{_POINT_NAMES[action.type]}(start_box={_box(action.x, action.y, points, dialect)})"
    return _WRITERS[action.type](action, points, dialect)


def _box(x: int | None, y: int | None, points: PointMap, dialect: UitarsDialect) -> str:
    assert x is not None
    assert y is not None
    written_x, written_y = points.to_model(x, y)
    return f"'{dialect.box.format(x=written_x, y=written_y)}'"


def _write_drag(action: Action, points: PointMap, dialect: UitarsDialect) -> str:
    return f"drag(start_box={_box(action.x, action.y, points, dialect)}, end_box={_box(action.x2, action.y2, points, dialect)})"


def _write_scroll(action: Action, points: PointMap, dialect: UitarsDialect) -> str:
    start = f"scroll(start_box={_box(action.x, action.y, points, dialect)}"
    if (action.dx == 0) == (action.dy == 0):
        return f"{start}, dx='{action.dx}', dy='{action.dy}')"
    clicks = abs(action.dx + action.dy)
    sign = (_sign(action.dx), _sign(action.dy))
    direction = next(name for name, step in _DIRECTIONS.items() if step == sign)
    amount = "" if clicks == SCROLL_CLICKS else f", amount='{clicks}'"
    return f"{start}, direction='{direction}'{amount})"


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _write_hotkey(action: Action, points: PointMap, dialect: UitarsDialect) -> str:
    return f"hotkey(key='{_escape(' '.join('space' if key == ' ' else key for key in action.keys))}')"


def _write_wait(action: Action, points: PointMap, dialect: UitarsDialect) -> str:
    return "wait()" if action.duration_s == dialect.wait_s else f"wait(seconds='{action.duration_s:g}')"


def _escape(text: str) -> str:
    for plain, written in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        text = text.replace(plain, written)
    return text


_WRITERS: Mapping[ActionType, Callable[[Action, PointMap, UitarsDialect], str]] = {
    ActionType.DRAG: _write_drag,
    ActionType.SCROLL: _write_scroll,
    ActionType.TYPE: lambda action, points, dialect: f"type(content='{_escape(action.text)}')",
    ActionType.KEY: _write_hotkey,
    ActionType.WAIT: _write_wait,
    ActionType.DONE: lambda action, points, dialect: "finished(content='')",
    ActionType.FAIL: lambda action, points, dialect: "call_user()",
}
