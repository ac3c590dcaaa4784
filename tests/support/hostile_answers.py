"""Model outputs that go wrong in every way, for every reader, and what a reader may make of them.

Role: `hostile_answers` generates, `check_reading` checks one reading. Rule: the readers are those of rollouts: the prompts with our own
wording, which the demo is trained with, and all action formats. Deterministic by seed and fast: valid answers of some reader, mutated,
spliced and repeated. Non-goals: single known defects (the formats' own tests).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from action_format_cases import sample_action, sample_answer

from dart_agent.prompts.builder import PRESETS, PromptSpec, preset
from dart_envs.action_formats import FORMATS, ParsedAnswer, ParseError
from dart_envs.action_formats.base import MAX_ACTIONS, MAX_DETAIL_CHARS, MAX_EVENTS
from dart_envs.actions import MAX_WAIT_S, actions_to_dict, decode_action
from dart_envs.errors import ActionError, ActionFault
from dart_envs.observations.geometry import PointMap
from dart_envs.types import ActionType, DecodedAction
from dart_server.wire import MoveEvent, WaitEvent

READERS = (*PRESETS, *FORMATS)
"""Names of the prompts whose answers are read."""
SCREENS = ((1920, 1080), (640, 400), (65, 4000))
NUMBERS = (
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1",
        "-0",
        "0.5",
        "1e3",
        "99999999999999999999",
        "9" * 400,
        "9" * 5_000,
    ),
    *(
        "0x10",
        "1_000",
        "\uff11\uff12",
        "\u0661",
        "true",
        "null",
        '"5"',
        "1000",
        "1001",
        "",
        "1,2",
        "[1]",
        "1e-400",
        "00",
    ),
)
TOKENS = (
    *(
        "Action:",
        "Thought:",
        "action :",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "```",
        "```python\n",
        "\u2697",
    ),
    *(
        "<|box_start|>",
        "<|box_end|>",
        "<point>",
        "</point>",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "\\",
        "\\n",
        "\n",
        "\n\n",
        "\r",
    ),
    *(
        "\0",
        "\ud800",
        "\udfff",
        "\u202e",
        "\ufeff",
        "\U0001f600",
        "\u0130",
        "e\u0301",
        "\u2028",
        " ",
        "\t",
        ",",
        ":",
        "=",
        "#",
        "+",
    ),
    *(
        "null",
        "true",
        "NaN",
        "{}",
        "[]",
        "[INFEASIBLE]",
        "WAIT",
        "DONE",
        "FAIL",
        "finished()",
        "call_user()",
        "pyautogui.",
        "time.sleep(",
    ),
    *(
        "import os\n",
        "exec('1')",
        "__import__('os')",
        "lambda: 0",
        "with pyautogui.hold('a'):\n ",
        "*",
        "**{}",
        "f'{1}'",
        "b'1'",
    ),
    *(
        '"actions": [',
        '"coordinate": [1, 2]',
        '"action": "left_click"',
        '"type": "click"',
        '"keys": ["ctrl"]',
        "start_box='(1,1)'",
    ),
)
DIGITS = "0123456789"
MAX_CHARS = 1_000_000
"""Of an output: more than any limit of tokens allows."""


@dataclass(frozen=True)
class HostileAnswer:
    """An output, and where it is read: on which screen, with which points, and where the mouse pointer is."""

    text: str
    points: PointMap
    pointer: tuple[int, int]


def hostile_answers(reader: str, count: int, seed: int) -> Iterator[HostileAnswer]:
    """Generate outputs for one reader; four fifths of them are made of its own answers.

    Args:
        reader: Name of the prompt whose answers they should be.
        count: How many.
        seed: Of the generator.

    Yields:
        The outputs.
    """
    chance = random.Random(f"{seed} {reader}")
    specs = {name: preset(name) for name in READERS}
    for _ in range(count):
        screen = chance.choice(SCREENS)
        writer = reader if chance.random() < 0.8 else chance.choice(READERS)
        answer = _sample(specs[writer], screen, chance)
        for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
            answer = _mutate(answer, chance)[:MAX_CHARS]
        if chance.random() < 0.05:
            answer += _sample(specs[chance.choice(READERS)], screen, chance)
        pointer = (chance.randrange(screen[0]), chance.randrange(screen[1]))
        yield HostileAnswer(answer, _points(specs[reader], screen), pointer)


def _points(spec: PromptSpec, screen_wh: tuple[int, int]) -> PointMap:
    return PointMap(spec.picture_wh(screen_wh), screen_wh, spec.coordinates)


def _sample(spec: PromptSpec, screen_wh: tuple[int, int], chance: random.Random) -> str:
    """A valid answer."""
    points = _points(spec, screen_wh)
    if spec.format is not None:
        return sample_answer(spec.format, points, chance)
    while True:
        action = sample_action(chance.choice(sorted(ActionType)), points, chance)
        try:
            return spec.write(action, points, thought=chance.choice(["", "Click OK"]))
        except ActionError:
            continue


def _mutate(text: str, chance: random.Random) -> str:
    start = chance.randrange(len(text) + 1)
    end = min(len(text), start + chance.choice((1, 1, 2, 5, 20)))
    match chance.randrange(9):
        case 0:
            return text[:start] + text[end:]
        case 1:
            return text[:start] + chance.choice(TOKENS) + text[start:]
        case 2:
            return text[:start] + text[start:end] * chance.choice((2, 3, 50)) + text[end:]
        case 3:
            return text[:start]
        case 4:
            return _with_other_number(text, chance)
        case 5:
            return _with_other_number(_with_other_number(text, chance), chance)
        case 6:
            return (
                text[:start]
                + chr(chance.choice((chance.randrange(128), chance.randrange(0xD800), 0x1F600)))
                + text[end:]
            )
        case 7:
            inner = chance.choice("([{")
            return text[:start] + inner * chance.choice((1, 3, 300)) + text[start:]
        case _:
            return text.swapcase() if chance.random() < 0.3 else (text + "\n") * chance.choice((1, 2, 40))


def _with_other_number(text: str, chance: random.Random) -> str:
    places = [index for index, character in enumerate(text) if character in DIGITS]
    if not places:
        return text
    start = end = chance.choice(places)
    while end < len(text) and text[end] in DIGITS:
        end += 1
    while start and text[start - 1] in DIGITS:
        start -= 1
    return text[:start] + chance.choice(NUMBERS) + text[end:]


def check_reading(parsed: object, screen_wh: tuple[int, int]) -> ActionFault | None:
    """Check that a reading is an error with its cause, or a step that a desktop of this screen can perform.

    Args:
        parsed: What a format made of an output.
        screen_wh: (width, height) of the screen.

    Returns:
        The cause, or None for a step.
    """
    if isinstance(parsed, ParseError):
        assert isinstance(parsed.fault, ActionFault)
        assert 0 < len(parsed.detail) <= MAX_DETAIL_CHARS
        return parsed.fault
    assert isinstance(parsed, ParsedAnswer)
    assert 1 <= len(parsed.actions) <= MAX_ACTIONS
    assert actions_to_dict(parsed.actions)
    step = parsed.action if isinstance(parsed.action, DecodedAction) else decode_action(parsed.action, screen_wh)
    assert step.code is None
    assert len(step.events) <= MAX_EVENTS
    assert sum(event.ms for event in step.events if isinstance(event, WaitEvent)) <= MAX_WAIT_S * 1000
    for event in step.events:
        if isinstance(event, MoveEvent):
            assert 0 <= event.x < screen_wh[0]
            assert 0 <= event.y < screen_wh[1]
    return None
