r"""Qwen2.5-VL and Qwen3-VL: the `computer_use` tool, its calls, and the turns around them.

Role: `Qwen25VlFormat` and `Qwen3VlFormat`. Rule: tool, prompt and turns are data, character by character what the model's authors publish
for it. Calls are read as the published agents read them, but for what could leave the screen. Non-goals: finding calls (`tool_calls`).

    system     the tool, and how it is called
    user       the first picture that is shown, then the instruction and what was done before that picture, one line per step
    assistant  an answer                                                               of the last 4 steps
    user       the picture of the step

    qwen2.5-vl   pixels of the resized picture, whose size the tool names        28-pixel grid
    qwen3-vl     0 to 1000 along both axes, for a tool of 1000x1000              32-pixel grid

A point may be missing: the action then happens at the pointer. A drag goes from the pointer. Scrolling is in clicks of the wheel, as
pyautogui scrolls on X11. `answer` ends the episode, because nobody reads the answer.

Sources: `cookbooks/utils/agent_function_call.py` of QwenLM/Qwen3-VL at d08310c (Qwen2.5-VL) with the prompt of qwen-agent's
`NousFnCallPrompt`; `mm_agents/qwen3vl_agent.py` and `qwen25vl_agent.py` of OSWorld (turns; tool and prompt of Qwen3-VL).
"""

from __future__ import annotations

import copy
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
    image_part,
    read_answer,
    text_part,
)
from dart_envs.action_formats.tool_calls import (
    END_OF_REASONING,
    OPENINGS,
    click_at,
    find_tool_calls,
    keys,
    number,
    point,
    pointer_after,
    required,
    text_field,
    wheel_clicks,
)
from dart_envs.actions import check_action
from dart_envs.errors import ActionError, ActionFault
from dart_envs.observations.geometry import Coordinates, PointMap
from dart_envs.types import Action, ActionType

TOOL = "computer_use"
WAIT_S = 2.0
"""Seconds of a `wait` that names none: OSWorld's pause."""
HISTORY = 4
"""Earlier steps that are shown with picture and answer."""

_INTRODUCTION = (
    "Use a mouse and keyboard to interact with a computer, and take screenshots.\n"
    "* This is an interface to a desktop GUI. You do not have access to a terminal or applications menu. You must click on desktop icons "
    "to start applications.\n"
    "* Some applications may take time to start or process actions, so you may need to wait and take successive screenshots to see the "
    "results of your actions. E.g. if you click on Firefox and a window doesn't open, try wait and taking another screenshot.\n"
    "* The screen's resolution is {width}x{height}.\n"
    "* Whenever you intend to move the cursor to click on an element like an icon, you should consult a screenshot to determine the "
    "coordinates of the element before moving the cursor.\n"
    "* If you tried clicking on a program or link but it failed to load{comma} even after waiting, try adjusting your cursor position "
    "so that the tip of the cursor visually falls on the element that you want to click.\n"
    "* Make sure to click any buttons, links, icons, etc with the cursor tip in the center of the element. Don't click boxes on their "
    "edges unless asked."
)
_MOVES = (
    "* `key`: Performs key down presses on the arguments passed in order, then performs key releases in reverse order.\n"
    "* `type`: Type a string of text on the keyboard.\n"
    "* `mouse_move`: Move the cursor to a specified (x, y) pixel coordinate on the screen.\n"
)
_ACTIONS = [
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click"),
    *("middle_click", "double_click", "scroll", "wait", "terminate"),
]
_QWEN2_5_TOOL: Mapping[str, Any] = {
    "name": TOOL,
    "description": _INTRODUCTION,
    "parameters": {
        "properties": {
            "action": {
                "description": "The action to perform. The available actions are:\n"
                + _MOVES
                + "* `left_click`: Click the left mouse button.\n"
                "* `left_click_drag`: Click and drag the cursor to a specified (x, y) pixel coordinate on the screen.\n"
                "* `right_click`: Click the right mouse button.\n"
                "* `middle_click`: Click the middle mouse button.\n"
                "* `double_click`: Double-click the left mouse button.\n"
                "* `scroll`: Performs a scroll of the mouse scroll wheel.\n"
                "* `wait`: Wait specified seconds for the change to happen.\n"
                "* `terminate`: Terminate the current task and report its completion status.",
                "enum": _ACTIONS,
                "type": "string",
            },
            "keys": {"description": "Required only by `action=key`.", "type": "array"},
            "text": {"description": "Required only by `action=type`.", "type": "string"},
            "coordinate": {
                "description": "(x, y): The x (pixels from the left edge) and y (pixels from the top edge) coordinates to move the mouse "
                "to. Required only by `action=mouse_move` and `action=left_click_drag`.",
                "type": "array",
            },
            "pixels": {
                "description": "The amount of scrolling to perform. Positive values scroll up, negative values scroll down. Required only "
                "by `action=scroll`.",
                "type": "number",
            },
            "time": {"description": "The seconds to wait. Required only by `action=wait`.", "type": "number"},
            "status": {
                "description": "The status of the task. Required only by `action=terminate`.",
                "type": "string",
                "enum": ["success", "failure"],
            },
        },
        "required": ["action"],
        "type": "object",
    },
}
_QWEN3_TOOL: Mapping[str, Any] = {
    "name_for_human": TOOL,
    "name": TOOL,
    "description": _INTRODUCTION,
    "parameters": {
        "properties": {
            "action": {
                "description": "\n"
                + _MOVES
                + "* `left_click`: Click the left mouse button at a specified (x, y) pixel coordinate on the screen.\n"
                "* `left_click_drag`: Click and drag the cursor to a specified (x, y) pixel coordinate on the screen.\n"
                "* `right_click`: Click the right mouse button at a specified (x, y) pixel coordinate on the screen.\n"
                "* `middle_click`: Click the middle mouse button at a specified (x, y) pixel coordinate on the screen.\n"
                "* `double_click`: Double-click the left mouse button at a specified (x, y) pixel coordinate on the screen.\n"
                "* `triple_click`: Triple-click the left mouse button at a specified (x, y) pixel coordinate on the screen (simulated as "
                "double-click since it's the closest action).\n"
                "* `scroll`: Performs a scroll of the mouse scroll wheel.\n"
                "* `hscroll`: Performs a horizontal scroll (mapped to regular scroll).\n"
                "* `wait`: Wait specified seconds for the change to happen.\n"
                "* `terminate`: Terminate the current task and report its completion status.\n"
                "* `answer`: Answer a question.\n        ",
                "enum": _ACTIONS,
                "type": "string",
            },
            "keys": {"description": "Required only by `action=key`.", "type": "array"},
            "text": {"description": "Required only by `action=type`.", "type": "string"},
            "coordinate": {"description": "The x,y coordinates for mouse actions.", "type": "array"},
            "pixels": {"description": "The amount of scrolling.", "type": "number"},
            "time": {"description": "The seconds to wait.", "type": "number"},
            "status": {"description": "The status of the task.", "type": "string", "enum": ["success", "failure"]},
        },
        "required": ["action"],
        "type": "object",
    },
    "args_format": "Format the arguments as a JSON object.",
}
_CALLING = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tool}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
_RESPONSE = """

# Response format

Response format for every step:
1) Action: a short imperative describing what to do in the UI.
2) A single <tool_call>...</tool_call> block containing only the JSON: {"name": <function-name>, "arguments": <args-json-object>}.

Rules:
- Output exactly in the order: Action, <tool_call>.
- Be brief: one sentence for Action.
- Do not output anything else outside those parts.
- If finishing, use action=terminate in the tool call."""
_INSTRUCTION = """
Please generate the next move according to the UI screenshot, instruction and previous actions.

Instruction: {instruction}

Previous actions:
{previous}"""

_CLICKS: Mapping[str, ActionType] = {
    "left_click": ActionType.CLICK,
    "double_click": ActionType.DOUBLE_CLICK,
    "triple_click": ActionType.TRIPLE_CLICK,
    "right_click": ActionType.RIGHT_CLICK,
    "middle_click": ActionType.MIDDLE_CLICK,
}
_CLICK_NAMES = {kind: name for name, kind in _CLICKS.items()}


class Qwen25VlFormat:
    """Qwen2.5-VL.

    Attributes:
        name: Name of the format.
        picture: The limits of the model's image processor.
    """

    name = "qwen2.5-vl"
    picture = PictureSize(28, 56 * 56, 28 * 28 * 16_384)
    coordinates: Coordinates = "pixels"
    images = HISTORY + 1
    stop: tuple[str, ...] = ()
    expresses = frozenset(ActionType) - {ActionType.TRIPLE_CLICK}

    def messages(self, instruction: str, turns: Sequence[PastTurn], picture_wh: tuple[int, int]) -> tuple[Message, ...]:
        """Write the prompt; see `ActionFormat.messages`."""
        shown = [turn for turn in turns if turn.image is not None]
        told = len(turns) - len(shown)
        previous = "\n".join(f"Step {index}: {self.summary(turn.text)}" for index, turn in enumerate(turns[:told], 1))
        asked = text_part(_INSTRUCTION.format(instruction=instruction, previous=previous or "None"))
        messages: list[Message] = [{"role": "system", "content": [text_part(self.system(picture_wh))]}]
        for index, text in enumerate([*(turn.text for turn in shown), None]):
            messages.append({"role": "user", "content": [image_part(), *([] if index else [asked])]})
            if text is not None:
                messages.append({"role": "assistant", "content": [text_part(text)]})
        return tuple(messages)

    def system(self, picture_wh: tuple[int, int]) -> str:
        """Return the system prompt for a picture of (width, height)."""
        tool = json.dumps(self.definition(picture_wh), ensure_ascii=False)
        return f"You are a helpful assistant.\n\n{_CALLING.format(tool=tool)}"

    def definition(self, picture_wh: tuple[int, int]) -> dict[str, Any]:
        """Return the tool for a picture of (width, height)."""
        return _tool(_QWEN2_5_TOOL, picture_wh, ",")

    def tools(self, picture_wh: tuple[int, int]) -> tuple[Mapping[str, Any], ...]:
        """Return no tools: the system prompt has them, whatever the chat template can do."""
        del picture_wh
        return ()

    def summary(self, answer: str) -> str:
        """Return the line that tells of an answer whose picture is not shown any more."""
        return _action_line(answer) or "Performing action"

    def parse(self, answer: str, points: PointMap, pointer: tuple[int, int] = (0, 0)) -> ParsedAnswer | ParseError:
        """Read an answer; see `ActionFormat.parse`."""

        def read() -> tuple[list[OneAction], str]:
            thought, calls = find_tool_calls(answer)
            actions: list[OneAction] = []
            place = pointer
            for call in calls:
                actions.append(_read_call(call, points, place))
                place = pointer_after(actions[-1], place)
            return actions, thought

        return read_answer(read, points.screen_wh)

    def format(self, actions: Sequence[Action], points: PointMap, *, thought: str = "") -> str:
        """Write an answer; see `ActionFormat.format`. A scroll turns the wheel along one axis."""
        calls: list[str] = []
        for action in actions:
            check_action(action, points.screen_wh)
            if action.type not in self.expresses or (action.dx and action.dy):
                raise cannot_express(self.name, action)
            calls += [
                f"<tool_call>\n{json.dumps({'name': TOOL, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
                for arguments in _arguments(action, points)
            ]
        said = " ".join(thought.split())
        return "\n".join([*([self.lead(said)] if said else []), *calls])

    def lead(self, thought: str) -> str:
        """Return the line before the calls."""
        return f"Action: {thought}"


class Qwen3VlFormat(Qwen25VlFormat):
    """Qwen3-VL."""

    name = "qwen3-vl"
    picture = PictureSize(32, 256 * 256, 32 * 32 * 12_800)
    coordinates: Coordinates = "thousandths"
    expresses = frozenset(ActionType)

    def system(self, picture_wh: tuple[int, int]) -> str:
        """Return the system prompt."""
        return _CALLING.format(tool=json.dumps(self.definition(picture_wh))) + _RESPONSE

    def definition(self, picture_wh: tuple[int, int]) -> dict[str, Any]:
        """Return the tool, which is the same for pictures of all sizes."""
        del picture_wh
        return _tool(_QWEN3_TOOL, (1000, 1000), "")

    def summary(self, answer: str) -> str:
        """Return the line that tells of an answer whose picture is not shown any more."""
        line = _action_line(answer)
        return line.partition(":")[2].strip() if line else "Performing action"


def _tool(function: Mapping[str, Any], screen_wh: tuple[int, int], comma: str) -> dict[str, Any]:
    filled = copy.deepcopy(dict(function))
    filled["description"] = function["description"].format(width=screen_wh[0], height=screen_wh[1], comma=comma)
    return {"type": "function", "function": filled}


def _action_line(answer: str) -> str:
    """The first line that begins with `Action:`; else the name of the called action."""
    spoken = answer.rpartition(END_OF_REASONING)[2]
    for line in spoken.splitlines():
        if line.strip().lower().startswith("action:"):
            return line.strip()
        if line.strip().startswith(OPENINGS):
            break
    try:
        _, calls = find_tool_calls(answer)
        return f"Action: Performing {str(calls[0]['arguments']['action'])[:40]} action"
    except (ActionError, KeyError, TypeError):
        return ""


def _read_call(call: Mapping[str, Any], points: PointMap, pointer: tuple[int, int]) -> OneAction:
    if call.get("name") != TOOL:
        raise ActionError(f"There is no tool {str(call.get('name'))[:40]!r}.", ActionFault.UNKNOWN_ACTION)
    arguments = required(call, "A call", "arguments")
    if not isinstance(arguments, dict):
        raise ActionError("The arguments of a call are a JSON object.", ActionFault.BAD_SYNTAX)
    name = text_field(arguments, TOOL, "action")
    place = pointer
    if "coordinate" in arguments:
        place = point(arguments["coordinate"], name, points)
    if name in _CLICKS:
        return click_at(_CLICKS[name], place)
    read = _READERS.get(name)
    if read is None:
        raise ActionError(f"There is no action {name[:40]!r}.", ActionFault.UNKNOWN_ACTION)
    return read(arguments, place, pointer)


def _read_move(arguments: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int]) -> Action:
    required(arguments, "mouse_move", "coordinate")
    return click_at(ActionType.MOVE, place)


def _read_drag(arguments: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int]) -> Action:
    required(arguments, "left_click_drag", "coordinate")
    return Action(ActionType.DRAG, x=pointer[0], y=pointer[1], x2=place[0], y2=place[1])


def _read_key(arguments: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int]) -> Action:
    written = required(arguments, "key", "keys")
    return Action(ActionType.KEY, keys=keys(written if isinstance(written, list) else [written]))


def _read_scroll(arguments: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int]) -> Action:
    turns = wheel_clicks(number(required(arguments, "scroll", "pixels"), "scroll", "pixels"))
    return Action(ActionType.SCROLL, x=place[0], y=place[1], dy=turns)


def _read_hscroll(arguments: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int]) -> Action:
    turns = wheel_clicks(number(required(arguments, "hscroll", "pixels"), "hscroll", "pixels"))
    return Action(ActionType.SCROLL, x=place[0], y=place[1], dx=turns)


def _read_terminate(arguments: Mapping[str, Any], place: tuple[int, int], pointer: tuple[int, int]) -> Action:
    status = arguments.get("status", "success")
    if status not in ("success", "failure"):
        raise ActionError(f"The status of a task is success or failure, not {str(status)[:40]!r}.")
    return Action(ActionType.DONE if status == "success" else ActionType.FAIL)


_READERS: Mapping[str, Callable[[Mapping[str, Any], tuple[int, int], tuple[int, int]], Action]] = {
    "mouse_move": _read_move,
    "left_click_drag": _read_drag,
    "key": _read_key,
    "type": lambda arguments, place, pointer: Action(ActionType.TYPE, text=text_field(arguments, "type")),
    "scroll": _read_scroll,
    "hscroll": _read_hscroll,
    "wait": lambda arguments, place, pointer: Action(
        ActionType.WAIT, duration_s=number(arguments.get("time", WAIT_S), "wait", "time")
    ),
    "terminate": _read_terminate,
    "answer": lambda arguments, place, pointer: Action(ActionType.DONE),
}


def _arguments(action: Action, points: PointMap) -> list[dict[str, Any]]:
    """The arguments of the calls that write an action: two for a drag, one for all others."""
    place = [] if action.x is None or action.y is None else list(points.to_model(action.x, action.y))
    match action.type:
        case ActionType.DRAG:
            assert action.x2 is not None
            assert action.y2 is not None
            end = list(points.to_model(action.x2, action.y2))
            return [
                {"action": "mouse_move", "coordinate": place},
                {"action": "left_click_drag", "coordinate": end},
            ]
        case ActionType.MOVE:
            return [{"action": "mouse_move", "coordinate": place}]
        case ActionType.SCROLL:
            name, turns = ("hscroll", action.dx) if action.dx else ("scroll", action.dy)
            return [{"action": name, "pixels": turns, "coordinate": place}]
        case ActionType.TYPE:
            return [{"action": "type", "text": action.text}]
        case ActionType.KEY:
            return [{"action": "key", "keys": list(action.keys)}]
        case ActionType.WAIT:
            return [{"action": "wait", "time": action.duration_s}]
        case ActionType.DONE | ActionType.FAIL:
            return [{"action": "terminate", "status": "success" if action.type is ActionType.DONE else "failure"}]
        case _:
            return [{"action": _CLICK_NAMES[action.type], "coordinate": place}]
