"""Model text to actions and back: examples, round trips, and that no text raises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_envs.action_formats import ParsedAnswer, ParseError
from dart_envs.action_formats.uitars import format_action, parse
from dart_envs.actions import MAX_WHEEL_CLICKS, check_action
from dart_envs.errors import ActionError, ActionFault
from dart_envs.key_names import NAMED_KEYS
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType

TINY = PointMap((256, 160), (640, 400))
SAME = PointMap((640, 400), (640, 400))
THOUSANDTHS = PointMap((256, 160), (1920, 1080), "thousandths")


def action_of(text: str, points: PointMap = SAME) -> Action:
    parsed = parse(text, points)
    assert isinstance(parsed, ParsedAnswer), parsed
    assert isinstance(parsed.action, Action)
    return parsed.action


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("click(start_box='(12,34)')", Action(ActionType.CLICK, x=12, y=34)),
        ("click(start_box='<|box_start|>(12,34)<|box_end|>')", Action(ActionType.CLICK, x=12, y=34)),
        ("click(start_box=<|box_start|>(12,34)<|box_end|>)", Action(ActionType.CLICK, x=12, y=34)),
        ("click(start_box='[10, 30, 14, 38]')", Action(ActionType.CLICK, x=12, y=34)),
        ('click(start_box="12, 34")', Action(ActionType.CLICK, x=12, y=34)),
        ("click(start_box=(12,34))", Action(ActionType.CLICK, x=12, y=34)),
        ("click(point='<point>12 34</point>')", Action(ActionType.CLICK, x=12, y=34)),
        ("click(start_box='(12.7,34.2)')", Action(ActionType.CLICK, x=12, y=34)),
        ("left_double(start_box='(1,2)')", Action(ActionType.DOUBLE_CLICK, x=1, y=2)),
        ("right_single(start_box='(1,2)')", Action(ActionType.RIGHT_CLICK, x=1, y=2)),
        ("hover(start_box='(1,2)')", Action(ActionType.MOVE, x=1, y=2)),
        ("drag(start_box='(1,2)', end_box='(3,4)')", Action(ActionType.DRAG, x=1, y=2, x2=3, y2=4)),
        ("scroll(start_box='(1,2)', direction='down')", Action(ActionType.SCROLL, x=1, y=2, dy=-5)),
        ("scroll(start_box='(1,2)', direction='up', amount='2')", Action(ActionType.SCROLL, x=1, y=2, dy=2)),
        ("scroll(start_box='(1,2)', direction='right')", Action(ActionType.SCROLL, x=1, y=2, dx=5)),
        (r"type(content='a\'b\n')", Action(ActionType.TYPE, text="a'b\n")),
        ("type(content='it's (here), ok')", Action(ActionType.TYPE, text="it's (here), ok")),
        (r"type(content='C:\\new')", Action(ActionType.TYPE, text="C:\\new")),
        ('type(content="two\nlines")', Action(ActionType.TYPE, text="two\nlines")),
        ("hotkey(key='ctrl s')", Action(ActionType.KEY, keys=("ctrl", "s"))),
        ("hotkey(key='Ctrl+Shift+S')", Action(ActionType.KEY, keys=("ctrl", "shift", "S"))),
        ("hotkey(key='ctrl +')", Action(ActionType.KEY, keys=("ctrl", "+"))),
        ("hotkey(key='ArrowDown')", Action(ActionType.KEY, keys=("down",))),
        ("wait()", Action(ActionType.WAIT)),
        ("finished(content='all done')", Action(ActionType.DONE)),
        ("finished()", Action(ActionType.DONE)),
        ("call_user()", Action(ActionType.FAIL)),
    ],
)
def test_reads_the_action_language(call: str, action: Action) -> None:
    assert action_of(f"Thought: because\nAction: {call}") == action


def test_keeps_the_thought_apart() -> None:
    parsed = parse("Thought: press OK\nAction: click(start_box='(1,2)')\n", SAME)
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.thought == "press OK"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", ActionFault.NO_ACTION),
        ("click(start_box='(1,2)')", ActionFault.NO_ACTION),
        ("Action: ", ActionFault.NO_ACTION),
        ("Action: click", ActionFault.BAD_SYNTAX),
        ("Action: click(start_box='(1,2)'", ActionFault.BAD_SYNTAX),
        ("Action: click(start_box='(1,2)", ActionFault.BAD_SYNTAX),
        ("Action: click(start_box=)", ActionFault.BAD_SYNTAX),
        ("Action: click(start_box='(1,2)') click(start_box='(1,2)')", ActionFault.BAD_SYNTAX),
        ("Action: click(start_box='(1,2)', start_box='(1,2)')", ActionFault.BAD_SYNTAX),
        ("Action: jump()", ActionFault.UNKNOWN_ACTION),
        ("Action: click()", ActionFault.MISSING_FIELD),
        ("Action: click(start_box='(1)')", ActionFault.BAD_VALUE),
        ("Action: click(start_box='(1,2,3)')", ActionFault.BAD_VALUE),
        ("Action: click(start_box='here')", ActionFault.BAD_VALUE),
        ("Action: click(start_box='(641,2)')", ActionFault.OUT_OF_SCREEN),
        ("Action: click(start_box='(-1,2)')", ActionFault.OUT_OF_SCREEN),
        ("Action: drag(start_box='(1,2)')", ActionFault.MISSING_FIELD),
        ("Action: scroll(start_box='(1,2)')", ActionFault.MISSING_FIELD),
        ("Action: scroll(start_box='(1,2)', direction='sideways')", ActionFault.BAD_VALUE),
        ("Action: scroll(start_box='(1,2)', direction='up', amount='many')", ActionFault.BAD_VALUE),
        ("Action: hotkey(key='')", ActionFault.MISSING_FIELD),
        ("Action: hotkey(key='nosuchkey')", ActionFault.BAD_VALUE),
        ("Action: wait(seconds='9999')", ActionFault.BAD_VALUE),
        ("Action: type(content='a\0b')", ActionFault.BAD_VALUE),
    ],
)
def test_what_is_no_action_is_data(text: str, fault: ActionFault) -> None:
    error = parse(text, SAME)
    assert isinstance(error, ParseError)
    assert error.fault is fault


def test_maps_points_of_the_picture_to_the_screen() -> None:
    assert action_of("Action: click(start_box='(128,64)')", TINY) == Action(ActionType.CLICK, x=321, y=161)
    assert action_of("Action: click(start_box='(256,160)')", TINY) == Action(ActionType.CLICK, x=638, y=398)
    assert action_of("Action: click(start_box='(500,500)')", THOUSANDTHS) == Action(ActionType.CLICK, x=960, y=540)


ALPHABET = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
XS, YS = st.integers(0, 639), st.integers(0, 399)
WHEEL = st.integers(-MAX_WHEEL_CLICKS, MAX_WHEEL_CLICKS)
PRINTABLE = st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp", "Cn", "Cf", "Co"))
KEYS = st.lists(st.sampled_from(NAMED_KEYS) | PRINTABLE, min_size=1, max_size=3, unique=True).map(tuple)
CLICKS = [
    ActionType.CLICK,
    ActionType.DOUBLE_CLICK,
    ActionType.TRIPLE_CLICK,
    ActionType.RIGHT_CLICK,
    ActionType.MIDDLE_CLICK,
    ActionType.MOVE,
]
ACTIONS = st.one_of(
    st.builds(Action, st.sampled_from(CLICKS), x=XS, y=YS),
    st.builds(Action, st.just(ActionType.DRAG), x=XS, y=YS, x2=XS, y2=YS),
    st.builds(Action, st.just(ActionType.SCROLL), x=XS, y=YS, dx=WHEEL, dy=WHEEL),
    st.builds(Action, st.just(ActionType.TYPE), text=st.text(ALPHABET, max_size=40)),
    st.builds(Action, st.just(ActionType.KEY), keys=KEYS),
    st.builds(Action, st.just(ActionType.WAIT), duration_s=st.sampled_from([0.5, 1.0, 2.0, 60.0])),
    st.sampled_from([Action(ActionType.DONE), Action(ActionType.FAIL)]),
)


@settings(deadline=None)
@given(ACTIONS, st.text(max_size=30).filter(lambda thought: "action" not in thought.lower()))
def test_what_is_written_is_read_back(action: Action, thought: str) -> None:
    text = format_action(action, SAME, thought=thought)
    assert action_of(text) == action


@settings(deadline=None)
@given(ACTIONS)
def test_on_a_smaller_picture_the_text_is_read_back_as_the_same_text(action: Action) -> None:
    text = format_action(action, TINY)
    read = action_of(text, TINY)
    assert format_action(read, TINY) == text
    if action.x is not None and action.y is not None and read.x is not None and read.y is not None:
        assert abs(read.x - action.x) <= 2
        assert abs(read.y - action.y) <= 2


PIECES = st.sampled_from(
    [
        "Thought:",
        "Action:",
        "click(",
        "start_box=",
        "'",
        '"',
        "(",
        ")",
        "12",
        ",",
        "-",
        "\\",
        "\n",
        "type(content='",
        "=",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.text() | st.lists(PIECES | st.text(max_size=3), max_size=14).map("".join))
def test_no_text_raises_and_every_action_can_be_performed(text: str) -> None:
    for points in (TINY, THOUSANDTHS):
        result = parse(text, points)
        if isinstance(result, ParsedAnswer):
            assert isinstance(result.action, Action)
            check_action(result.action, points.screen_wh)


def test_an_impossible_action_is_not_written() -> None:
    with pytest.raises(ActionError):
        format_action(Action(ActionType.CLICK, x=640, y=0), SAME)
