r"""OpenAI's `computer` tool: batches of actions in `computer_call` items.

Role: `OpenaiComputerFormat`. Rule: an answer is what the API gives, as JSON: the response, its list of output items, or one item; a list
without a call is the end. An API that has the tool is given its declaration; an endpoint that has not is asked in our own words for
`{"actions": [...]}`, with `done` and `fail` beside the actions of the API. Non-goals: the Responses API's client
(`dart_agent.chat_api.responses_api`).

    click double_click move   x, y; click: button left, right, wheel, back, forward     keys held meanwhile: `keys`
    drag                      path of points                                             scroll   x, y, scroll_x, scroll_y in pixels
    keypress                  keys together                                              type, wait, screenshot

Points are pixels of the screenshot. `back` and `forward` are the shortcuts of browsers, because a desktop has three buttons. A
`screenshot` alone performs nothing. An answer that holds `[INFEASIBLE]` and no call says that the task cannot be done.

Sources: `openai/types/responses/computer_action.py`, `response_computer_tool_call.py`, `computer_tool.py` and
`computer_use_preview_tool.py` of openai 3.51.0;
`[INFEASIBLE]` from OSWorld's agents for closed models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dart_envs.action_formats.base import (
    Message,
    OneAction,
    ParsedAnswer,
    ParseError,
    PastTurn,
    PictureSize,
    cannot_express,
    conversation,
    point_to_screen,
    read_answer,
)
from dart_envs.action_formats.tool_calls import (
    click_at,
    drag_events,
    ending,
    find_json,
    keys,
    number,
    parse_json,
    raise_if_not_performed,
    required,
    summary_line,
    text_field,
    wheel_clicks,
    with_keys_held,
)
from dart_envs.actions import check_action
from dart_envs.errors import ActionError, ActionFault
from dart_envs.key_names import MODIFIERS
from dart_envs.observations.geometry import Coordinates, PointMap
from dart_envs.types import Action, ActionType, DecodedAction

WAIT_S = 2.0
"""Seconds of a `wait`, which names none."""
WHEEL_PX = 100
"""Pixels that one click of the wheel scrolls."""
MAX_PATH = 64
INFEASIBLE = "[INFEASIBLE]"
SCREEN_SIZE = PictureSize(1, 1, 2**31)
"""The screen as it is."""

PROMPT = """You operate a computer by looking at its screen and using mouse and keyboard.
Answer with one JSON object, {{"actions": [...]}}, whose actions are performed in order before you see the screen again:

{{"type": "click", "button": "left", "x": 3, "y": 4}}  (or right, wheel)
{{"type": "double_click", "x": 3, "y": 4}}
{{"type": "move", "x": 3, "y": 4}}
{{"type": "drag", "path": [{{"x": 3, "y": 4}}, {{"x": 5, "y": 6}}]}}
{{"type": "scroll", "x": 3, "y": 4, "scroll_x": 0, "scroll_y": 300}}  (pixels; positive is down and to the right)
{{"type": "keypress", "keys": ["CTRL", "S"]}}
{{"type": "type", "text": "hello"}}
{{"type": "wait"}}
{{"type": "done"}}  when the task is done, {{"type": "fail"}} when it cannot be done

x and y are pixels of the picture, which has {width}x{height}, from its top left corner."""
TOOL_PROMPT = f"""You operate a computer with your tool, by looking at its screen. Nobody answers questions.
Answer without a call only at the end: with one sentence when the task is done, with {INFEASIBLE} and the reason when it cannot be done."""
"""System prompt where the model has the tool of its vendor."""
TOOLS = ("computer", "computer_use_preview")
"""Versions of the tool, the newest first."""

_BUTTONS = {"left": ActionType.CLICK, "right": ActionType.RIGHT_CLICK, "wheel": ActionType.MIDDLE_CLICK}
_SHORTCUTS = {"back": ("alt", "left"), "forward": ("alt", "right")}
_KEY_NAMES = {"up": "ARROWUP", "down": "ARROWDOWN", "left": "ARROWLEFT", "right": "ARROWRIGHT", " ": "SPACE"}


class OpenaiComputerFormat:
    """The `computer` tool of OpenAI's Responses API.

    Args:
        tool: The version of the tool that the API is given, one of `TOOLS`; None: the prompt asks in our own words.
        environment: What `computer_use_preview` is told about the computer.

    Attributes:
        name: Name of the format.
        picture: The screen as it is.
    """

    name = "openai-computer"
    picture = SCREEN_SIZE
    coordinates: Coordinates = "pixels"
    images = 5
    stop: tuple[str, ...] = ()
    expresses = frozenset(ActionType) - {ActionType.TRIPLE_CLICK}

    def __init__(self, tool: str | None = None, environment: str = "linux") -> None:
        self._tool = tool
        self._environment = environment

    def messages(self, instruction: str, turns: Sequence[PastTurn], picture_wh: tuple[int, int]) -> tuple[Message, ...]:
        """Write the prompt, which describes the actions where the API has no tool; see `ActionFormat.messages`."""
        system = TOOL_PROMPT if self._tool else PROMPT.format(width=picture_wh[0], height=picture_wh[1])
        return conversation(system, f"The task: {instruction}", turns, [turn.text for turn in turns])

    def tools(self, picture_wh: tuple[int, int]) -> tuple[Mapping[str, Any], ...]:
        """Return the tool of the Responses API; none where the prompt asks in our own words."""
        if self._tool is None:
            return ()
        if self._tool == TOOLS[0]:
            return ({"type": self._tool},)
        size = {"display_width": picture_wh[0], "display_height": picture_wh[1]}
        return ({"type": self._tool, **size, "environment": self._environment},)

    def summary(self, answer: str) -> str:
        """Return the line that tells of an answer whose turn is not shown any more."""
        try:
            calls, said, _ = _calls(find_json(answer)[1])
        except ActionError:
            return summary_line([], [answer])
        return summary_line(calls, said)

    def parse(self, answer: str, points: PointMap, pointer: tuple[int, int] = (0, 0)) -> ParsedAnswer | ParseError:
        """Read an answer; see `ActionFormat.parse`. Every action of the tool that needs a point has one."""
        del pointer

        def read() -> tuple[list[OneAction], str]:
            before, value = find_json(answer)
            calls, said, ended = _calls(value)
            thought = "\n".join([*([before] if before else []), *said])
            actions = [one for call in calls for one in _read_action(call, points)]
            if calls and not actions:
                actions = [Action(ActionType.WAIT, duration_s=0.0)]
            return ([ending(thought, infeasible=INFEASIBLE)] if ended and not calls else actions), thought

        return read_answer(read, points.screen_wh)

    def format(self, actions: Sequence[Action], points: PointMap, *, thought: str = "") -> str:
        """Write an answer as a list of output items; see `ActionFormat.format`. The end of the episode is an answer of its own."""
        said = thought.strip()
        if len(actions) == 1 and actions[0].type in (ActionType.DONE, ActionType.FAIL):
            check_action(actions[0], points.screen_wh)
            mark = INFEASIBLE if actions[0].type is ActionType.FAIL else ""
            return json.dumps([_message(f"{said} {mark}".strip())], ensure_ascii=False)
        call = {"type": "computer_call", "actions": [self._write(action, points) for action in actions]}
        return json.dumps([*([_message(said)] if said else []), call], ensure_ascii=False)

    def _write(self, action: Action, points: PointMap) -> dict[str, Any]:
        check_action(action, points.screen_wh)
        place = {}
        if action.x is not None and action.y is not None:
            place = dict(zip("xy", points.to_model(action.x, action.y), strict=True))
        match action.type:
            case ActionType.CLICK | ActionType.RIGHT_CLICK | ActionType.MIDDLE_CLICK:
                button = next(name for name, kind in _BUTTONS.items() if kind is action.type)
                return {"type": "click", "button": button, **place}
            case ActionType.DOUBLE_CLICK | ActionType.MOVE:
                return {"type": action.type.value, **place}
            case ActionType.DRAG if action.x2 is not None and action.y2 is not None:
                end = dict(zip("xy", points.to_model(action.x2, action.y2), strict=True))
                return {"type": "drag", "path": [place, end]}
            case ActionType.SCROLL:
                return {"type": "scroll", **place, "scroll_x": action.dx * WHEEL_PX, "scroll_y": -action.dy * WHEEL_PX}
            case ActionType.TYPE:
                return {"type": "type", "text": action.text}
            case ActionType.KEY if _as_chord(action.keys) == action.keys:
                return {"type": "keypress", "keys": [_key_name(key) for key in action.keys]}
            case ActionType.WAIT if action.duration_s == WAIT_S:
                return {"type": "wait"}
        raise cannot_express(self.name, action)


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _calls(value: Any) -> tuple[list[Any], list[str], bool]:
    """The actions that an answer lists, what it says, and whether it is a list of items that can be an end."""
    if isinstance(value, dict) and isinstance(value.get("output"), list):
        value = value["output"]
    if not isinstance(value, list):
        return _actions_of(value), [], False
    actions: list[Any] = []
    said: list[str] = []
    for item in value:
        if not isinstance(item, dict):
            raise ActionError("An output item is a JSON object.", ActionFault.BAD_SYNTAX)
        raise_if_not_performed(item)
        kind = item.get("type")
        if kind in ("message", "reasoning"):
            said += _texts(item.get("content")) + _texts(item.get("summary"))
        elif kind == "computer_call":
            actions += _actions_of(item)
        elif kind == "function_call":
            actions += _actions_of(parse_json(text_field(item, "function_call", "arguments")))
        else:
            raise ActionError(f"There is no output item {str(kind)[:40]!r} here.", ActionFault.UNKNOWN_ACTION)
    return actions, said, bool(value)


def _texts(parts: Any) -> list[str]:
    given = parts if isinstance(parts, list) else []
    return [part["text"] for part in given if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _actions_of(call: Any) -> list[Any]:
    """The batch of a call, its only action, or an action by itself."""
    if not isinstance(call, dict):
        raise ActionError("A call is a JSON object.", ActionFault.BAD_SYNTAX)
    if call.get("actions") is not None:
        if not isinstance(call["actions"], list):
            raise ActionError("The actions of a call are a list.", ActionFault.BAD_SYNTAX)
        return call["actions"]
    if call.get("action") is not None:
        return [call["action"]]
    if call.get("type") in (None, "computer_call"):
        raise ActionError("A call needs actions.", ActionFault.MISSING_FIELD)
    return [call]


def _read_action(call: Any, points: PointMap) -> list[OneAction]:
    if not isinstance(call, dict):
        raise ActionError("An action is a JSON object.", ActionFault.BAD_SYNTAX)
    kind = text_field(call, "An action", "type")
    read = _READERS.get(kind)
    if read is None:
        raise ActionError(f"There is no action {kind[:40]!r}.", ActionFault.UNKNOWN_ACTION)
    held = call.get("keys") if kind != "keypress" else None
    actions = read(call, points)
    if not held:
        return actions
    if not isinstance(held, list):
        raise ActionError("keys is a list of names.")
    names = keys(held)
    return [with_keys_held(action, names, points.screen_wh) for action in actions]


def _place(call: Mapping[str, Any], points: PointMap) -> tuple[int, int]:
    name = "A point"
    return point_to_screen(required(call, name, "x"), required(call, name, "y"), points)


def _read_click(call: Mapping[str, Any], points: PointMap) -> list[OneAction]:
    button, place = call.get("button", "left"), _place(call, points)
    if not isinstance(button, str) or button not in (*_BUTTONS, *_SHORTCUTS):
        raise ActionError(f"There is no button {str(button)[:40]!r}.")
    if button in _SHORTCUTS:
        return [Action(ActionType.KEY, keys=_SHORTCUTS[button])]
    return [click_at(_BUTTONS[button], place)]


def _read_drag(call: Mapping[str, Any], points: PointMap) -> list[OneAction]:
    path = required(call, "drag", "path")
    if not isinstance(path, list) or not 2 <= len(path) <= MAX_PATH:
        raise ActionError(f"The path of a drag is a list of 2 to {MAX_PATH} points.")
    places = []
    for one in path:
        if not isinstance(one, dict):
            raise ActionError("A point of a path has x and y.")
        places.append(_place(one, points))
    if len(places) == 2:
        return [Action(ActionType.DRAG, x=places[0][0], y=places[0][1], x2=places[1][0], y2=places[1][1])]
    return [DecodedAction(tuple(drag_events(places)))]


def _read_scroll(call: Mapping[str, Any], points: PointMap) -> list[OneAction]:
    place = _place(call, points)
    dx, dy = (_wheel(number(call.get(name, 0), "scroll", name)) for name in ("scroll_x", "scroll_y"))
    return [Action(ActionType.SCROLL, x=place[0], y=place[1], dx=dx, dy=-dy)]


def _wheel(pixels: float) -> int:
    turns = pixels / WHEEL_PX
    return wheel_clicks(turns if abs(turns) >= 1 else (turns > 0) - (turns < 0))


def _read_keypress(call: Mapping[str, Any], points: PointMap) -> list[OneAction]:
    written = required(call, "keypress", "keys")
    if not isinstance(written, list):
        raise ActionError("keys is a list of names.")
    return [Action(ActionType.KEY, keys=_as_chord(keys(written)))]


def _as_chord(names: tuple[str, ...]) -> tuple[str, ...]:
    """Letters in lower case where a modifier is held: CTRL and S do not mean CTRL, SHIFT and S."""
    held = any(name.removesuffix("left").removesuffix("right") in MODIFIERS for name in names)
    return tuple(name.lower() if held and len(name) == 1 else name for name in names)


def _key_name(key: str) -> str:
    return _KEY_NAMES.get(key, key.upper() if len(key) > 1 else key)


_READERS: Mapping[str, Callable[[Mapping[str, Any], PointMap], list[OneAction]]] = {
    "click": _read_click,
    "double_click": lambda call, points: [click_at(ActionType.DOUBLE_CLICK, _place(call, points))],
    "move": lambda call, points: [click_at(ActionType.MOVE, _place(call, points))],
    "drag": _read_drag,
    "scroll": _read_scroll,
    "keypress": _read_keypress,
    "type": lambda call, points: [Action(ActionType.TYPE, text=text_field(call, "type"))],
    "wait": lambda call, points: [Action(ActionType.WAIT, duration_s=WAIT_S)],
    "screenshot": lambda call, points: [],
    "done": lambda call, points: [Action(ActionType.DONE)],
    "fail": lambda call, points: [Action(ActionType.FAIL)],
}
