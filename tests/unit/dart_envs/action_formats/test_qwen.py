"""Qwen's computer_use: the published prompts to the character, the turns, and how calls are read."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from action_format_cases import PlainTurn, past_turns, turn_shape, turn_texts

from dart_envs.action_formats import ParsedAnswer, ParseError, make_format
from dart_envs.action_formats.qwen import Qwen3VlFormat, Qwen25VlFormat
from dart_envs.errors import ActionFault
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType, DecodedAction

SCREEN_WH = (1920, 1080)
PIXELS = PointMap((1932, 1092), SCREEN_WH)
THOUSANDTHS = PointMap((1920, 1088), SCREEN_WH, "thousandths")
HERE = (700, 300)


def call(**arguments: Any) -> str:
    body = json.dumps({"name": "computer_use", "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def read(answer: str, points: PointMap = PIXELS) -> ParsedAnswer:
    parsed = make_format("qwen2.5-vl").parse(answer, points, HERE)
    assert isinstance(parsed, ParsedAnswer), parsed
    return parsed


def fault_of(answer: str, name: str = "qwen3-vl") -> ActionFault:
    parsed = make_format(name).parse(answer, THOUSANDTHS, HERE)
    assert isinstance(parsed, ParseError), parsed
    return parsed.fault


@pytest.mark.parametrize(
    ("system", "sha256"),
    [
        (
            Qwen25VlFormat().system((1932, 1092)),
            "07006095f59e34f97024e321b232c62989028e1665b8ef17cccb4ded44305139",
        ),
        (Qwen3VlFormat().system((1920, 1088)), "f0aa74a3eb2b6a2f3caf83882e2e07c62b5087835adff04f9c7b6c4c2621795b"),
    ],
)
def test_the_system_prompt_is_the_published_text_to_the_character(system: str, sha256: str) -> None:
    """Digests of what the published code prints: qwen-agent's prompt with the cookbook's tool; OSWorld's agent."""
    assert hashlib.sha256(system.encode()).hexdigest() == sha256


def test_pictures_have_the_sizes_of_the_image_processors() -> None:
    assert make_format("qwen2.5-vl").picture.fit(SCREEN_WH) == (1932, 1092)
    assert make_format("qwen3-vl").picture.fit(SCREEN_WH) == (1920, 1088)


def test_the_first_step_shows_the_picture_before_the_instruction() -> None:
    messages = make_format("qwen3-vl").messages("Open the settings", (), (1920, 1088))
    assert turn_shape(messages) == [("system", ["text"]), ("user", ["image", "text"])]
    (asked,) = turn_texts(messages, "user")
    assert asked == (
        "\nPlease generate the next move according to the UI screenshot, instruction and previous actions.\n\n"
        "Instruction: Open the settings\n\nPrevious actions:\nNone"
    )


def test_shown_steps_are_turns_and_earlier_ones_are_lines() -> None:
    turns = [*past_turns(2, 0), *past_turns(2, 2)]
    turns[0] = PlainTurn(None, f"Action: Open the menu.\n{call(action='left_click', coordinate=[1, 2])}")
    turns[1] = PlainTurn(None, call(action="wait", time=1))
    answer, picture = ("assistant", ["text"]), ("user", ["image"])
    for name, first in (("qwen3-vl", "Open the menu."), ("qwen2.5-vl", "Action: Open the menu.")):
        messages = make_format(name).messages("Go", turns, (1932, 1092))
        assert turn_shape(messages)[1:] == [("user", ["image", "text"]), answer, picture, answer, picture]
        asked = turn_texts(messages, "user")[0]
        lines = asked.partition("Previous actions:\n")[2].splitlines()
        assert lines[0] == f"Step 1: {first}"
        assert lines[1].endswith("Performing wait action")
        assert turn_texts(messages, "assistant") == [turn.text for turn in turns[2:]]


def test_reads_a_call_after_the_sentence_that_tells_of_it() -> None:
    parsed = read(f"Action: Click OK.\n{call(action='left_click', coordinate=[966, 546])}")
    assert parsed.action == Action(ActionType.CLICK, x=960, y=540)
    assert parsed.thought == "Action: Click OK."


def test_thousandths_are_read_along_both_axes() -> None:
    parsed = make_format("qwen3-vl").parse(call(action="double_click", coordinate=[500, 1000]), THOUSANDTHS)
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.action == Action(ActionType.DOUBLE_CLICK, x=960, y=1079)


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "left_click"}, Action(ActionType.CLICK, x=700, y=300)),
        (
            {"action": "left_click_drag", "coordinate": [966, 546]},
            Action(ActionType.DRAG, x=700, y=300, x2=960, y2=540),
        ),
        ({"action": "scroll", "pixels": -5}, Action(ActionType.SCROLL, x=700, y=300, dy=-5)),
        ({"action": "scroll", "pixels": -900}, Action(ActionType.SCROLL, x=700, y=300, dy=-50)),
        ({"action": "hscroll", "pixels": 3, "coordinate": [966, 546]}, Action(ActionType.SCROLL, x=960, y=540, dx=3)),
        ({"action": "key", "keys": ["ctrl", "S"]}, Action(ActionType.KEY, keys=("ctrl", "S"))),
        ({"action": "key", "keys": ["Page_Down"]}, Action(ActionType.KEY, keys=("pagedown",))),
        ({"action": "key", "keys": "enter"}, Action(ActionType.KEY, keys=("enter",))),
        ({"action": "type", "text": "a\n"}, Action(ActionType.TYPE, text="a\n")),
        ({"action": "wait"}, Action(ActionType.WAIT, duration_s=2.0)),
        ({"action": "wait", "time": 3}, Action(ActionType.WAIT, duration_s=3.0)),
        ({"action": "terminate", "status": "success"}, Action(ActionType.DONE)),
        ({"action": "terminate", "status": "failure"}, Action(ActionType.FAIL)),
        ({"action": "answer", "text": "42"}, Action(ActionType.DONE)),
    ],
)
def test_reads_every_action_of_the_tool(arguments: dict[str, Any], action: Action) -> None:
    assert read(call(**arguments)).action == action


def test_a_drag_begins_where_the_calls_before_it_left_the_pointer() -> None:
    parsed = read(
        call(action="left_click", coordinate=[966, 546]) + "\n" + call(action="left_click_drag", coordinate=[0, 0])
    )
    assert parsed.actions[1] == Action(ActionType.DRAG, x=960, y=540, x2=0, y2=0)
    assert isinstance(parsed.action, DecodedAction)


def test_calls_in_the_reasoning_are_not_performed() -> None:
    parsed = read(f"<think>Perhaps {call(action='terminate')}</think>\n{call(action='wait', time=1)}")
    assert parsed.action == Action(ActionType.WAIT, duration_s=1.0)
    assert fault_of(f"<think>Perhaps {call(action='terminate')}</think>") is ActionFault.NO_ACTION


def test_a_call_without_its_end_or_its_tags_is_read() -> None:
    whole = call(action="wait", time=1)
    assert read(whole.removesuffix("</tool_call>")).action == Action(ActionType.WAIT, duration_s=1.0)
    bare = whole.removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert read(bare).action == Action(ActionType.WAIT, duration_s=1.0)


def test_the_sign_that_stands_for_the_tag_in_the_training_data_is_read() -> None:
    body = call(action="wait", time=1).removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert read(f"Action: Wait.\n\N{ALEMBIC}{body}\N{ALEMBIC}").action == Action(ActionType.WAIT, duration_s=1.0)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("", ActionFault.NO_ACTION),
        ("I cannot see it.", ActionFault.NO_ACTION),
        ("<tool_call>", ActionFault.BAD_SYNTAX),
        ("<tool_call>[1]</tool_call>", ActionFault.BAD_SYNTAX),
        ('<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "time": NaN}}', ActionFault.BAD_SYNTAX),
        ('<tool_call>{"name": "computer_use"', ActionFault.BAD_SYNTAX),
        ('<tool_call>{"name": "browser", "arguments": {}}</tool_call>', ActionFault.UNKNOWN_ACTION),
        ('<tool_call>{"name": "computer_use"}</tool_call>', ActionFault.MISSING_FIELD),
        ('<tool_call>{"name": "computer_use", "arguments": "wait"}</tool_call>', ActionFault.BAD_SYNTAX),
        (call(action="jump"), ActionFault.UNKNOWN_ACTION),
        (call(text="x"), ActionFault.MISSING_FIELD),
        (call(action="type"), ActionFault.MISSING_FIELD),
        (call(action="mouse_move"), ActionFault.MISSING_FIELD),
        (call(action="left_click", coordinate=[1001, 5]), ActionFault.OUT_OF_SCREEN),
        (call(action="left_click", coordinate=[-1, 5]), ActionFault.OUT_OF_SCREEN),
        (call(action="left_click", coordinate=[5]), ActionFault.BAD_VALUE),
        (call(action="left_click", coordinate=["5", "6"]), ActionFault.BAD_VALUE),
        (call(action="left_click", coordinate=[True, 6]), ActionFault.BAD_VALUE),
        (call(action="key", keys=["nosuchkey"]), ActionFault.BAD_VALUE),
        (call(action="key", keys=[]), ActionFault.BAD_VALUE),
        (call(action="scroll", pixels="many"), ActionFault.BAD_VALUE),
        (call(action="wait", time=1e300), ActionFault.BAD_VALUE),
        (call(action="wait", time=-1), ActionFault.BAD_VALUE),
        (call(action="terminate", status="maybe"), ActionFault.BAD_VALUE),
        (call(action="wait", time=1) * 65, ActionFault.TOO_MANY),
        (call(action="wait", time=40) * 2, ActionFault.TOO_MANY),
    ],
)
def test_what_performs_nothing_has_a_cause(answer: str, fault: ActionFault) -> None:
    assert fault_of(answer) is fault
