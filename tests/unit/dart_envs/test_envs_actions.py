"""Canonical actions: what is refused, what is performed, and the JSON form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dart_envs.actions import (
    DRAG_STEPS,
    action_from_dict,
    action_to_dict,
    actions_to_dict,
    check_action,
    first_point,
    scale_action,
    to_input_events,
)
from dart_envs.errors import ActionError
from dart_envs.key_names import format_chord, is_key, parse_chord
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import ButtonEvent, KeyEvent, MoveEvent, ScrollEvent, StepRequest, TextEvent, WaitEvent

SCREEN = (640, 400)

GOOD = [
    Action(ActionType.CLICK, x=0, y=0),
    Action(ActionType.DOUBLE_CLICK, x=639, y=399),
    Action(ActionType.TRIPLE_CLICK, x=1, y=2),
    Action(ActionType.RIGHT_CLICK, x=1, y=2),
    Action(ActionType.MIDDLE_CLICK, x=1, y=2),
    Action(ActionType.MOVE, x=1, y=2),
    Action(ActionType.DRAG, x=10, y=20, x2=110, y2=220),
    Action(ActionType.SCROLL, x=1, y=2, dy=-3),
    Action(ActionType.TYPE, text="žluť 🐎\n\t"),
    Action(ActionType.TYPE, text=""),
    Action(ActionType.KEY, keys=("ctrl", "shift", "s")),
    Action(ActionType.KEY, keys=("é",)),
    Action(ActionType.WAIT, duration_s=2.5),
    Action(ActionType.DONE),
    Action(ActionType.FAIL),
]


@pytest.mark.parametrize("action", GOOD, ids=lambda action: action.type.value)
def test_json_and_back(action: Action) -> None:
    record = json.loads(json.dumps(action_to_dict(action)))
    assert action_from_dict(record, SCREEN) == action


@pytest.mark.parametrize("action", GOOD, ids=lambda action: action.type.value)
def test_events_fit_the_wire(action: Action) -> None:
    events = to_input_events(action, SCREEN)
    assert StepRequest.model_validate_json(StepRequest(events=events).model_dump_json()).events == events


BAD: list[tuple[Action, str]] = [
    (Action(ActionType.CLICK), "needs x as an integer"),
    (Action(ActionType.CLICK, x=640, y=0), "between 0 and 639"),
    (Action(ActionType.CLICK, x=0, y=-1), "between 0 and 399"),
    (Action(ActionType.CLICK, x=True, y=0), "needs x as an integer"),
    (Action(ActionType.CLICK, x=1.5, y=0), "needs x as an integer"),  # type: ignore[arg-type]
    (Action(ActionType.CLICK, x=1, y=1, text="a"), "takes no text"),
    (Action(ActionType.DRAG, x=1, y=1, x2=5), "needs y2"),
    (Action(ActionType.DRAG, x=1, y=1, x2=640, y2=5), "between 0 and 639"),
    (Action(ActionType.SCROLL, x=1, y=1, dy=51), "between -50 and 50"),
    (Action(ActionType.TYPE, text="a" * 4097), "limit is 4096"),
    (Action(ActionType.TYPE, text="a\0"), "NUL"),
    (Action(ActionType.TYPE, text="\ud83d"), "surrogate"),
    (Action(ActionType.KEY), "1 to 5 key names"),
    (Action(ActionType.KEY, keys=("ctrl", "ctrl")), "one key twice"),
    (Action(ActionType.KEY, keys=("hyper",)), "'hyper' is not a key"),
    (Action(ActionType.KEY, keys=("Return",)), "'Return' is not a key; use 'return'"),
    (Action(ActionType.KEY, keys="ctrl"), "tuple"),  # type: ignore[arg-type]
    (Action(ActionType.WAIT, duration_s=61), "between 0 and 60"),
    (Action(ActionType.WAIT, duration_s=float("nan")), "between 0 and 60"),
    (Action(ActionType.DONE, x=1), "takes no x"),
    (Action("click", x=1, y=1), "ActionType"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("action", "sentence"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_refused_with_one_sentence(action: Action, sentence: str) -> None:
    with pytest.raises(ActionError, match=sentence):
        check_action(action, SCREEN)
    with pytest.raises(ActionError):
        to_input_events(action, SCREEN)


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({}, "names no action type"),
        ({"type": "jump"}, "the types are click"),
        ({"type": ["click"]}, "names no action type"),
        ({"type": "click", "x": 1, "y": 1, "text": "a"}, "takes no text"),
        ({"type": "click", "x": "1", "y": 1}, "integer"),
        ({"type": "key", "keys": "ctrl"}, "tuple"),
    ],
)
def test_json_that_is_no_action(record: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ActionError, match=sentence):
        action_from_dict(record, SCREEN)


@pytest.mark.parametrize(
    ("kind", "button", "times"),
    [
        (ActionType.CLICK, 1, 1),
        (ActionType.DOUBLE_CLICK, 1, 2),
        (ActionType.TRIPLE_CLICK, 1, 3),
        (ActionType.RIGHT_CLICK, 3, 1),
        (ActionType.MIDDLE_CLICK, 2, 1),
    ],
)
def test_clicks_go_to_the_point_and_press_the_button(kind: ActionType, button: int, times: int) -> None:
    events = to_input_events(Action(kind, x=7, y=9), SCREEN)
    assert events[0] == MoveEvent(x=7, y=9)
    presses = [event for event in events if isinstance(event, ButtonEvent)]
    assert [(event.type, event.button) for event in presses] == [("down", button), ("up", button)] * times


def test_a_drag_moves_with_the_button_down_and_ends_on_its_target() -> None:
    events = to_input_events(Action(ActionType.DRAG, x=10, y=20, x2=90, y2=0), SCREEN)
    assert events[0] == MoveEvent(x=10, y=20)
    assert events[1] == ButtonEvent(type="down", button=1)
    assert events[-1] == ButtonEvent(type="up", button=1)
    moves = [event for event in events[2:] if isinstance(event, MoveEvent)]
    assert len(moves) == DRAG_STEPS
    assert moves[-1] == MoveEvent(x=90, y=0)
    assert [move.x for move in moves] == sorted(move.x for move in moves)


def test_scroll_type_and_wait() -> None:
    assert to_input_events(Action(ActionType.SCROLL, x=1, y=2, dx=1, dy=-3), SCREEN) == [
        MoveEvent(x=1, y=2),
        ScrollEvent(dx=1, dy=-3),
    ]
    assert to_input_events(Action(ActionType.TYPE, text="ab"), SCREEN) == [TextEvent(text="ab")]
    assert to_input_events(Action(ActionType.WAIT, duration_s=0.25), SCREEN) == [WaitEvent(ms=250)]
    assert to_input_events(Action(ActionType.DONE), SCREEN) == []


def test_a_chord_is_released_in_reverse() -> None:
    events = to_input_events(Action(ActionType.KEY, keys=("ctrl", "s")), SCREEN)
    assert [(event.type, event.key) for event in events if isinstance(event, KeyEvent)] == [
        ("key_down", "ctrl"),
        ("key_down", "s"),
        ("key_up", "s"),
        ("key_up", "ctrl"),
    ]


@pytest.mark.parametrize(
    ("chord", "keys"),
    [
        ("enter", ("enter",)),
        ("ctrl+shift+t", ("ctrl", "shift", "t")),
        ("+", ("+",)),
        ("ctrl++", ("ctrl", "+")),
        ("é", ("é",)),
        ("", None),
        ("ctrl+", None),
        ("+s", None),
        ("hyper+x", None),
        ("a+a", None),
    ],
)
def test_chords(chord: str, keys: tuple[str, ...] | None) -> None:
    assert parse_chord(chord) == keys
    if keys is not None:
        assert format_chord(keys) == chord


def test_a_control_character_is_not_a_key() -> None:
    assert is_key("f12")
    assert not is_key("\n")
    assert not is_key("f13")


def test_scaling_keeps_points_on_the_screen_and_centres_in_place() -> None:
    small, large = (64, 40), (640, 400)
    assert scale_action(Action(ActionType.CLICK, x=63, y=39), small, large) == Action(ActionType.CLICK, x=635, y=395)
    assert scale_action(Action(ActionType.CLICK, x=639, y=399), large, small) == Action(ActionType.CLICK, x=63, y=39)
    assert scale_action(Action(ActionType.TYPE, text="a"), small, large) == Action(ActionType.TYPE, text="a")
    for x in range(64):
        there = scale_action(Action(ActionType.MOVE, x=x, y=0), small, large)
        assert scale_action(there, large, small) == Action(ActionType.MOVE, x=x, y=0)


def test_a_step_of_several_actions_is_written_as_a_batch() -> None:
    click, typed = Action(ActionType.CLICK, x=3, y=4), Action(ActionType.TYPE, text="a")
    held = DecodedAction((KeyEvent(type="key_down", key="shift"), MoveEvent(x=5, y=6)))
    assert actions_to_dict([click]) == {"type": "click", "x": 3, "y": 4}
    assert actions_to_dict([typed, held]) == {
        "type": "batch",
        "actions": [
            {"type": "type", "text": "a"},
            {"type": "events", "events": [{"type": "key_down", "key": "shift"}, {"type": "move", "x": 5, "y": 6}]},
        ],
    }
    assert first_point(actions_to_dict([click])) == (3, 4)
    assert first_point(actions_to_dict([typed, held])) == (5, 6)
    assert first_point(actions_to_dict([typed])) is None
