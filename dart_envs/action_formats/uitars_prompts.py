r"""UI-TARS-1.5 and DART-GUI: their prompts, their turns and their dialect of the language.

Role: `Uitars15Format` and `DartGuiFormat`. Rule: the text of a prompt is data, character by character what the checkpoint was trained and
evaluated with, spaces at line ends included. Non-goals: the language itself (`uitars`).

    system     You are a helpful assistant.
    user       the prompt with the instruction, and the first picture as long as it is shown
    assistant  an answer, its points between <|box_start|> and <|box_end|>        of the last 35 steps
    user       the picture of the step, where it is shown                          the last 5 pictures

Sources: `prompts.py`, `task_loader.py` and `trajectory_runner.py` of DART's rollouts (Computer-use-agents/dart_rollouter, 2e695f0), which
take them from OSWorld's agent for UI-TARS-1.5; limits of a picture: UI-TARS' `action_parser.py` (bytedance/UI-TARS, 582f3a7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dart_envs.action_formats.base import (
    Message,
    ParsedAnswer,
    ParseError,
    PastTurn,
    PictureSize,
    cannot_express,
    conversation,
)
from dart_envs.action_formats.uitars import SCROLL_CLICKS, UitarsDialect, format_actions, parse
from dart_envs.observations.geometry import Coordinates, PointMap
from dart_envs.types import Action, ActionType

SYSTEM = "You are a helpful assistant."
LANGUAGE = "English"
MAX_ANSWERS = 35
"""Earlier answers that are repeated."""
QWEN2_5_PIXEL = 28
PICTURE = PictureSize(QWEN2_5_PIXEL, 100 * QWEN2_5_PIXEL**2, 16_384 * QWEN2_5_PIXEL**2)
DIALECT = UitarsDialect(wait_s=5.0, box="<|box_start|>({x},{y})<|box_end|>", batches=True)

_ACTION_SPACE = r"""
click(start_box='<|box_start|>(x1,y1)<|box_end|>')
left_double(start_box='<|box_start|>(x1,y1)<|box_end|>')
right_single(start_box='<|box_start|>(x1,y1)<|box_end|>')
drag(start_box='<|box_start|>(x1,y1)<|box_end|>', end_box='<|box_start|>(x3,y3)<|box_end|>')
hotkey(key='')
type(content='') #If you want to submit your input, use "\n" at the end of `content`.
scroll(start_box='<|box_start|>(x1,y1)<|box_end|>', direction='down or up or right or left')
wait() #Sleep for 5s and take a screenshot to check for any changes.
finished(content='xxx') # Use escape characters \', \", and \n in content part to ensure we can parse the content in normal python string format.
"""  # noqa: E501 - the text that the checkpoints were trained with
DART_GUI_PROMPT = f"""You are a GUI agent. You are given a task and your action history, with screenshots. You need to perform the next action to complete the task.

## Output Format
```
Thought: ...
Action: ...
```

## Action Space
{_ACTION_SPACE}
## Note
- Use {{language}} in `Thought` part.
- Write a small plan and finally summarize your next action (with its target element) in one sentence in `Thought` part.
- My computer's password is 'password', feel free to use it when you need sudo rights.

## User Instruction
{{instruction}}
"""  # noqa: E501 - the text that the checkpoints were trained with
UITARS_1_5_PROMPT = f"""You are a GUI agent. You are given a task and your action history, with screenshots. You need to perform the next action to complete the task.{" "}

## Output Format
```
Thought: ...
Action: ...
```

## Action Space
{_ACTION_SPACE}

## Note
- Use {{language}} in `Thought` part.
- Write a small plan and finally summarize your next action (with its target element) in one sentence in `Thought` part.

## User Instruction
{{instruction}}
"""  # noqa: E501 - the text that the checkpoints were trained with
_PLAIN_BOX = re.compile(r"(start_box|end_box)='\((\d+),(\d+)\)'", re.ASCII)


class Uitars15Format:
    """UI-TARS-1.5 as OSWorld's agent asks it.

    Attributes:
        name: Name of the format.
        prompt: The first user turn; `{language}` and `{instruction}` are filled in.
    """

    name = "uitars-1.5"
    prompt = UITARS_1_5_PROMPT
    picture = PICTURE
    coordinates: Coordinates = "pixels"
    images = 5
    stop: tuple[str, ...] = ()
    expresses = frozenset(
        {
            *(ActionType.CLICK, ActionType.DOUBLE_CLICK, ActionType.RIGHT_CLICK, ActionType.DRAG, ActionType.SCROLL),
            *(ActionType.TYPE, ActionType.KEY, ActionType.WAIT, ActionType.DONE, ActionType.FAIL),
        }
    )

    def messages(self, instruction: str, turns: Sequence[PastTurn], picture_wh: tuple[int, int]) -> tuple[Message, ...]:
        """Write the prompt; see `ActionFormat.messages`."""
        del picture_wh
        prompt = self.prompt.replace("{language}", LANGUAGE).replace("{instruction}", instruction)
        first = len(turns) - MAX_ANSWERS
        answers = [mark_boxes(turn.text) if index >= first else None for index, turn in enumerate(turns)]
        return conversation(SYSTEM, prompt, turns, answers)

    def tools(self, picture_wh: tuple[int, int]) -> tuple[Mapping[str, Any], ...]:
        """Return no tools: the prompt names the actions."""
        del picture_wh
        return ()

    def parse(self, answer: str, points: PointMap, pointer: tuple[int, int] = (0, 0)) -> ParsedAnswer | ParseError:
        """Read an answer; see `ActionFormat.parse`. Every action of the language has its points."""
        del pointer
        return parse(answer, points, DIALECT)

    def format(self, actions: Sequence[Action], points: PointMap, *, thought: str = "") -> str:
        """Write an answer; see `ActionFormat.format`. A scroll has five clicks of the wheel along one axis, a wait five seconds."""
        for action in actions:
            wheel = sorted((abs(action.dx), abs(action.dy)))
            says_less = (action.type is ActionType.SCROLL and wheel != [0, SCROLL_CLICKS]) or (
                action.type is ActionType.WAIT and action.duration_s != DIALECT.wait_s
            )
            if action.type not in self.expresses or says_less:
                raise cannot_express(self.name, action)
        return format_actions(actions, points, thought=thought, dialect=DIALECT)


class DartGuiFormat(Uitars15Format):
    """DART-GUI-7B as DART's rollouts ask it: another note in the prompt."""

    name = "dart-gui"
    prompt = DART_GUI_PROMPT


def mark_boxes(answer: str) -> str:
    """Put the box tokens back around the points of an answer, which decoding without special tokens takes away."""
    return _PLAIN_BOX.sub(r"\1='<|box_start|>(\2,\3)<|box_end|>'", answer)
