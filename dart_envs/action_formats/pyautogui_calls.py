"""Python text of pyautogui calls, read as input events. Nothing of it is executed on the host.

Statements are calls of the functions in `CALLS` with literal arguments, `time.sleep`, `with pyautogui.hold(...)`,
imports of the two modules and settings of pyautogui (which change nothing here). Everything else is an `ActionError`
that names it. Durations of movements are left out, pauses and intervals are kept. Arguments are pyautogui's own. The
space is in `dart_envs.action_spaces.pyautogui_text`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dart_envs.actions import MAX_TEXT_LENGTH, MAX_WAIT_S, MAX_WHEEL_CLICKS, check_text, chord_events, clicks, drag
from dart_envs.errors import ActionError, ActionFault
from dart_envs.key_names import to_guest_key
from dart_server.wire import ButtonEvent, InputEvent, KeyEvent, MoveEvent, ScrollEvent, TextEvent, WaitEvent

MAX_CODE_LENGTH = 4 * MAX_TEXT_LENGTH
MAX_EVENTS = 2_000
"""What one step may hold."""
MAX_REPEATS = 100
MAX_NUMBER = 1e9
"""Neither screens nor waits have larger numbers; some integers have no float."""
BUTTONS = {"left": 1, "primary": 1, "middle": 2, "right": 3, "secondary": 3, 1: 1, 2: 2, 3: 3}
IGNORED = frozenset({"duration", "tween", "logScreenshot", "_pause", "mouseDownUp", "pause"})


class EventBuilder:
    """The events so far, and where the pointer will be after them.

    Args:
        resolution: (width, height) of the screen in pixels.
        pointer: Pointer position at the beginning, in screen pixels.

    Attributes:
        pointer: Pointer position after the events, in screen pixels.
        events: The events so far.
    """

    def __init__(self, resolution: tuple[int, int], pointer: tuple[int, int]) -> None:
        self._resolution = resolution
        self.pointer = pointer
        self.events: list[InputEvent] = []
        self._waited_s = 0.0

    def add(self, *events: InputEvent) -> None:
        """Append events.

        Args:
            *events: The events.

        Raises:
            ActionError: If one step cannot hold that many.
        """
        self.events += events
        if len(self.events) > MAX_EVENTS:
            raise ActionError(
                f"One action has at most {MAX_EVENTS} input events; this text has more.", ActionFault.TOO_MANY
            )

    def wait(self, seconds: float) -> None:
        """Append a pause.

        Args:
            seconds: Length of the pause.

        Raises:
            ActionError: If it is negative, or one action waits too long.
        """
        self._waited_s += seconds
        if not 0 <= seconds <= MAX_WAIT_S or self._waited_s > MAX_WAIT_S:
            raise ActionError(f"One action waits at most {MAX_WAIT_S:.0f} seconds, and never a negative time.")
        if seconds > 0:
            self.add(WaitEvent(ms=round(seconds * 1000)))

    def resolve_point(self, x: Any, y: Any) -> tuple[int, int]:
        """Return the point that two arguments mean; a missing one is the pointer's position.

        Args:
            x: The first argument: a number, a pair, or None.
            y: The second argument: a number or None.

        Returns:
            (x, y) in screen pixels.

        Raises:
            ActionError: If the point is outside the screen.
        """
        if isinstance(x, list | tuple):
            if len(x) != 2 or y is not None:
                raise ActionError(f"A point is x and y, not {x!r}.")
            x, y = x
        point = [here if given is None else _whole(given) for given, here in zip((x, y), self.pointer, strict=True)]
        if not all(0 <= value < side for value, side in zip(point, self._resolution, strict=True)):
            width, height = self._resolution
            raise ActionError(
                f"The point ({point[0]}, {point[1]}) is outside the {width}x{height} screen.", ActionFault.OUT_OF_SCREEN
            )
        return point[0], point[1]

    def move_to(self, x: Any, y: Any) -> None:
        """Move the pointer when a point is given.

        Args:
            x: As `resolve_point`.
            y: As `resolve_point`.
        """
        if x is None and y is None:
            return
        self.pointer = self.resolve_point(x, y)
        self.add(MoveEvent(x=self.pointer[0], y=self.pointer[1]))

    def drag_to(self, target: tuple[int, int], button: Any) -> None:
        """Drag from the pointer's position.

        Args:
            target: Where the button is released, in screen pixels.
            button: pyautogui's name or number of the button.
        """
        self.add(*drag(self.pointer, target, _button(button)))
        self.pointer = target

    def press_key(self, key: str) -> None:
        """Press and release a key.

        Args:
            key: The guest agent's name of the key.
        """
        self.add(*chord_events((key,)))


def parse_calls(code: str, resolution: tuple[int, int], pointer: tuple[int, int]) -> list[InputEvent]:
    """Read the input events of a text.

    Args:
        code: Python text.
        resolution: (width, height) of the screen in pixels.
        pointer: Pointer position at the beginning, in screen pixels.

    Returns:
        The events.

    Raises:
        ActionError: If the text has a statement that is not allowed.
    """
    return [event for events in parse_statements(code, resolution, pointer) for event in events]


def parse_statements(code: str, resolution: tuple[int, int], pointer: tuple[int, int]) -> list[tuple[InputEvent, ...]]:
    """Read the input events of a text, one tuple for each statement that has any; see `parse_calls`."""
    if len(code) > MAX_CODE_LENGTH:
        raise ActionError(
            f"The text of an action has {len(code)} characters; the limit is {MAX_CODE_LENGTH}.", ActionFault.TOO_MANY
        )
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise ActionError(
            f"The text is not Python: {error.msg} in line {error.lineno or 1}.", ActionFault.BAD_SYNTAX
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise ActionError("The text is not Python that can be read.", ActionFault.BAD_SYNTAX) from None
    builder = EventBuilder(resolution, pointer)
    statements: list[tuple[InputEvent, ...]] = []
    for statement in tree.body:
        before = len(builder.events)
        _perform(statement, builder)
        if len(builder.events) > before:
            statements.append(tuple(builder.events[before:]))
    return statements


def _perform(statement: ast.stmt, builder: EventBuilder) -> None:
    match statement:
        case ast.Pass():
            return
        case ast.Import(names=names) if all(n.name in ("pyautogui", "time") and n.asname is None for n in names):
            return
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="pyautogui"), attr="FAILSAFE" | "PAUSE")]):
            return
        case ast.Expr(value=ast.Call() as call):
            _call(call, builder)
        case ast.With(items=[ast.withitem(context_expr=ast.Call() as call, optional_vars=None)], body=body):
            module, name = _name(call)
            if (module, name) != ("pyautogui", "hold"):
                raise ActionError("The only `with` is `with pyautogui.hold(...)`.")
            keys = _names(_bind(name, call, ("keys",)).get("keys"))
            builder.add(*(KeyEvent(type="key_down", key=key) for key in keys))
            for inner in body:
                _perform(inner, builder)
            builder.add(*(KeyEvent(type="key_up", key=key) for key in reversed(keys)))
        case _:
            raise ActionError(
                f"Line {statement.lineno} is no call of pyautogui or time.sleep with literal arguments; code that needs more runs"
                " in the action space pyautogui-exec.",
                ActionFault.UNKNOWN_ACTION,
            )


def _call(call: ast.Call, builder: EventBuilder) -> None:
    module, name = _name(call)
    if module == "time" and name == "sleep":
        name = "sleep"
    elif module != "pyautogui" or name not in CALLS:
        raise ActionError(
            f"{module}.{name} is not among the calls of this space: {', '.join(sorted(CALLS))}, time.sleep.",
            ActionFault.UNKNOWN_ACTION,
        )
    if name == "hotkey":
        keywords = _bind(name, ast.Call(call.func, [], call.keywords), ("interval",))
        _hotkey(builder, [_literal(argument) for argument in call.args], keywords.get("interval", 0.0))
        return
    parameters, perform = CALLS[name]
    perform(builder, _bind(name, call, parameters))


def _name(call: ast.Call) -> tuple[str, str]:
    match call.func:
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return module, name
    raise ActionError(
        f"Line {call.lineno} calls something that is not a function of pyautogui or time.sleep.",
        ActionFault.UNKNOWN_ACTION,
    )


def _bind(name: str, call: ast.Call, parameters: Sequence[str]) -> dict[str, Any]:
    """Arguments by name."""
    if len(call.args) > len(parameters):
        raise ActionError(f"{name} takes at most {len(parameters)} arguments in order: {', '.join(parameters)}.")
    bound = dict(zip(parameters, (_literal(argument) for argument in call.args), strict=False))
    for keyword in call.keywords:
        if keyword.arg in IGNORED and keyword.arg not in parameters:
            continue
        if keyword.arg is None or keyword.arg not in parameters or keyword.arg in bound:
            raise ActionError(f"{name} has no argument {keyword.arg!r} here; it has {', '.join(parameters)}.")
        bound[keyword.arg] = _literal(keyword.value)
    return {key: value for key, value in bound.items() if value is not None}


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
        # A hexadecimal number may have more digits than Python writes, and messages say what was given.
        repr(value)
        return value
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ActionError(f"Arguments are literal values; line {node.lineno} has something else.") from None


def _need(given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        raise ActionError(f"A call lacks its argument {name}.", ActionFault.MISSING_FIELD)
    return given[name]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ActionError(f"{value!r} is not a number of a screen's size.")
    return math.floor(value)


def _count(value: Any, limit: int, what: str) -> int:
    number = _whole(value)
    if not 0 <= number <= limit:
        raise ActionError(f"{what} is a number from 0 to {limit}, not {value!r}.")
    return number


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ActionError(f"{value!r} is not a number of seconds.")
    return float(value)


def _button(value: Any) -> int:
    name = value.lower() if isinstance(value, str) else value
    if isinstance(name, bool) or not isinstance(name, str | int) or name not in BUTTONS:
        raise ActionError(f"A button is left, middle or right, not {value!r}.")
    return BUTTONS[name]


def _key(value: Any) -> str:
    key = to_guest_key(value) if isinstance(value, str) else None
    if key is None:
        raise ActionError(f"{value!r} is no key of pyautogui's.")
    return key


def _names(value: Any) -> list[str]:
    return [_key(one) for one in (value if isinstance(value, list | tuple) else [value])]


def _clicks(builder: EventBuilder, given: Mapping[str, Any], times: int, button: Any) -> None:
    builder.move_to(given.get("x"), given.get("y"))
    interval_s = _seconds(given.get("interval", 0.0))
    number = _button(button)
    if interval_s <= 0:
        builder.add(*clicks(number, times))
        return
    for _ in range(times):
        builder.add(*clicks(number, 1))
        builder.wait(interval_s)


def _click(builder: EventBuilder, given: Mapping[str, Any]) -> None:
    times = _count(given.get("clicks", 1), MAX_REPEATS, "clicks")
    _clicks(builder, given, times, given.get("button", "left"))


def _multiple(times: int, fixed: str | None = None) -> Callable[[EventBuilder, Mapping[str, Any]], None]:
    def perform(builder: EventBuilder, given: Mapping[str, Any]) -> None:
        _clicks(builder, given, times, fixed or given.get("button", "left"))

    return perform


def _hold_button(kind: str) -> Callable[[EventBuilder, Mapping[str, Any]], None]:
    def perform(builder: EventBuilder, given: Mapping[str, Any]) -> None:
        builder.move_to(given.get("x"), given.get("y"))
        builder.add(ButtonEvent(type="down" if kind == "down" else "up", button=_button(given.get("button", "left"))))

    return perform


def _offset(builder: EventBuilder, given: Mapping[str, Any]) -> tuple[int, int]:
    x, y = given.get("xOffset", 0), given.get("yOffset", 0)
    if isinstance(x, list | tuple) and len(x) == 2:
        x, y = x
    return builder.resolve_point(builder.pointer[0] + _whole(x), builder.pointer[1] + _whole(y))


def _move(builder: EventBuilder, given: Mapping[str, Any]) -> None:
    builder.move_to(*_offset(builder, given))


def _drag_to(builder: EventBuilder, given: Mapping[str, Any]) -> None:
    builder.drag_to(builder.resolve_point(given.get("x"), given.get("y")), given.get("button", "left"))


def _drag_by(builder: EventBuilder, given: Mapping[str, Any]) -> None:
    builder.drag_to(_offset(builder, given), given.get("button", "left"))


def _wheel(axis: str) -> Callable[[EventBuilder, Mapping[str, Any]], None]:
    def perform(builder: EventBuilder, given: Mapping[str, Any]) -> None:
        amount = _whole(_need(given, "clicks"))
        if abs(amount) > MAX_WHEEL_CLICKS:
            raise ActionError(f"A scroll is at most {MAX_WHEEL_CLICKS} clicks of the wheel, not {amount}.")
        builder.move_to(given.get("x"), given.get("y"))
        if amount:
            builder.add(ScrollEvent(dx=amount) if axis == "x" else ScrollEvent(dy=amount))

    return perform


def _press(builder: EventBuilder, given: Mapping[str, Any]) -> None:
    keys, interval_s = _names(_need(given, "keys")), _seconds(given.get("interval", 0.0))
    for _ in range(_count(given.get("presses", 1), MAX_REPEATS, "presses")):
        for key in keys:
            builder.press_key(key)
        builder.wait(interval_s)


def _hold_key(kind: str) -> Callable[[EventBuilder, Mapping[str, Any]], None]:
    def perform(builder: EventBuilder, given: Mapping[str, Any]) -> None:
        builder.add(KeyEvent(type="key_down" if kind == "down" else "key_up", key=_key(_need(given, "key"))))

    return perform


def _hotkey(builder: EventBuilder, keys: list[Any], interval: Any) -> None:
    named = [_key(key) for key in (keys[0] if len(keys) == 1 and isinstance(keys[0], list | tuple) else keys)]
    named = [key.lower() if len(key) == 1 else key for key in named]
    interval_s = _seconds(interval)
    for key in named:
        builder.add(KeyEvent(type="key_down", key=key))
        builder.wait(interval_s)
    for key in reversed(named):
        builder.add(KeyEvent(type="key_up", key=key))


def _write(builder: EventBuilder, given: Mapping[str, Any]) -> None:
    message, interval_s = _need(given, "message"), _seconds(given.get("interval", 0.0))
    if isinstance(message, list | tuple):
        for key in message:
            builder.press_key(_key(key))
            builder.wait(interval_s)
        return
    check_text(message)
    assert isinstance(message, str)
    if interval_s <= 0 or not message:
        builder.add(*([TextEvent(text=message)] if message else []))
        return
    for character in message:
        builder.add(TextEvent(text=character))
        builder.wait(interval_s)


_XY = ("x", "y")
CALLS: Mapping[str, tuple[tuple[str, ...], Callable[[EventBuilder, Mapping[str, Any]], None]]] = {
    "moveTo": ((*_XY, "duration"), lambda builder, given: builder.move_to(given.get("x"), given.get("y"))),
    **dict.fromkeys(("move", "moveRel"), (("xOffset", "yOffset", "duration"), _move)),
    "click": ((*_XY, "clicks", "interval", "button", "duration"), _click),
    "leftClick": ((*_XY, "interval", "duration"), _multiple(1, "left")),
    "rightClick": ((*_XY, "interval", "duration"), _multiple(1, "right")),
    "middleClick": ((*_XY, "interval", "duration"), _multiple(1, "middle")),
    "doubleClick": ((*_XY, "interval", "button", "duration"), _multiple(2)),
    "tripleClick": ((*_XY, "interval", "button", "duration"), _multiple(3)),
    "mouseDown": ((*_XY, "button", "duration"), _hold_button("down")),
    "mouseUp": ((*_XY, "button", "duration"), _hold_button("up")),
    "dragTo": ((*_XY, "duration", "tween", "button"), _drag_to),
    **dict.fromkeys(("drag", "dragRel"), (("xOffset", "yOffset", "duration", "tween", "button"), _drag_by)),
    **dict.fromkeys(("scroll", "vscroll"), (("clicks", *_XY), _wheel("y"))),
    "hscroll": (("clicks", *_XY), _wheel("x")),
    "press": (("keys", "presses", "interval"), _press),
    "keyDown": (("key",), _hold_key("down")),
    "keyUp": (("key",), _hold_key("up")),
    "hotkey": (("interval",), _press),
    **dict.fromkeys(("write", "typewrite"), (("message", "interval"), _write)),
    "sleep": (("seconds",), lambda builder, given: builder.wait(_seconds(_need(given, "seconds")))),
}
"""Function -> (its arguments in order, what it does)."""
