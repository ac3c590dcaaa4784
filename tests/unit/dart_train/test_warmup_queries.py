"""What a warm start asks about screens: names by place and by text, demonstrations, and clicks in no order."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from dart_agent.grounding.acting.targets import find_targets
from dart_envs.action_formats import ParsedAnswer
from dart_envs.action_formats.uitars import parse
from dart_envs.types import Action, ActionType
from dart_train.warmup.queries import Query, QueryBuilder, mentioned_texts
from dart_train.warmup.screens import shift_windows
from tests.unit.dart_train.warmup_screens import POINTS, element, list_dialog, screen_of

QUERY_BUILDER = QueryBuilder(POINTS, step_px=8)


def _clicked(answer: str) -> tuple[int, int]:
    parsed = parse(answer, POINTS)
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.action.type is ActionType.CLICK
    assert parsed.action.x is not None
    assert parsed.action.y is not None
    return parsed.action.x, parsed.action.y


def test_places_are_named_in_order_and_answers_hit_their_element() -> None:
    asked = {query.instruction: _clicked(query.answer) for query in QUERY_BUILDER.grounding_queries(screen_of())}
    elements = {element.name: element for element in list_dialog()}
    wanted = {
        "Choose the first row.": "Moon",
        "Choose the second row.": "Tiger",
        "Choose the third row.": "Chair",
        "Choose the last row.": "Chair",
        "Press OK.": "OK",
        "Press Cancel.": "Cancel",
    }
    assert asked.keys() == wanted.keys()
    for words, name in wanted.items():
        element, (x, y) = elements[name], asked[words]
        assert element.x <= x < element.x + element.w
        assert element.y <= y < element.y + element.h


def test_two_windows_are_told_apart_by_side() -> None:
    lower = (element("dialog", "Second", 80, 300, 300, 80), element("push button", "Yarn", 90, 330, 100, 36))
    upper = (element("dialog", "First", 90, 20, 300, 80), element("push button", "Kite", 95, 50, 100, 36))
    asked = {
        query.instruction: _clicked(query.answer)[1]
        for query in QUERY_BUILDER.grounding_queries(screen_of(elements=lower + upper))
    }
    assert asked["Press the first button above."] < 100 < 300 < asked["Press the last button below."]


def test_boxes_are_asked_for_instead_of_the_rows_they_stand_in() -> None:
    cells = [element("table cell", name, x, y, 60, 30) for y in (100, 132) for name, x in (("", 110), ("Word", 180))]
    queries = QUERY_BUILDER.grounding_queries(
        screen_of(elements=(element("dialog", "Tick", 100, 60, 250, 200), *cells))
    )
    assert {query.instruction for query in queries} == {
        "Tick the first box.",
        "Tick the second box.",
        "Tick the last box.",
    }


def test_texts_are_asked_for_only_where_an_instruction_names_one() -> None:
    by_place, named = screen_of(), screen_of(instruction="Choose Tiger, then press OK.")
    assert mentioned_texts([by_place]) == frozenset()
    assert mentioned_texts([by_place, named]) == {"Tiger"}
    reading = replace(QUERY_BUILDER, by_text=True)
    added = {q.instruction for q in reading.grounding_queries(named)} - {
        q.instruction for q in QUERY_BUILDER.grounding_queries(named)
    }
    assert added == {"Choose Moon.", "Choose Tiger.", "Choose Chair."}
    assert _thoughts(reading.unordered_queries(named)) == ["OK", "Tiger"]
    demonstrated = replace(named, action=Action(ActionType.CLICK, x=150, y=140), previous=None, step=0)
    (query,) = [reading.demonstration_query(demonstrated)]
    assert query is not None
    assert _thoughts([query]) == ["Tiger"]


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        (ActionType.DOUBLE_CLICK, "left_double"),
        (ActionType.TRIPLE_CLICK, "left_triple"),
        (ActionType.RIGHT_CLICK, "right_single"),
    ],
)
def test_clicks_of_other_kinds_go_to_an_element_too(kind: ActionType, verb: str) -> None:
    screen = screen_of(instruction="Choose Tiger.", action=Action(kind, x=150, y=140), previous=None, step=0)
    described = replace(QUERY_BUILDER, by_text=True, described=True).demonstration_query(screen)
    written = replace(QUERY_BUILDER, by_text=True).demonstration_query(screen)
    assert described is not None
    assert written is not None
    assert described.answer == f"Action: {verb}(start_box='Tiger')"
    assert written.answer.startswith(f"Thought: Tiger\nAction: {verb}(start_box='(")
    assert written.box is not None


def test_a_guided_query_gives_the_thought_and_asks_for_the_click() -> None:
    queries = QUERY_BUILDER.thought_given_queries(screen_of(), Random(0))
    assert {query.instruction for query in queries} == {"Choose the last row, then press OK."}
    assert {query.answer[: query.given] for query in queries} == {
        f"Thought: {name}" for name in ("first row", "second row", "third row", "last row", "OK", "Cancel")
    }
    assert all(query.answer[query.given :].startswith("\nAction: click(") for query in queries)
    assert {len(query.past_answers) for query in queries} == {0, 1}


def _thoughts(queries: list[Query]) -> list[str]:
    return sorted(query.answer.partition("\n")[0].removeprefix("Thought: ") for query in queries)


def test_said_parts_come_in_no_order() -> None:
    before = screen_of(step=0, action=Action(ActionType.CLICK, x=200, y=175), previous=None)
    for screen in (before, screen_of()):
        queries = QUERY_BUILDER.unordered_queries(screen)
        assert _thoughts(queries) == ["OK", "last row"]
        assert all(query.given == 0 for query in queries)


def test_a_part_that_lost_its_side_is_not_confused_with_the_other_windows() -> None:
    instruction = "Press the first button above, then the last button below."
    upper = (
        element("dialog", "First", 90, 20, 300, 80),
        *(element("push button", n, x, 50, 90, 36) for n, x in (("Kite", 95), ("Moon", 200))),
    )
    lower = (
        element("dialog", "Second", 80, 200, 300, 80),
        *(element("push button", n, x, 230, 90, 36) for n, x in (("Yarn", 90), ("Fork", 190))),
    )
    both = screen_of(
        instruction=instruction, elements=upper + lower, action=Action(ActionType.CLICK, x=100, y=60), previous=None
    )
    assert _thoughts(QUERY_BUILDER.unordered_queries(both)) == ["first button above", "last button below"]
    alone = QUERY_BUILDER.unordered_queries(
        screen_of(instruction=instruction, elements=lower, action=Action(ActionType.CLICK, x=230, y=250))
    )
    assert _thoughts(alone) == ["last button"]
    assert 190 <= _clicked(alone[0].answer)[0] < 280


def test_what_is_no_click_on_a_mentioned_element_keeps_its_place_in_the_order() -> None:
    field = element("text", "Wolf", 110, 100, 100, 30)
    form = (element("dialog", "Entry", 100, 60, 250, 200), field, element("push button", "OK", 227, 210, 115, 36))
    instruction = "Change the name to Yarn, then press OK."
    typed = screen_of(instruction=instruction, elements=form, action=Action(ActionType.TYPE, text="Yarn"))
    (query,) = QUERY_BUILDER.unordered_queries(typed)
    assert query.answer.endswith("type(content='Yarn')")
    marked = Action(ActionType.TRIPLE_CLICK, x=160, y=115)
    (query,) = QUERY_BUILDER.unordered_queries(screen_of(instruction=instruction, elements=form, action=marked))
    assert "left_triple" in query.answer
    pressed = Action(ActionType.CLICK, x=280, y=228)
    (query,) = QUERY_BUILDER.unordered_queries(screen_of(instruction=instruction, elements=form, action=pressed))
    assert _thoughts([query]) == ["OK"]


def test_unordered_clicks_are_of_the_demonstrated_type() -> None:
    opened = Action(ActionType.DOUBLE_CLICK, x=200, y=175)
    queries = QUERY_BUILDER.unordered_queries(screen_of(step=0, action=opened, previous=None))
    assert sorted(_thoughts(queries)) == ["OK", "last row"]
    assert all("left_double" in query.answer for query in queries)


def test_the_procedure_says_what_was_done_and_what_came_before() -> None:
    query = QUERY_BUILDER.demonstration_query(screen_of())
    assert query is not None
    assert query.instruction == "Choose the last row, then press OK."
    assert len(query.past_answers) == 1
    assert query.answer.startswith("Thought: OK\n")
    aimed = screen_of(step=0, action=Action(ActionType.CLICK, x=200, y=175), previous=None)
    first = QUERY_BUILDER.demonstration_query(aimed)
    assert first is not None
    assert first.answer.startswith("Thought: last row\n")
    x, y = _clicked(query.answer)
    assert 227 <= x < 342
    assert 210 <= y < 246
    assert QUERY_BUILDER.demonstration_query(screen_of(action=None)) is None


def test_translation_moves_pixels_labels_and_actions_together() -> None:
    pixels = np.full((400, 640, 3), 200, np.uint8)
    pixels[60:260, 100:350] = 246
    pixels[210:246, 227:342] = (10, 20, 30)
    for seed in range(20):
        moved, screen = shift_windows(pixels, screen_of(), Random(seed))
        ok = next(element for element in screen.elements if element.name == "OK")
        assert (moved[ok.y : ok.y + ok.h, ok.x : ok.x + ok.w] == (10, 20, 30)).all()
        assert (moved == (10, 20, 30)).all(axis=-1).sum() == 36 * 115
        assert screen.action is not None
        assert screen.action.x is not None
        assert ok.x <= screen.action.x < ok.x + ok.w


def test_a_policy_with_a_head_says_names_and_its_head_is_asked_for_their_boxes() -> None:
    builder = QueryBuilder(POINTS, step_px=8, described=True)
    screen = screen_of(previous_elements=list_dialog())
    query = builder.demonstration_query(screen)
    assert query is not None
    assert query.answer == "Action: click(start_box='OK')"
    assert query.past_answers == ("Action: click(start_box='last row')",)
    answers = {found.answer for found in builder.unordered_queries(screen)}
    assert answers == {"Action: click(start_box='last row')", "Action: click(start_box='OK')"}
    asked = {question.instruction: question.box for question in builder.head_questions(screen)}
    assert asked["click last row"] == pytest.approx((110 * 0.4, 164 * 0.4, 330 * 0.4, 194 * 0.4))
    (target,) = find_targets(query.answer)
    assert target.instruction in asked, "what the policy says is what its head was taught"
    gone = screen_of(previous=Action(ActionType.CLICK, x=240, y=0), previous_elements=list_dialog(y=-180))
    assert builder.unordered_queries(gone)[0].past_answers == ("Action: click(start_box='OK')",), "half off the screen"
    waited = screen_of(previous=Action(ActionType.WAIT), previous_elements=list_dialog())
    assert builder.unordered_queries(waited)[0].past_answers == ("Action: wait()",)
