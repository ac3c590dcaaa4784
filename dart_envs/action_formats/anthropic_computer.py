r"""Anthropic's computer toolset: `tool_use` blocks, one per action.

Role: `AnthropicComputerFormat`. Rule: an answer is what the API gives, as JSON: the message, its list of content blocks, or one block; a
list without a call is the end. The toolset of 2026 names the action by the tool; the tools `computer_2024…` and `computer_2025…` name it by
`action` in the input; both are read. An API that has the tools is given their declaration; an endpoint that has not is asked in our own
words for a list of blocks, with `done` and `fail` beside the members of the toolset. Non-goals: the Messages API's client
(`dart_agent.chat_api.messages_api`).

    left_click right_click middle_click double_click triple_click    coordinate (else at the pointer), text: keys held meanwhile
    left_click_drag   start_coordinate (else from the pointer), coordinate, text         left_mouse_down left_mouse_up   at the pointer
    mouse_move        coordinate                        scroll   scroll_direction, scroll_amount in clicks, coordinate, text
    key               text such as ctrl+s, repeat       hold_key text, duration in seconds          type   text          wait   duration
    screenshot, zoom, cursor_position                   perform nothing

A screen larger than 1280x720 pixels in all is shown at that size, and points are pixels of what is shown. An answer that holds
`[INFEASIBLE]` and no call says that the task cannot be done.

Sources: `anthropic/types/beta/beta_computer_*_input.py`, `beta_computer_toolset_20260801_param.py` and
`beta_tool_computer_use_20251124_param.py` of anthropic 2.10.0; the size and
`[INFEASIBLE]` from OSWorld's agent for Claude.
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
    read_answer,
)
from dart_envs.action_formats.openai_computer import INFEASIBLE, TOOL_PROMPT
from dart_envs.action_formats.tool_calls import (
    click_at,
    ending,
    find_json,
    keys,
    number,
    point,
    pointer_after,
    raise_if_not_performed,
    required,
    summary_line,
    text_field,
    wheel_clicks,
    with_keys_held,
)
from dart_envs.actions import MAX_WAIT_S, check_action
from dart_envs.errors import ActionError, ActionFault
from dart_envs.observations.geometry import Coordinates, PointMap
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import ButtonEvent, WaitEvent

MAX_REPEATS = 100
TOOLSET = "computer"
WAIT_S = 1.0
"""Seconds of a `wait` that names none."""

PROMPT = """You operate a computer by looking at its screen and using mouse and keyboard.
Answer with one JSON list of calls, which are performed in order before you see the screen again:

{{"type": "tool_use", "name": "left_click", "input": {{"coordinate": [3, 4], "text": "ctrl"}}}}  (text: keys held meanwhile; optional)
  also right_click, middle_click, double_click, triple_click, mouse_move
{{"type": "tool_use", "name": "left_click_drag", "input": {{"start_coordinate": [3, 4], "coordinate": [5, 6]}}}}
{{"type": "tool_use", "name": "scroll", "input": {{"coordinate": [3, 4], "scroll_direction": "down", "scroll_amount": 5}}}}
{{"type": "tool_use", "name": "key", "input": {{"text": "ctrl+s"}}}}
{{"type": "tool_use", "name": "type", "input": {{"text": "hello"}}}}
{{"type": "tool_use", "name": "wait", "input": {{"duration": 2}}}}
{{"type": "tool_use", "name": "done", "input": {{}}}}  when the task is done, "fail" when it cannot be done

Coordinates are pixels of the picture, which has {width}x{height}, from its top left corner."""
TOOLS = ("computer_toolset_20260801", "computer_20251124", "computer_20250124")
"""Versions of the tool, the newest first."""

_CLICKS = {
    "left_click": ActionType.CLICK,
    "right_click": ActionType.RIGHT_CLICK,
    "middle_click": ActionType.MIDDLE_CLICK,
    "double_click": ActionType.DOUBLE_CLICK,
    "triple_click": ActionType.TRIPLE_CLICK,
}
_CLICK_NAMES = {kind: name for name, kind in _CLICKS.items()}
_DIRECTIONS = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}
_NOTHING = frozenset({"screenshot", "zoom", "cursor_position"})
_NOT_OFFERED = ("zoom", "cursor_position")
"""Members of the toolset that ask for something else than the next screenshot."""


class AnthropicComputerFormat:
    """Anthropic's computer toolset.

    Args:
        tool: The version of the tool that the API is given, one of `TOOLS`; None: the prompt asks in our own words.

    Attributes:
        name: Name of the format.
        picture: At most as many pixels as 1280x720.
    """

    name = "anthropic-computer"
    picture = PictureSize(1, 1, 1280 * 720)
    coordinates: Coordinates = "pixels"
    images = 5
    stop: tuple[str, ...] = ()
    expresses = frozenset(ActionType)

    def __init__(self, tool: str | None = None) -> None:
        self._tool = tool

    def messages(self, instruction: str, turns: Sequence[PastTurn], picture_wh: tuple[int, int]) -> tuple[Message, ...]:
        """Write the prompt, which describes the actions where the API has no tool; see `ActionFormat.messages`."""
        system = TOOL_PROMPT if self._tool else PROMPT.format(width=picture_wh[0], height=picture_wh[1])
        return conversation(system, f"The task: {instruction}", turns, [turn.text for turn in turns])

    def tools(self, picture_wh: tuple[int, int]) -> tuple[Mapping[str, Any], ...]:
        """Return the toolset of the Messages API, or its older tool; none where the prompt asks in our own words."""
        if self._tool is None:
            return ()
        if self._tool == TOOLS[0]:
            return ({"type": self._tool, "configs": {name: {"enabled": False} for name in _NOT_OFFERED}},)
        size = {"display_width_px": picture_wh[0], "display_height_px": picture_wh[1]}
        return ({"type": self._tool, "name": TOOLSET, **size},)

    def summary(self, answer: str) -> str:
        """Return the line that tells of an answer whose turn is not shown any more."""
        try:
            calls, said, _ = _calls(find_json(answer)[1])
        except ActionError:
            return summary_line([], [answer])
        return summary_line([{name: given} for name, given in calls], said)

    def parse(self, answer: str, points: PointMap, pointer: tuple[int, int] = (0, 0)) -> ParsedAnswer | ParseError:
        """Read an answer; see `ActionFormat.parse`."""

        def read() -> tuple[list[OneAction], str]:
            before, value = find_json(answer)
            calls, said, ended = _calls(value)
            thought = "\n".join([*([before] if before else []), *said])
            actions: list[OneAction] = []
            place = pointer
            for name, given in calls:
                for action in _read_call(name, given, points, place):
                    actions.append(action)
                    place = pointer_after(action, place)
            if calls and not actions:
                actions = [Action(ActionType.WAIT, duration_s=0.0)]
            return ([ending(thought, infeasible=INFEASIBLE)] if ended and not calls else actions), thought

        return read_answer(read, points.screen_wh)

    def format(self, actions: Sequence[Action], points: PointMap, *, thought: str = "") -> str:
        """Write an answer as a list of content blocks; see `ActionFormat.format`. The end of the episode is an answer of its own."""
        said = thought.strip()
        if len(actions) == 1 and actions[0].type in (ActionType.DONE, ActionType.FAIL):
            check_action(actions[0], points.screen_wh)
            mark = INFEASIBLE if actions[0].type is ActionType.FAIL else ""
            return json.dumps([_text(f"{said} {mark}".strip())], ensure_ascii=False)
        blocks: list[dict[str, Any]] = [_text(said)] if said else []
        for action in actions:
            name, given = self._write(action, points)
            blocks.append({"type": "tool_use", "name": name, "toolset_name": TOOLSET, "input": given})
        return json.dumps(blocks, ensure_ascii=False)

    def _write(self, action: Action, points: PointMap) -> tuple[str, dict[str, Any]]:
        check_action(action, points.screen_wh)
        place = [] if action.x is None or action.y is None else list(points.to_model(action.x, action.y))
        match action.type:
            case ActionType.MOVE:
                return "mouse_move", {"coordinate": place}
            case ActionType.DRAG if action.x2 is not None and action.y2 is not None:
                end = list(points.to_model(action.x2, action.y2))
                return "left_click_drag", {"start_coordinate": place, "coordinate": end}
            case ActionType.SCROLL if not (action.dx and action.dy):
                turns = action.dx or action.dy
                sign = (turns > 0) - (turns < 0)
                step = (sign, 0) if action.dx else (0, sign or -1)
                direction = next(name for name, one in _DIRECTIONS.items() if one == step)
                return "scroll", {"coordinate": place, "scroll_direction": direction, "scroll_amount": abs(turns)}
            case ActionType.TYPE:
                return "type", {"text": action.text}
            case ActionType.KEY:
                names = {"+": "plus", " ": "space"}
                return "key", {"text": "+".join(names.get(key, key) for key in action.keys)}
            case ActionType.WAIT:
                seconds = float(action.duration_s)
                return "wait", {"duration": int(seconds) if seconds.is_integer() else seconds}
        if action.type in _CLICK_NAMES:
            return _CLICK_NAMES[action.type], {"coordinate": place}
        raise cannot_express(self.name, action)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _calls(value: Any) -> tuple[list[tuple[str, Mapping[str, Any]]], list[str], bool]:
    """Name and input of each call, what the answer says, and whether it is a list of blocks that can be an end."""
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        value = value["content"]
    blocks = value if isinstance(value, list) else [value]
    calls: list[tuple[str, Mapping[str, Any]]] = []
    said: list[str] = []
    for block in blocks:
        if not isinstance(block, dict):
            raise ActionError("A content block is a JSON object.", ActionFault.BAD_SYNTAX)
        raise_if_not_performed(block)
        kind = block.get("type")
        if kind in ("text", "thinking"):
            said.append(text_field(block, "A text block", kind))
        elif kind == "tool_use":
            given = block.get("input", {})
            if not isinstance(given, dict):
                raise ActionError("The input of a call is a JSON object.", ActionFault.BAD_SYNTAX)
            name = text_field(block, "A call", "name")
            calls.append((text_field(given, "A call", "action") if name == TOOLSET else name, given))
        elif kind is None and "action" in block:
            calls.append((text_field(block, "A call", "action"), block))
        elif kind != "redacted_thinking":
            raise ActionError(f"There is no content block {str(kind)[:40]!r} here.", ActionFault.UNKNOWN_ACTION)
    return calls, said, isinstance(value, list) and bool(value)


def _read_call(name: str, given: Mapping[str, Any], points: PointMap, pointer: tuple[int, int]) -> list[OneAction]:
    if name in _NOTHING:
        return []
    place = pointer
    if given.get("coordinate") is not None:
        place = point(given["coordinate"], name, points)
    if name in _CLICKS:
        return [_held(click_at(_CLICKS[name], place), name, given, points)]
    read = _READERS.get(name)
    if read is None:
        raise ActionError(f"There is no action {name[:40]!r}.", ActionFault.UNKNOWN_ACTION)
    return read(given, place, pointer, points)


def _held(action: OneAction, name: str, given: Mapping[str, Any], points: PointMap) -> OneAction:
    if given.get("text") in (None, ""):
        return action
    return with_keys_held(action, _chord(text_field(given, name)), points.screen_wh)


def _chord(written: str) -> tuple[str, ...]:
    """The keys of `ctrl+s`; `+` by itself, and after another `+`, is the key."""
    names = written.strip().split("+")
    if len(names) > 1 and names[-1] == names[-2] == "":
        names = [*names[:-2], "+"]
    return keys([name for name in names if name] or [written.strip() or written])


def _read_move(
    given: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int], points: PointMap
) -> list[OneAction]:
    required(given, "mouse_move", "coordinate")
    return [click_at(ActionType.MOVE, place)]


def _read_drag(
    given: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int], points: PointMap
) -> list[OneAction]:
    required(given, "left_click_drag", "coordinate")
    start = pointer
    if given.get("start_coordinate") is not None:
        start = point(given["start_coordinate"], "left_click_drag", points)
    dragged = Action(ActionType.DRAG, x=start[0], y=start[1], x2=place[0], y2=place[1])
    return [_held(dragged, "left_click_drag", given, points)]


def _read_scroll(
    given: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int], points: PointMap
) -> list[OneAction]:
    direction = text_field(given, "scroll", "scroll_direction")
    if direction not in _DIRECTIONS:
        raise ActionError("The direction of a scroll is up, down, left or right.")
    turns = wheel_clicks(number(required(given, "scroll", "scroll_amount"), "scroll", "scroll_amount"))
    dx, dy = _DIRECTIONS[direction]
    return [
        _held(Action(ActionType.SCROLL, x=place[0], y=place[1], dx=dx * turns, dy=dy * turns), "scroll", given, points)
    ]


def _read_key(
    given: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int], points: PointMap
) -> list[OneAction]:
    repeats = number(given.get("repeat") or 1, "key", "repeat")
    if not 1 <= repeats <= MAX_REPEATS:
        raise ActionError(f"A key is pressed 1 to {MAX_REPEATS} times, not {repeats:g}.")
    written = text_field(given, "key")
    chords = [_chord(chord) for chord in written.split()] or [_chord(written)]
    pressed = [Action(ActionType.KEY, keys=chord) for chord in chords]
    if repeats == 1:
        return list(pressed)
    events = tuple(event for action in pressed for event in _events(action, points))
    return [DecodedAction(events * int(repeats))]


def _events(action: Action, points: PointMap) -> tuple[Any, ...]:
    held = with_keys_held(DecodedAction(), action.keys, points.screen_wh)
    check_action(action, points.screen_wh)
    return held.events if isinstance(held, DecodedAction) else ()


def _read_hold(
    given: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int], points: PointMap
) -> list[OneAction]:
    seconds = _seconds(required(given, "hold_key", "duration"), "hold_key")
    names = _chord(text_field(given, "hold_key"))
    wait = DecodedAction((WaitEvent(ms=round(seconds * 1000)),))
    check_action(Action(ActionType.KEY, keys=names), points.screen_wh)
    return [with_keys_held(wait, names, points.screen_wh)]


def _seconds(value: object, name: str) -> float:
    seconds = number(value, name, "duration")
    if not 0 <= seconds <= MAX_WAIT_S:
        raise ActionError(f"{name} lasts between 0 and {MAX_WAIT_S:.0f} seconds, not {seconds:g}.")
    return seconds


def _button(kind: str) -> DecodedAction:
    return DecodedAction((ButtonEvent(type="down" if kind == "down" else "up", button=1),))


_READERS: Mapping[str, Callable[[Mapping[str, Any], tuple[int, int], tuple[int, int], PointMap], list[OneAction]]] = {
    "mouse_move": _read_move,
    "left_click_drag": _read_drag,
    "left_mouse_down": lambda given, place, pointer, points: [_button("down")],
    "left_mouse_up": lambda given, place, pointer, points: [_button("up")],
    "scroll": _read_scroll,
    "key": _read_key,
    "hold_key": _read_hold,
    "type": lambda given, place, pointer, points: [Action(ActionType.TYPE, text=text_field(given, "type"))],
    "wait": lambda given, place, pointer, points: [
        Action(ActionType.WAIT, duration_s=_seconds(given.get("duration", WAIT_S), "wait"))
    ],
    "done": lambda given, place, pointer, points: [Action(ActionType.DONE)],
    "fail": lambda given, place, pointer, points: [Action(ActionType.FAIL)],
}
