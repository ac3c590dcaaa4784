"""OpenAI's computer tool: output items of the Responses API, batches, and the JSON of endpoints without the tool."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from action_format_cases import past_turns, point_map, sample_action, turn_shape, turn_texts

from dart_envs.action_formats import ParsedAnswer, ParseError, make_format
from dart_envs.action_formats.openai_computer import OpenaiComputerFormat
from dart_envs.errors import ActionError, ActionFault
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import ButtonEvent, KeyEvent, MoveEvent

FORMAT = make_format("openai-computer")
POINTS = PointMap((1920, 1080), (1920, 1080))


def read(value: Any) -> ParsedAnswer:
    parsed = FORMAT.parse(value if isinstance(value, str) else json.dumps(value), POINTS)
    assert isinstance(parsed, ParsedAnswer), parsed
    return parsed


def computer_call(*actions: dict[str, Any]) -> list[dict[str, Any]]:
    """As the API sends it."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Open it."}]}
    call = {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "call_1",
        "status": "completed",
        "pending_safety_checks": [],
        "actions": list(actions),
    }
    return [reasoning, call]


@pytest.mark.parametrize(
    ("call", "actions"),
    [
        ({"type": "click", "button": "left", "x": 3, "y": 4}, [Action(ActionType.CLICK, x=3, y=4)]),
        ({"type": "click", "button": "right", "x": 3, "y": 4}, [Action(ActionType.RIGHT_CLICK, x=3, y=4)]),
        ({"type": "click", "button": "wheel", "x": 3, "y": 4}, [Action(ActionType.MIDDLE_CLICK, x=3, y=4)]),
        ({"type": "click", "button": "back", "x": 3, "y": 4}, [Action(ActionType.KEY, keys=("alt", "left"))]),
        ({"type": "double_click", "x": 3, "y": 4, "keys": None}, [Action(ActionType.DOUBLE_CLICK, x=3, y=4)]),
        ({"type": "move", "x": 3, "y": 4}, [Action(ActionType.MOVE, x=3, y=4)]),
        (
            {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]},
            [Action(ActionType.DRAG, x=1, y=2, x2=3, y2=4)],
        ),
        (
            {"type": "scroll", "x": 3, "y": 4, "scroll_x": -30, "scroll_y": 300},
            [Action(ActionType.SCROLL, x=3, y=4, dx=-1, dy=-3)],
        ),
        ({"type": "keypress", "keys": ["CTRL", "S"]}, [Action(ActionType.KEY, keys=("ctrl", "s"))]),
        ({"type": "keypress", "keys": ["ARROWDOWN"]}, [Action(ActionType.KEY, keys=("down",))]),
        ({"type": "type", "text": "a\n"}, [Action(ActionType.TYPE, text="a\n")]),
        ({"type": "wait"}, [Action(ActionType.WAIT, duration_s=2.0)]),
        ({"type": "screenshot"}, [Action(ActionType.WAIT, duration_s=0.0)]),
    ],
)
def test_reads_every_action_of_the_tool(call: dict[str, Any], actions: list[Action]) -> None:
    assert list(read(computer_call(call)).actions) == actions
    assert read({"type": "computer_call", "action": call}).actions == tuple(actions)
    assert read({"output": computer_call(call)}).thought == "Open it."


def test_a_batch_is_one_step_in_order() -> None:
    parsed = read(
        computer_call(
            {"type": "click", "button": "left", "x": 3, "y": 4}, {"type": "type", "text": "a"}, {"type": "screenshot"}
        )
    )
    assert [one.type for one in parsed.actions if isinstance(one, Action)] == ["click", "type"]
    assert isinstance(parsed.action, DecodedAction)


def test_keys_are_held_during_a_click() -> None:
    action = read(computer_call({"type": "click", "button": "left", "x": 3, "y": 4, "keys": ["SHIFT"]})).action
    assert isinstance(action, DecodedAction)
    assert action.events == (
        KeyEvent(type="key_down", key="shift"),
        MoveEvent(x=3, y=4),
        ButtonEvent(type="down", button=1),
        ButtonEvent(type="up", button=1),
        KeyEvent(type="key_up", key="shift"),
    )


def test_a_drag_follows_its_path_with_the_button_down() -> None:
    path = [{"x": 0, "y": 0}, {"x": 80, "y": 0}, {"x": 80, "y": 80}]
    action = read(computer_call({"type": "drag", "path": path})).action
    assert isinstance(action, DecodedAction)
    buttons = [event.type for event in action.events if isinstance(event, ButtonEvent)]
    assert buttons == ["down", "up"]
    moves = [(event.x, event.y) for event in action.events if isinstance(event, MoveEvent)]
    assert moves[0] == (0, 0)
    assert (80, 0) in moves
    assert moves[-1] == (80, 80)


@pytest.mark.parametrize(
    ("text", "kind"), [("It is done.", ActionType.DONE), ("[INFEASIBLE] no such app", ActionType.FAIL)]
)
def test_a_message_without_a_call_is_the_end(text: str, kind: ActionType) -> None:
    parsed = read([{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}])
    assert parsed.action == Action(kind)
    assert parsed.thought == text


def test_an_endpoint_without_the_tool_is_asked_for_the_same_json() -> None:
    messages = FORMAT.messages("Open it", past_turns(1, 1), (1920, 1080))
    assert turn_shape(messages)[-1] == ("user", ["image"])
    (system,) = turn_texts(messages, "system")
    assert '{"type": "click", "button": "left", "x": 3, "y": 4}' in system
    assert "1920x1080" in system
    answer = 'Click it, then stop.\n```json\n{"actions": [{"type": "click", "x": 3, "y": 4}, {"type": "done"}]}\n```'
    parsed = read(answer)
    assert parsed.thought == "Click it, then stop."
    assert isinstance(parsed.action, DecodedAction)
    assert parsed.action.end is ActionType.DONE
    assert FORMAT.tools((1920, 1080)) == ()


def test_an_api_with_the_tool_is_given_its_declaration_and_no_description_of_the_actions() -> None:
    assert OpenaiComputerFormat("computer").tools((1920, 1080)) == ({"type": "computer"},)
    preview = OpenaiComputerFormat("computer_use_preview", "ubuntu")
    assert preview.tools((1024, 768)) == (
        {"type": "computer_use_preview", "display_width": 1024, "display_height": 768, "environment": "ubuntu"},
    )
    (system,) = turn_texts(preview.messages("Open it", (), (1024, 768)), "system")
    assert "keypress" not in system
    assert "[INFEASIBLE]" in system


def test_what_a_client_must_not_perform_keeps_its_reason() -> None:
    parsed = FORMAT.parse('[{"type": "not_performed", "reason": "The model refused."}]', POINTS)
    assert parsed == ParseError(ActionFault.NO_ACTION, "The model refused.")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"actions": []}, ActionFault.NO_ACTION),
        ([], ActionFault.NO_ACTION),
        ({"actions": 3}, ActionFault.BAD_SYNTAX),
        ({"actions": [3]}, ActionFault.BAD_SYNTAX),
        ({"hello": 1}, ActionFault.MISSING_FIELD),
        ({"actions": [{"x": 1}]}, ActionFault.MISSING_FIELD),
        ({"actions": [{"type": "click", "x": 1}]}, ActionFault.MISSING_FIELD),
        ({"actions": [{"type": "jump"}]}, ActionFault.UNKNOWN_ACTION),
        ([{"type": "web_search_call"}], ActionFault.UNKNOWN_ACTION),
        ({"actions": [{"type": "click", "x": 1920, "y": 1081}]}, ActionFault.OUT_OF_SCREEN),
        ({"actions": [{"type": "click", "x": "1", "y": 1}]}, ActionFault.BAD_VALUE),
        ({"actions": [{"type": "click", "x": 1, "y": 1, "button": ["left"]}]}, ActionFault.BAD_VALUE),
        ({"actions": [{"type": "click", "x": 1, "y": 1, "keys": "SHIFT"}]}, ActionFault.BAD_VALUE),
        ({"actions": [{"type": "drag", "path": [{"x": 1, "y": 1}]}]}, ActionFault.BAD_VALUE),
        ({"actions": [{"type": "keypress", "keys": "a"}]}, ActionFault.BAD_VALUE),
        ({"actions": [{"type": "wait"}] * 31}, ActionFault.TOO_MANY),
        ({"actions": [{"type": "wait"}] * 1_000}, ActionFault.TOO_MANY),
        ('{"actions": [{"type": "wait"}]} and more', ActionFault.BAD_SYNTAX),
    ],
)
def test_what_performs_nothing_has_a_cause(value: Any, fault: ActionFault) -> None:
    parsed = FORMAT.parse(value if isinstance(value, str) else json.dumps(value), POINTS)
    assert isinstance(parsed, ParseError)
    assert parsed.fault is fault, parsed


def test_the_written_calls_are_those_of_the_sdk() -> None:
    responses = pytest.importorskip("openai.types.responses")
    chance, points = random.Random(1), point_map(FORMAT)
    for kind in sorted(FORMAT.expresses) * 10:
        try:
            items = json.loads(FORMAT.format([sample_action(kind, points, chance)], points))
        except ActionError:
            continue
        call = items[-1]
        if call["type"] != "computer_call":
            continue
        whole = {"id": "cu_1", "call_id": "call_1", "pending_safety_checks": [], "status": "completed"} | call
        assert responses.ResponseComputerToolCall.model_validate(whole, strict=True).actions
