"""Canonical actions: checked, performed as input events, written as JSON and read back.

Only this module knows what each `ActionType` needs and which input events it consists of. It has pure functions, and
every refusal is an `ActionError` with one sentence. Model text is in `dart_envs.action_formats`, the Gymnasium space in
`dart_envs.spaces`.

Coordinates are integer screen pixels; `resolution` is (width, height).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dart_envs.errors import ActionError
from dart_envs.key_names import canonical_key, is_key
from dart_envs.observations.transforms import scale_point
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import (
    ButtonEvent,
    InputEvent,
    KeyEvent,
    MoveEvent,
    ScrollEvent,
    TextEvent,
    WaitEvent,
)

LEFT, MIDDLE, RIGHT = 1, 2, 3
MAX_TEXT_LENGTH = 4_096
MAX_WHEEL_CLICKS = 50
MAX_KEYS = 5
MAX_WAIT_S = 60.0
DRAG_STEPS = 8
"""Intermediate pointer moves of a drag: toolkits start dragging only after they saw the pointer move with the
button down."""
DRAG_STEP_MS = 12
MULTI_CLICK_GAP_MS = 20


@dataclass(frozen=True, slots=True)
class _ActionSpec:
    """The fields that one action type needs; all others stay at their defaults."""

    fields: frozenset[str]
    click: tuple[int, int] | None = None
    """(button, times) for the types that are clicks."""


TERMINAL_ACTIONS = frozenset({ActionType.DONE, ActionType.FAIL})
"""The actions that end an episode."""
_POINT = frozenset({"x", "y"})
ACTION_SPECS: Mapping[ActionType, _ActionSpec] = {
    ActionType.CLICK: _ActionSpec(_POINT, (LEFT, 1)),
    ActionType.DOUBLE_CLICK: _ActionSpec(_POINT, (LEFT, 2)),
    ActionType.TRIPLE_CLICK: _ActionSpec(_POINT, (LEFT, 3)),
    ActionType.RIGHT_CLICK: _ActionSpec(_POINT, (RIGHT, 1)),
    ActionType.MIDDLE_CLICK: _ActionSpec(_POINT, (MIDDLE, 1)),
    ActionType.MOVE: _ActionSpec(_POINT),
    ActionType.DRAG: _ActionSpec(_POINT | {"x2", "y2"}),
    ActionType.SCROLL: _ActionSpec(_POINT | {"dx", "dy"}),
    ActionType.TYPE: _ActionSpec(frozenset({"text"})),
    ActionType.KEY: _ActionSpec(frozenset({"keys"})),
    ActionType.WAIT: _ActionSpec(frozenset({"duration_s"})),
    ActionType.DONE: _ActionSpec(frozenset()),
    ActionType.FAIL: _ActionSpec(frozenset()),
}
_DEFAULTS = {spec.name: spec.default for spec in fields(Action) if spec.name != "type"}


def check_action(action: Action, resolution: tuple[int, int]) -> None:
    """Check that an action has exactly the fields of its type, with values that the screen has.

    Args:
        action: The action.
        resolution: (width, height) of the screen in pixels.

    Raises:
        ActionError: If not.
    """
    if not isinstance(action, Action) or not isinstance(action.type, ActionType):
        raise ActionError(f"{action!r} is not a dart_envs Action with a type of ActionType.")
    needs = ACTION_SPECS[action.type].fields
    for name, default in _DEFAULTS.items():
        if name not in needs and getattr(action, name) != default:
            raise ActionError(f"A {action.type} action takes no {name}; leave it out.")
    for name, limit in (("x", resolution[0]), ("y", resolution[1]), ("x2", resolution[0]), ("y2", resolution[1])):
        if name in needs:
            _check_int(action.type, name, getattr(action, name), 0, limit - 1)
    if "dy" in needs:
        _check_int(action.type, "dx", action.dx, -MAX_WHEEL_CLICKS, MAX_WHEEL_CLICKS)
        _check_int(action.type, "dy", action.dy, -MAX_WHEEL_CLICKS, MAX_WHEEL_CLICKS)
    if "text" in needs:
        check_text(action.text)
    if "keys" in needs:
        _check_keys(action.keys)
    if "duration_s" in needs and not (_is_number(action.duration_s) and 0 <= action.duration_s <= MAX_WAIT_S):
        raise ActionError(f"A wait lasts between 0 and {MAX_WAIT_S:.0f} seconds, not {action.duration_s!r}.")


def check_text(text: str, max_length: int = MAX_TEXT_LENGTH) -> None:
    """Check that a text can be typed.

    Args:
        text: Unicode scalar values without NUL.
        max_length: Limit of characters.

    Raises:
        ActionError: If it cannot be typed.
    """
    if not isinstance(text, str):
        raise ActionError(f"Text to type is a str, not {type(text).__name__}.")
    if len(text) > max_length:
        raise ActionError(f"Text to type has {len(text)} characters; the limit is {max_length}.")
    if not is_typeable(text):
        raise ActionError("Text to type holds a NUL or half of a surrogate pair, which no keyboard can send.")


def is_typeable(text: str) -> bool:
    """Return whether every character is a Unicode scalar value other than NUL."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _check_int(kind: ActionType, name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ActionError(f"A {kind} action needs {name} as an integer, not {value!r}.")
    if not low <= value <= high:
        raise ActionError(f"{name} of a {kind} action must be between {low} and {high}, not {value}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_keys(keys: tuple[str, ...]) -> None:
    if not isinstance(keys, tuple) or not 1 <= len(keys) <= MAX_KEYS:
        raise ActionError(f"A key action needs a tuple of 1 to {MAX_KEYS} key names, not {keys!r}.")
    for key in keys:
        if not isinstance(key, str) or not is_key(key):
            meant = canonical_key(key) if isinstance(key, str) and key else None
            names = "names such as ctrl, enter, f5 or pagedown, or one character" if meant is None else repr(meant)
            raise ActionError(f"{key!r} is not a key; use {names}.")
    if len(set(keys)) != len(keys):
        raise ActionError(f"The keys {keys!r} name one key twice.")


def to_input_events(action: Action, resolution: tuple[int, int]) -> list[InputEvent]:
    """Return the input events that perform an action.

    Args:
        action: The action.
        resolution: (width, height) of the screen in pixels.

    Returns:
        The events; none for `done`, `fail` and empty actions.

    Raises:
        ActionError: If the action cannot be performed.
    """
    check_action(action, resolution)
    click = ACTION_SPECS[action.type].click
    if click is not None:
        return [_move(action), *clicks(*click)]
    return _EVENT_BUILDERS[action.type](action)


def decode_action(action: Action, resolution: tuple[int, int]) -> DecodedAction:
    """Return what a step performs for an action.

    Args:
        action: The action.
        resolution: (width, height) of the screen in pixels.

    Returns:
        The events, and the end of the episode for `done` and `fail`.

    Raises:
        ActionError: If the action cannot be performed.
    """
    events = to_input_events(action, resolution)
    return DecodedAction(tuple(events), action.type if action.type in TERMINAL_ACTIONS else None)


def _move(action: Action) -> MoveEvent:
    assert action.x is not None
    assert action.y is not None
    return MoveEvent(x=action.x, y=action.y)


def clicks(button: int, times: int) -> list[InputEvent]:
    """Return the events of one multiple click.

    Args:
        button: Number of the mouse button.
        times: Number of clicks, close enough together to be one multiple click.

    Returns:
        Presses, releases and pauses.
    """
    events: list[InputEvent] = []
    for index in range(times):
        if index:
            events.append(WaitEvent(ms=MULTI_CLICK_GAP_MS))
        events += [ButtonEvent(type="down", button=button), ButtonEvent(type="up", button=button)]
    return events


def _drag(action: Action) -> list[InputEvent]:
    start = _move(action)
    assert action.x2 is not None
    assert action.y2 is not None
    return [start, *drag((start.x, start.y), (action.x2, action.y2), LEFT)]


def drag(start: tuple[int, int], end: tuple[int, int], button: int) -> list[InputEvent]:
    """Return the events of a drag from where the pointer is.

    Args:
        start: Where the pointer is, in screen pixels.
        end: Where the button is released, in screen pixels.
        button: Number of the mouse button.

    Returns:
        Press, moves, pauses and release.
    """
    events: list[InputEvent] = [ButtonEvent(type="down", button=button)]
    for index in range(1, DRAG_STEPS + 1):
        x = start[0] + round((end[0] - start[0]) * index / DRAG_STEPS)
        y = start[1] + round((end[1] - start[1]) * index / DRAG_STEPS)
        events += [WaitEvent(ms=DRAG_STEP_MS), MoveEvent(x=x, y=y)]
    return [*events, WaitEvent(ms=DRAG_STEP_MS), ButtonEvent(type="up", button=button)]


def _scroll(action: Action) -> list[InputEvent]:
    if action.dx == 0 and action.dy == 0:
        return [_move(action)]
    return [_move(action), ScrollEvent(dx=action.dx, dy=action.dy)]


def chord_events(keys: Sequence[str]) -> list[InputEvent]:
    """Return the events of a chord.

    Args:
        keys: Names of the keys, as the guest agent writes them.

    Returns:
        Each key pressed in order, then released in reverse order.
    """
    down: list[InputEvent] = [KeyEvent(type="key_down", key=key) for key in keys]
    up: list[InputEvent] = [KeyEvent(type="key_up", key=key) for key in reversed(keys)]
    return down + up


def _no_events(_action: Action) -> list[InputEvent]:
    return []


_EVENT_BUILDERS: Mapping[ActionType, Callable[[Action], list[InputEvent]]] = {
    ActionType.MOVE: lambda action: [_move(action)],
    ActionType.DRAG: _drag,
    ActionType.SCROLL: _scroll,
    ActionType.TYPE: lambda action: [TextEvent(text=action.text)] if action.text else [],
    ActionType.KEY: lambda action: chord_events(action.keys),
    ActionType.WAIT: lambda action: [WaitEvent(ms=round(action.duration_s * 1000))],
    ActionType.DONE: _no_events,
    ActionType.FAIL: _no_events,
}


def action_to_dict(action: Action) -> dict[str, Any]:
    """Return the JSON form of an action: its type and the fields that the type needs."""
    needs = ACTION_SPECS[action.type].fields
    record: dict[str, Any] = {"type": action.type.value}
    for name in _DEFAULTS:
        if name in needs:
            value = getattr(action, name)
            record[name] = list(value) if isinstance(value, tuple) else value
    return record


def actions_to_dict(actions: Sequence[Action | DecodedAction]) -> dict[str, Any]:
    """Return the JSON form of what one step performs.

    Args:
        actions: The actions of the step, in order; at least one.

    Returns:
        That of the only action, or a `batch` with the list of `actions`. An action that no `ActionType` can say is written as its input
        `events`.
    """
    records = [
        {"type": "events", "events": [event.model_dump() for event in action.events]}
        if isinstance(action, DecodedAction)
        else action_to_dict(action)
        for action in actions
    ]
    return records[0] if len(records) == 1 else {"type": "batch", "actions": records}


def first_point(record: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return where a step points first, in screen pixels.

    Args:
        record: What `actions_to_dict` wrote.

    Returns:
        (x, y), or None for a step that points nowhere.
    """
    for one in _parts(record):
        x, y = one.get("x"), one.get("y")
        if isinstance(x, int) and isinstance(y, int):
            return x, y
    return None


def _parts(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield record
    for inner in (*record.get("actions", ()), *record.get("events", ())):
        yield from _parts(inner)


def action_from_dict(record: Mapping[str, Any], resolution: tuple[int, int] | None = None) -> Action:
    """Read the JSON form of an action.

    Args:
        record: The type and the fields that it needs.
        resolution: (width, height) of the screen in pixels, to check the action too; None does not check it.

    Returns:
        The action.

    Raises:
        ActionError: If the record is not an action.
    """
    try:
        kind = ActionType(record["type"])
    except (KeyError, ValueError, TypeError):
        known = ", ".join(ActionType)
        raise ActionError(f"{record!r} names no action type; the types are {known}.") from None
    unknown = sorted(set(record) - {"type"} - ACTION_SPECS[kind].fields)
    if unknown:
        raise ActionError(f"A {kind} action takes no {', '.join(unknown)}.")
    values: dict[str, Any] = {
        name: tuple(value) if name == "keys" and isinstance(value, list) else value
        for name, value in record.items()
        if name != "type"
    }
    action = Action(kind, **values)
    if resolution is not None:
        check_action(action, resolution)
    return action


def scale_action(action: Action, from_wh: tuple[int, int], to_wh: tuple[int, int]) -> Action:
    """Move the points of an action to a screen of another size.

    Args:
        action: The action.
        from_wh: (width, height) that its points refer to.
        to_wh: (width, height) that the new points refer to: the pixel centres, clamped to the image.

    Returns:
        The scaled action.
    """
    changed: dict[str, int] = {}
    for x_name, y_name in (("x", "y"), ("x2", "y2")):
        x, y = getattr(action, x_name), getattr(action, y_name)
        if x is not None and y is not None:
            changed[x_name], changed[y_name] = scale_point((x, y), from_wh, to_wh)
    return replace(action, **changed)  # type: ignore[arg-type]


__all__ = ["action_from_dict", "action_to_dict", "check_action", "decode_action", "scale_action", "to_input_events"]
