"""Tool calls in an answer: found, read as strict JSON, their fields checked.

Role: `find_tool_calls` and readers of single fields. Rule: one pass over the text, so that the time grows with its length; JSON as the
standard has it (no NaN, no Infinity); what is wrong is an `ActionError` with its cause. Non-goals: what a tool does.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dart_envs.action_formats.base import MAX_ACTIONS, MAX_DETAIL_CHARS, OneAction, point_to_screen
from dart_envs.actions import MAX_WHEEL_CLICKS, decode_action, drag
from dart_envs.errors import ActionError, ActionFault
from dart_envs.key_names import canonical_key
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import InputEvent, KeyEvent, MoveEvent

OPENINGS = ("<tool_call>", "\N{ALEMBIC}", "\N{TRIANGULAR RULER}")
"""What begins a call; the two signs are what Qwen2.5-VL's training data has in its place here and there."""
CLOSINGS = ("</tool_call>", "\N{ALEMBIC}", "\N{TRIANGULAR RULER}")
END_OF_REASONING = "</think>"
NOT_PERFORMED = "not_performed"
"""Type of an item in the place of an answer that was cut off, refused, or needs a consent that is not given."""


def parse_json(text: str) -> Any:
    """Read strict JSON.

    Args:
        text: The text.

    Returns:
        Its value.

    Raises:
        ActionError: If it is not JSON, or nested or written too large to be read.
    """
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise _no_json(error) from None


def _no_json(error: Exception) -> ActionError:
    return ActionError(f"This is no JSON: {error}.", ActionFault.BAD_SYNTAX)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_SPACE = re.compile(r"\s*")
_JSON_LINE = re.compile(r"^[ \t]*(?:```(?:json)?[ \t]*(?:\n[ \t]*)?)?(?P<value>[\[{])", re.MULTILINE)


def find_tool_calls(answer: str) -> tuple[str, list[Mapping[str, Any]]]:
    """Read the calls of an answer in the form that Qwen's chat templates teach.

    Args:
        answer: The answer, perhaps with reasoning before `</think>`, which holds no calls.

    Returns:
        The text before the first call, and each call as a JSON object. An answer that is one JSON object is a call.

    Raises:
        ActionError: If there is none, or one cannot be read.
    """
    reasoning, end, spoken = answer.rpartition(END_OF_REASONING)
    start = _first(spoken, OPENINGS, 0)
    before = spoken if start is None else spoken[: start[0]]
    calls: list[Mapping[str, Any]] = []
    while start is not None:
        if len(calls) == MAX_ACTIONS:
            raise ActionError(f"An answer has at most {MAX_ACTIONS} calls.", ActionFault.TOO_MANY)
        call, position = _read_value(spoken, start[0] + len(start[1]))
        calls.append(_as_call(call))
        closing = next((mark for mark in CLOSINGS if spoken.startswith(mark, position)), None)
        if closing is None and position < len(spoken):
            raise ActionError("More text follows the JSON of a tool call.", ActionFault.BAD_SYNTAX)
        start = _first(spoken, OPENINGS, position + len(closing or ""))
    if not calls:
        bare = spoken.strip()
        if not (bare.startswith("{") and bare.endswith("}")):
            raise ActionError("There is no tool call.", ActionFault.NO_ACTION)
        before, calls = "", [_as_call(parse_json(bare))]
    thought = f"{reasoning}{end}{before}" if end else before
    return thought.strip(), calls


def _read_value(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start`, and where the text goes on after it."""
    begin = _SPACE.match(text, start).end()  # type: ignore[union-attr]
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        raise _no_json(error) from None
    return value, _SPACE.match(text, end).end()  # type: ignore[union-attr]


def _as_call(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ActionError("A tool call is a JSON object.", ActionFault.BAD_SYNTAX)
    return value


def find_json(answer: str) -> tuple[str, Any]:
    """Read the JSON value that an answer consists of, or that begins a line of it.

    Args:
        answer: The answer: JSON, or text with JSON at its end, with or without a Markdown fence.

    Returns:
        The text before the value, and the value: an object or a list.

    Raises:
        ActionError: If there is none, or it cannot be read.
    """
    found = _JSON_LINE.search(answer)
    if found is None:
        raise ActionError("There is no JSON object.", ActionFault.NO_ACTION)
    value, position = _read_value(answer, found.start("value"))
    if answer[position:].strip(" \t\r\n`"):
        raise ActionError("More text follows the JSON object.", ActionFault.BAD_SYNTAX)
    return answer[: found.start()].strip(), value


def _first(text: str, marks: Sequence[str], start: int) -> tuple[int, str] | None:
    found = [(place, mark) for mark in marks if (place := text.find(mark, start)) >= 0]
    return min(found) if found else None


def raise_if_not_performed(item: Mapping[str, Any]) -> None:
    """Refuse what a client puts in the place of an answer that must not be performed: `{"type": "not_performed", "reason": ...}`.

    Args:
        item: An item of an answer.

    Raises:
        ActionError: It is such an item; the reason is the client's.
    """
    if item.get("type") == NOT_PERFORMED:
        raise ActionError(str(item.get("reason")), ActionFault.NO_ACTION)


def required(arguments: Mapping[str, Any], name: str, field: str) -> Any:
    """Return a field of a call.

    Args:
        arguments: The fields.
        name: Name of the action, for the message.
        field: Name of the field.

    Raises:
        ActionError: If it is missing.
    """
    value = arguments.get(field)
    if value is None:
        raise ActionError(f"{name} needs {field}.", ActionFault.MISSING_FIELD)
    return value


def text_field(arguments: Mapping[str, Any], name: str, field: str = "text") -> str:
    """Return a field that is a text; see `required`."""
    value = required(arguments, name, field)
    if not isinstance(value, str):
        raise ActionError(f"{field} of {name} is a text, not {type(value).__name__}.")
    return value


def number(value: object, name: str, field: str) -> float:
    """Return a finite number.

    Args:
        value: The value.
        name: Name of the action, for the message.
        field: Name of the field.

    Raises:
        ActionError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e9 <= value <= 1e9:
        raise ActionError(f"{field} of {name} is not a number of that size: {str(value)[:40]}.")
    return float(value)


def wheel_clicks(amount: float) -> int:
    """Return whole clicks of the wheel, at most as many as one action has: further ones scroll to the same end."""
    return max(-MAX_WHEEL_CLICKS, min(MAX_WHEEL_CLICKS, round(amount)))


def point(value: object, name: str, points: PointMap) -> tuple[int, int]:
    """Return the screen pixel of `[x, y]`.

    Args:
        value: The list.
        name: Name of the action, for the message.
        points: Maps the point to the screen.

    Raises:
        ActionError: If it is no point of the picture.
    """
    if not isinstance(value, list) or len(value) != 2:
        raise ActionError(f"A point of {name} is [x, y], not {str(value)[:40]}.")
    return point_to_screen(value[0], value[1], points)


def keys(written: Sequence[object]) -> tuple[str, ...]:
    """Return the keys of a canonical action.

    Args:
        written: Their names as a model writes them.

    Raises:
        ActionError: If one is not a key.
    """
    names = []
    for name in written:
        key = canonical_key(name) if isinstance(name, str) else None
        if key is None:
            raise ActionError(f"{str(name)[:40]!r} is not a key.")
        names.append(key)
    return tuple(names)


def pointer_after(action: OneAction, pointer: tuple[int, int]) -> tuple[int, int]:
    """Return where the pointer is after an action.

    Args:
        action: The action.
        pointer: Where it was, in screen pixels.
    """
    if isinstance(action, DecodedAction):
        moves = [event for event in action.events if isinstance(event, MoveEvent)]
        return (moves[-1].x, moves[-1].y) if moves else pointer
    x, y = (action.x2, action.y2) if action.type is ActionType.DRAG else (action.x, action.y)
    return pointer if x is None or y is None else (x, y)


def drag_events(path: Sequence[tuple[int, int]], button: int = 1) -> list[InputEvent]:
    """Return the events of a drag along a path of at least two points, in screen pixels."""
    events: list[InputEvent] = [MoveEvent(x=path[0][0], y=path[0][1])]
    legs = [drag(start, end, button) for start, end in itertools.pairwise(path)]
    for index, leg in enumerate(legs):
        events += leg[(1 if index else 0) : (None if index == len(legs) - 1 else -1)]
    return events


def click_at(kind: ActionType, place: tuple[int, int]) -> Action:
    """Return a canonical action at a point, in screen pixels."""
    return Action(kind, x=place[0], y=place[1])


def with_keys_held(action: OneAction, held: Sequence[str], screen_wh: tuple[int, int]) -> OneAction:
    """Return an action during which keys are held down.

    Args:
        action: The action.
        held: Names of the keys; without any the action stays as it is.
        screen_wh: (width, height) of the screen in pixels.

    Raises:
        ActionError: If the action cannot be performed.
    """
    if not held:
        return action
    inner = action if isinstance(action, DecodedAction) else decode_action(action, screen_wh)
    down: list[InputEvent] = [KeyEvent(type="key_down", key=key) for key in held]
    up: list[InputEvent] = [KeyEvent(type="key_up", key=key) for key in reversed(held)]
    return DecodedAction((*down, *inner.events, *up))


def summary_line(calls: Sequence[Any], said: Sequence[str]) -> str:
    """Return the line that tells of an answer whose turn is not shown any more: its calls, or, without any, the last thing it says."""
    if calls:
        return " ".join(json.dumps(call, ensure_ascii=False) for call in calls)
    return " ".join(" ".join(said[-1:]).split())[:MAX_DETAIL_CHARS]


def ending(thought: str, *, infeasible: str) -> Action:
    """Return the end of the episode that an answer without a call means.

    Args:
        thought: The answer.
        infeasible: What the answer holds where the task cannot be done.
    """
    return Action(ActionType.FAIL if infeasible in thought else ActionType.DONE)
