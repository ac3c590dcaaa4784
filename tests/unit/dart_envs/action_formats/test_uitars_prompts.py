"""UI-TARS-1.5 and DART-GUI: the text of their prompts to the character, the turns, the pictures, the answers."""

from __future__ import annotations

import hashlib

import pytest
from action_format_cases import past_turns, turn_shape, turn_texts

from dart_envs.action_formats import ParsedAnswer, ParseError, make_format
from dart_envs.action_formats.uitars_prompts import DART_GUI_PROMPT, MAX_ANSWERS, UITARS_1_5_PROMPT, mark_boxes
from dart_envs.errors import ActionError, ActionFault
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import TextEvent

SCREEN_WH = (1920, 1080)
PICTURE_WH = (1932, 1092)
POINTS = PointMap(PICTURE_WH, SCREEN_WH)


@pytest.mark.parametrize(
    ("prompt", "sha256"),
    [
        (DART_GUI_PROMPT, "8e3700a1ac91ced6c348e59914edf45acf5f5abb05e4460aa221a05a0aa4a409"),
        (UITARS_1_5_PROMPT, "712a055fb0a304768a86ba8da592a97c9ed758e281e34991229341bf50d3e622"),
    ],
)
def test_the_prompt_is_the_published_text_to_the_character(prompt: str, sha256: str) -> None:
    """Digests of the published files' constants, action space filled in, language and instruction not."""
    assert hashlib.sha256(prompt.encode()).hexdigest() == sha256


def test_a_screen_is_shown_as_the_image_processor_would_resize_it() -> None:
    picture = make_format("dart-gui").picture
    assert picture.fit(SCREEN_WH) == PICTURE_WH
    assert picture.fit(PICTURE_WH) == PICTURE_WH
    assert (picture.min_pixels, picture.max_pixels) == (78_400, 12_845_056)


def test_the_first_turn_has_the_prompt_and_the_first_picture() -> None:
    messages = make_format("dart-gui").messages("Open {language} settings", (), PICTURE_WH)
    assert turn_shape(messages) == [("system", ["text"]), ("user", ["text", "image"])]
    assert turn_texts(messages, "system") == ["You are a helpful assistant."]
    (prompt,) = turn_texts(messages, "user")
    assert "- Use English in `Thought` part." in prompt
    assert prompt.endswith("## User Instruction\nOpen {language} settings\n")


def test_pictures_and_answers_take_turns() -> None:
    messages = make_format("uitars-1.5").messages("Go", past_turns(2, 2), PICTURE_WH)
    answer, picture = ("assistant", ["text"]), ("user", ["image"])
    assert turn_shape(messages)[1:] == [("user", ["text", "image"]), answer, picture, answer, picture]
    assert (
        turn_texts(messages, "assistant")[1] == "Thought: 1\nAction: click(start_box='<|box_start|>(1,9)<|box_end|>')"
    )


def test_old_pictures_go_and_their_answers_stay() -> None:
    messages = make_format("uitars-1.5").messages("Go", past_turns(7, 4), PICTURE_WH)
    assert turn_shape(messages)[1:5] == [("user", ["text"]), *[("assistant", ["text"])] * 3]
    assert sum(kind == "image" for _, kinds in turn_shape(messages) for kind in kinds) == 5


def test_at_most_35_answers_are_repeated() -> None:
    messages = make_format("uitars-1.5").messages("Go", past_turns(40, 4), PICTURE_WH)
    repeated = turn_texts(messages, "assistant")
    assert len(repeated) == MAX_ANSWERS == 35
    assert repeated[0].startswith("Thought: 5\n")


def test_boxes_are_marked_once() -> None:
    bare = "Action: drag(start_box='(1,2)', end_box='(3,4)')"
    marked = "Action: drag(start_box='<|box_start|>(1,2)<|box_end|>', end_box='<|box_start|>(3,4)<|box_end|>')"
    assert mark_boxes(bare) == mark_boxes(marked) == marked


def test_points_are_pixels_of_the_resized_picture_and_a_wait_takes_five_seconds() -> None:
    dart = make_format("dart-gui")
    parsed = dart.parse("Thought: t\nAction: click(start_box='<|box_start|>(966,546)<|box_end|>')", POINTS)
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.action == Action(ActionType.CLICK, x=960, y=540)
    waited = dart.parse("Action: wait()", POINTS)
    assert isinstance(waited, ParsedAnswer)
    assert waited.action == Action(ActionType.WAIT, duration_s=5.0)


def test_several_calls_are_one_step() -> None:
    dart = make_format("dart-gui")
    parsed = dart.parse("Action: click(start_box='(1,2)')\n\ntype(content='a')\n\nhotkey(key='enter')", POINTS)
    assert isinstance(parsed, ParsedAnswer)
    assert [action.type for action in parsed.actions if isinstance(action, Action)] == ["click", "type", "key"]
    assert isinstance(parsed.action, DecodedAction)
    assert TextEvent(text="a") in parsed.action.events
    assert parsed.action.end is None
    ended = dart.parse("Action: click(start_box='(1,2)')\n\nfinished(content='x')\n\nclick(start_box='(1,2)')", POINTS)
    assert isinstance(ended, ParsedAnswer)
    assert isinstance(ended.action, DecodedAction)
    assert ended.action.end is ActionType.DONE
    assert len(ended.actions) == 2


def test_the_action_is_the_last_that_begins_a_line() -> None:
    text = "Thought: The last Action: failed.\nAction: click(start_box='(9,9)')"
    parsed = make_format("dart-gui").parse(text, PointMap((100, 100), (100, 100)))
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.action == Action(ActionType.CLICK, x=9, y=9)
    assert parsed.thought == "The last Action: failed."


def test_more_calls_than_a_step_takes_are_refused() -> None:
    parsed = make_format("dart-gui").parse("Action: " + "click(start_box='(1,2)')\n\n" * 1_000, POINTS)
    assert isinstance(parsed, ParseError)
    assert parsed.fault is ActionFault.TOO_MANY


def test_more_waiting_than_a_step_takes_is_refused() -> None:
    parsed = make_format("dart-gui").parse("Action: " + "wait()\n\n" * 13, POINTS)
    assert isinstance(parsed, ParseError)
    assert parsed.fault is ActionFault.TOO_MANY


@pytest.mark.parametrize(
    "action",
    [
        Action(ActionType.TRIPLE_CLICK, x=1, y=1),
        Action(ActionType.SCROLL, x=1, y=1, dy=3),
        Action(ActionType.WAIT, duration_s=1.0),
    ],
)
def test_what_the_prompt_does_not_offer_is_not_written(action: Action) -> None:
    with pytest.raises(ActionError, match=r"uitars-1\.5 cannot express"):
        make_format("uitars-1.5").format([action], POINTS)
