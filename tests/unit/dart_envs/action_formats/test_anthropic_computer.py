"""Anthropic's computer toolset: content blocks of the Messages API, both generations, and endpoints without the tool."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from action_format_cases import past_turns, point_map, sample_action, turn_shape, turn_texts

from dart_envs.action_formats import ParsedAnswer, ParseError, make_format
from dart_envs.action_formats.anthropic_computer import AnthropicComputerFormat
from dart_envs.errors import ActionError, ActionFault
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import ButtonEvent, KeyEvent, WaitEvent

FORMAT = make_format("anthropic-computer")
SCREEN_WH = (1920, 1080)
POINTS = PointMap((1280, 720), SCREEN_WH)
HERE = (700, 300)


def block(name: str, **given: Any) -> dict[str, Any]:
    """As the API sends it for the toolset of 2026."""
    return {"type": "tool_use", "id": "toolu_1", "name": name, "toolset_name": "computer", "input": given}


def read(*blocks: dict[str, Any]) -> ParsedAnswer:
    parsed = FORMAT.parse(json.dumps(blocks), POINTS, HERE)
    assert isinstance(parsed, ParsedAnswer), parsed
    return parsed


def test_a_large_screen_is_shown_smaller_and_its_points_are_scaled_back() -> None:
    assert FORMAT.picture.fit(SCREEN_WH) == (1280, 720)
    assert FORMAT.picture.fit((640, 400)) == (640, 400)
    assert read(block("left_click", coordinate=[640, 360])).action == Action(ActionType.CLICK, x=960, y=540)
    assert read(block("left_click", coordinate=[1280, 720])).action == Action(ActionType.CLICK, x=1919, y=1079)


@pytest.mark.parametrize(
    ("name", "given", "action"),
    [
        ("left_click", {}, Action(ActionType.CLICK, x=700, y=300)),
        ("right_click", {"coordinate": [640, 360]}, Action(ActionType.RIGHT_CLICK, x=960, y=540)),
        ("triple_click", {"coordinate": [640, 360], "text": None}, Action(ActionType.TRIPLE_CLICK, x=960, y=540)),
        ("mouse_move", {"coordinate": [640, 360]}, Action(ActionType.MOVE, x=960, y=540)),
        (
            "left_click_drag",
            {"start_coordinate": [0, 0], "coordinate": [640, 360]},
            Action(ActionType.DRAG, x=0, y=0, x2=960, y2=540),
        ),
        ("left_click_drag", {"coordinate": [640, 360]}, Action(ActionType.DRAG, x=700, y=300, x2=960, y2=540)),
        (
            "scroll",
            {"scroll_direction": "down", "scroll_amount": 3, "coordinate": [640, 360]},
            Action(ActionType.SCROLL, x=960, y=540, dy=-3),
        ),
        (
            "scroll",
            {"scroll_direction": "right", "scroll_amount": 500},
            Action(ActionType.SCROLL, x=700, y=300, dx=50),
        ),
        ("key", {"text": "ctrl+shift+Escape"}, Action(ActionType.KEY, keys=("ctrl", "shift", "escape"))),
        ("key", {"text": "Page_Up"}, Action(ActionType.KEY, keys=("pageup",))),
        ("key", {"text": "ctrl++"}, Action(ActionType.KEY, keys=("ctrl", "+"))),
        ("key", {"text": "+"}, Action(ActionType.KEY, keys=("+",))),
        ("type", {"text": "a\nb"}, Action(ActionType.TYPE, text="a\nb")),
        ("wait", {"duration": 3}, Action(ActionType.WAIT, duration_s=3.0)),
        ("screenshot", {}, Action(ActionType.WAIT, duration_s=0.0)),
        ("zoom", {"region": [0, 0, 10, 10]}, Action(ActionType.WAIT, duration_s=0.0)),
        ("cursor_position", {}, Action(ActionType.WAIT, duration_s=0.0)),
    ],
)
def test_reads_every_member_of_the_toolset(name: str, given: dict[str, Any], action: Action) -> None:
    assert read(block(name, **given)).action == action
    older = {"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {"action": name, **given}}
    assert read(older).action == action


def test_several_chords_are_pressed_one_after_the_other() -> None:
    parsed = read(block("key", text="ctrl+a Delete"))
    assert parsed.actions == (Action(ActionType.KEY, keys=("ctrl", "a")), Action(ActionType.KEY, keys=("delete",)))


def test_a_key_is_repeated() -> None:
    action = read(block("key", text="Down", repeat=3)).action
    assert isinstance(action, DecodedAction)
    assert action.events == (KeyEvent(type="key_down", key="down"), KeyEvent(type="key_up", key="down")) * 3


def test_a_key_is_held_for_a_while() -> None:
    action = read(block("hold_key", text="shift", duration=2)).action
    assert isinstance(action, DecodedAction)
    assert action.events == (
        KeyEvent(type="key_down", key="shift"),
        WaitEvent(ms=2000),
        KeyEvent(type="key_up", key="shift"),
    )


def test_keys_are_held_during_a_click() -> None:
    action = read(block("left_click", coordinate=[640, 360], text="ctrl+shift")).action
    assert isinstance(action, DecodedAction)
    assert [event.key for event in action.events if isinstance(event, KeyEvent)] == ["ctrl", "shift", "shift", "ctrl"]


def test_the_button_is_held_where_the_calls_before_left_the_pointer() -> None:
    parsed = read(
        block("mouse_move", coordinate=[640, 360]), block("left_mouse_down"), block("mouse_move", coordinate=[0, 0]),
        block("left_mouse_up"),
    )  # fmt: skip
    assert isinstance(parsed.action, DecodedAction)
    assert [event.type for event in parsed.action.events if isinstance(event, ButtonEvent)] == ["down", "up"]


@pytest.mark.parametrize(
    ("text", "kind"), [("It is done.", ActionType.DONE), ("[INFEASIBLE] no such app", ActionType.FAIL)]
)
def test_a_text_without_a_call_is_the_end(text: str, kind: ActionType) -> None:
    parsed = read({"type": "thinking", "thinking": "So."}, {"type": "text", "text": text})
    assert parsed.action == Action(kind)
    assert parsed.thought == f"So.\n{text}"


def test_an_endpoint_without_the_toolset_is_asked_for_the_same_json() -> None:
    messages = FORMAT.messages("Open it", past_turns(1, 0), (1280, 720))
    assert turn_shape(messages)[1:] == [("user", ["text"]), ("assistant", ["text"]), ("user", ["image"])]
    assert "1280x720" in turn_texts(messages, "system")[0]
    assert FORMAT.tools((1280, 720)) == ()
    parsed = FORMAT.parse('Stop.\n[{"type": "tool_use", "name": "done", "input": {}}]', POINTS)
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.action == Action(ActionType.DONE)


def test_an_api_with_the_tools_is_given_their_declaration_and_no_description_of_the_actions() -> None:
    (toolset,) = AnthropicComputerFormat("computer_toolset_20260801").tools((1280, 720))
    assert toolset == {
        "type": "computer_toolset_20260801",
        "configs": {"zoom": {"enabled": False}, "cursor_position": {"enabled": False}},
    }
    older = AnthropicComputerFormat("computer_20251124")
    assert older.tools((1280, 720)) == (
        {"type": "computer_20251124", "name": "computer", "display_width_px": 1280, "display_height_px": 720},
    )
    (system,) = turn_texts(older.messages("Open it", (), (1280, 720)), "system")
    assert "tool_use" not in system
    assert "[INFEASIBLE]" in system


def test_what_a_client_must_not_perform_keeps_its_reason() -> None:
    parsed = FORMAT.parse('[{"type": "not_performed", "reason": "The model refused."}]', POINTS)
    assert parsed == ParseError(ActionFault.NO_ACTION, "The model refused.")


@pytest.mark.parametrize(
    ("blocks", "fault"),
    [
        ([], ActionFault.NO_ACTION),
        ([3], ActionFault.BAD_SYNTAX),
        ([block("fly")], ActionFault.UNKNOWN_ACTION),
        ([{"type": "image"}], ActionFault.UNKNOWN_ACTION),
        ([block("mouse_move")], ActionFault.MISSING_FIELD),
        ([block("type")], ActionFault.MISSING_FIELD),
        ([block("scroll", scroll_direction="down")], ActionFault.MISSING_FIELD),
        ([block("left_click", coordinate=[1281, 1])], ActionFault.OUT_OF_SCREEN),
        ([block("left_click", coordinate=[-1, 1])], ActionFault.OUT_OF_SCREEN),
        ([block("left_click", coordinate=[1, 2, 3])], ActionFault.BAD_VALUE),
        ([block("left_click", text=3)], ActionFault.BAD_VALUE),
        ([block("scroll", scroll_direction="away", scroll_amount=1)], ActionFault.BAD_VALUE),
        ([block("key", text="nosuchkey")], ActionFault.BAD_VALUE),
        ([block("key", text="")], ActionFault.BAD_VALUE),
        ([block("key", text="a", repeat=101)], ActionFault.BAD_VALUE),
        ([block("hold_key", text="a", duration=61)], ActionFault.BAD_VALUE),
        ([{"type": "tool_use", "name": "left_click", "input": "x"}], ActionFault.BAD_SYNTAX),
        ([block("wait", duration=40)] * 2, ActionFault.TOO_MANY),
    ],
)
def test_what_performs_nothing_has_a_cause(blocks: list[Any], fault: ActionFault) -> None:
    parsed = FORMAT.parse(json.dumps(blocks), POINTS, HERE)
    assert isinstance(parsed, ParseError)
    assert parsed.fault is fault, parsed


def test_the_written_calls_are_those_of_the_sdk() -> None:
    beta = pytest.importorskip("anthropic.types.beta")
    if not hasattr(beta, "BetaComputerLeftClickInput"):
        pytest.skip("this anthropic has no computer toolset")
    chance, points = random.Random(1), point_map(FORMAT)
    checked = set()
    for kind in sorted(FORMAT.expresses) * 10:
        try:
            (call,) = json.loads(FORMAT.format([sample_action(kind, points, chance)], points))
        except ActionError:
            continue
        if call["type"] == "tool_use" and not isinstance(call["input"].get("duration"), float):
            model = "".join(part.title() for part in call["name"].split("_"))
            getattr(beta, f"BetaComputer{model}Input").model_validate(call["input"], strict=True)
            checked.add(call["name"])
    assert {"left_click", "left_click_drag", "scroll", "key", "type", "mouse_move"} <= checked
