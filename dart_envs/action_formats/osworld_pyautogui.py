r"""OSWorld's agents that write pyautogui: a program per step, read against a list of allowed calls and never run.

Role: `OsworldPyautoguiFormat`. Rule: the code is the last fenced block of the answer, else the whole answer; a single call that a canonical
action says becomes one, everything else the program's input events; `WAIT`, `DONE` and `FAIL` by themselves, or as the last line, are
what OSWorld takes them for. Non-goals: which calls are allowed (`dart_envs.action_formats.pyautogui_calls`), running code
(`pyautogui-exec`).

Points are pixels of the screen. A call without a point happens at the pointer. Durations of moves are left out.

Sources: the action space `pyautogui` of OSWorld's `DesktopEnv`, and the form of answers in `mm_agents/agent.py` (code in a fence, one of
three words). The prompt is ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dart_envs.action_formats.base import (
    Message,
    OneAction,
    ParsedAnswer,
    ParseError,
    PastTurn,
    cannot_express,
    conversation,
    read_answer,
)
from dart_envs.action_formats.openai_computer import SCREEN_SIZE
from dart_envs.action_formats.pyautogui_calls import parse_statements
from dart_envs.actions import check_action, decode_action
from dart_envs.errors import ActionError, ActionFault
from dart_envs.observations.geometry import Coordinates, PointMap
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import InputEvent, KeyEvent, MoveEvent, ScrollEvent, TextEvent, WaitEvent

WAIT_S = 2.0
"""Seconds of `WAIT`: OSWorld's pause."""

PROMPT = """You operate a computer by looking at its screen and using mouse and keyboard.
Say in one sentence what you do next. Then write Python code that does it with pyautogui, in a fence:

```python
pyautogui.click(3, 4)
pyautogui.write('hello')
pyautogui.hotkey('ctrl', 's')
```

The code calls functions of pyautogui and time.sleep with literal arguments; it has no variables, loops or other functions. Points are pixels
of the picture, which has {width}x{height}, from its top left corner. In place of code, WAIT waits, DONE says that the task is done, and FAIL that it
cannot be done."""  # noqa: E501 - a line of the prompt

_FENCE = "```"
_FENCE_LINE = re.compile(r"^[ \t]*```", re.MULTILINE)
_LANGUAGE = re.compile(r"[ \t]*(?:python|py)?[ \t]*\n?", re.IGNORECASE)
_WORDS = {
    "WAIT": Action(ActionType.WAIT, duration_s=WAIT_S),
    "DONE": Action(ActionType.DONE),
    "FAIL": Action(ActionType.FAIL),
}
_CODE_LINE = re.compile(r"^[ \t]*(?:import |from |pyautogui\b|time\b|with |WAIT$|DONE$|FAIL$)", re.MULTILINE)
_CLICKS = {
    ActionType.CLICK: "click",
    ActionType.DOUBLE_CLICK: "doubleClick",
    ActionType.TRIPLE_CLICK: "tripleClick",
    ActionType.RIGHT_CLICK: "rightClick",
    ActionType.MIDDLE_CLICK: "middleClick",
    ActionType.MOVE: "moveTo",
}


class OsworldPyautoguiFormat:
    """Programs of pyautogui calls.

    Attributes:
        name: Name of the format.
        picture: The screen as it is.
    """

    name = "osworld-pyautogui"
    picture = SCREEN_SIZE
    coordinates: Coordinates = "pixels"
    images = 3
    stop: tuple[str, ...] = ()
    expresses = frozenset(ActionType)

    def messages(self, instruction: str, turns: Sequence[PastTurn], picture_wh: tuple[int, int]) -> tuple[Message, ...]:
        """Write the prompt; see `ActionFormat.messages`."""
        system = PROMPT.format(width=picture_wh[0], height=picture_wh[1])
        return conversation(system, f"The task: {instruction}", turns, [turn.text for turn in turns])

    def tools(self, picture_wh: tuple[int, int]) -> tuple[Mapping[str, Any], ...]:
        """Return no tools."""
        del picture_wh
        return ()

    def parse(self, answer: str, points: PointMap, pointer: tuple[int, int] = (0, 0)) -> ParsedAnswer | ParseError:
        """Read an answer; see `ActionFormat.parse`."""

        def read() -> tuple[list[OneAction], str]:
            thought, code = _code(answer)
            program, word = _last_word(code)
            actions: list[OneAction] = []
            for events in parse_statements(program, points.screen_wh, pointer):
                before = actions[-1] if actions else None
                if isinstance(before, Action) and before.type is ActionType.MOVE and events[0].type == "down":
                    moved = decode_action(before, points.screen_wh).events
                    joined = _canonical((*moved, *events), points.screen_wh)
                    if isinstance(joined, Action):
                        actions[-1] = joined
                        continue
                actions.append(_canonical(events, points.screen_wh))
            if not actions and word is None:
                actions.append(Action(ActionType.WAIT, duration_s=0.0))
            return [*actions, *([_WORDS[word]] if word else [])], thought

        return read_answer(read, points.screen_wh)

    def format(self, actions: Sequence[Action], points: PointMap, *, thought: str = "") -> str:
        """Write an answer; see `ActionFormat.format`. The end of the episode follows the other actions."""
        lines: list[str] = []
        for index, action in enumerate(actions):
            check_action(action, points.screen_wh)
            last = index == len(actions) - 1
            if action.type in (ActionType.DONE, ActionType.FAIL):
                if not last:
                    raise cannot_express(self.name, action)
                lines.append(action.type.value.upper())
            elif action == _WORDS["WAIT"] and len(actions) == 1:
                lines.append("WAIT")
            else:
                lines += _statements(action, self.name)
        return "\n".join([*([thought.strip()] if thought.strip() else []), f"{_FENCE}python", *lines, _FENCE])


def _code(answer: str) -> tuple[str, str]:
    """The text before the code, and the code."""
    pieces = _FENCE_LINE.split(answer)
    if len(pieces) > 1:
        # Fences come in pairs; the last pair holds the code, and the last fence may be missing.
        inside = len(pieces) - 1 - len(pieces) % 2
        code = pieces[inside]
        language = _LANGUAGE.match(code)
        return _FENCE.join(pieces[:inside]).strip(), code[language.end() if language else 0 :].strip().removesuffix(
            _FENCE
        )
    text = answer.strip().strip("`").strip()
    if not text or _CODE_LINE.search(text) is None:
        raise ActionError("There is no code.", ActionFault.NO_ACTION)
    return "", text


def _last_word(code: str) -> tuple[str, str | None]:
    """The program, and the word of OSWorld's that is its last line."""
    head, _, last = code.strip().rpartition("\n")
    return (head, last.strip()) if last.strip() in _WORDS else (code, None)


def _canonical(events: tuple[InputEvent, ...], screen_wh: tuple[int, int]) -> OneAction:
    """The canonical action with the same input events, where there is one."""
    for action in _candidates(events):
        try:
            if decode_action(action, screen_wh).events == events:
                return action
        except ActionError:
            continue
    return DecodedAction(events)


def _candidates(events: Sequence[InputEvent]) -> list[Action]:
    first, last = events[0], events[-1]
    match first:
        case MoveEvent(x=x, y=y):
            moves = [event for event in events if isinstance(event, MoveEvent)]
            found = [Action(kind, x=x, y=y) for kind in _CLICKS]
            found.append(Action(ActionType.DRAG, x=x, y=y, x2=moves[-1].x, y2=moves[-1].y))
            if isinstance(last, ScrollEvent):
                found.append(Action(ActionType.SCROLL, x=x, y=y, dx=last.dx, dy=last.dy))
            return found
        case TextEvent(text=text):
            return [Action(ActionType.TYPE, text=text)]
        case WaitEvent(ms=ms):
            return [Action(ActionType.WAIT, duration_s=ms / 1000)]
        case KeyEvent():
            down = (event.key for event in events if isinstance(event, KeyEvent) and event.type == "key_down")
            return [Action(ActionType.KEY, keys=tuple(down))]
    return []


def _statements(action: Action, name: str) -> list[str]:
    """The calls that perform an action."""
    if action.type in _CLICKS:
        return [f"pyautogui.{_CLICKS[action.type]}({action.x}, {action.y})"]
    match action.type:
        case ActionType.DRAG:
            return [
                f"pyautogui.moveTo({action.x}, {action.y})",
                f"pyautogui.dragTo({action.x2}, {action.y2}, button='left')",
            ]
        case ActionType.SCROLL if (action.dx == 0) != (action.dy == 0):
            called, turns = ("hscroll", action.dx) if action.dx else ("scroll", action.dy)
            return [f"pyautogui.{called}({turns}, x={action.x}, y={action.y})"]
        case ActionType.TYPE if action.text:
            return [f"pyautogui.write({action.text!r})"]
        case ActionType.KEY if len(action.keys) == 1:
            return [f"pyautogui.press({action.keys[0]!r})"]
        case ActionType.KEY if not any(len(key) == 1 and key != key.lower() for key in action.keys):
            return [f"pyautogui.hotkey({', '.join(repr(key) for key in action.keys)})"]
        case ActionType.WAIT:
            return [f"time.sleep({action.duration_s!r})"]
    raise cannot_express(name, action)
