"""GTK dialogs (zenity) whose target is told by its position: the demo's families, small enough for a policy that learns in minutes.

Role: families about the first, second, … last button, row or check box. Rule: how many there are, what they say and where the window is are
drawn anew, so that only looking at the screen tells where to click; the answer is kept where only root can read and write it.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.dialogs import another_word, box_list_arguments, buttons_dialog, click_row_box
from dart_envs.tasks.basics.parts import (
    answer_is,
    answers_are,
    captured_dialog,
    click,
    click_button,
    place_window_randomly,
)
from dart_envs.tasks.basics.words import sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft

ORDINALS = ("first", "second", "third", "fourth", "fifth")
MIN_ROWS, MAX_ROWS = 3, 5
ROW_HEIGHT_PX, HEADER_PX, LIST_MARGIN_PX = 32, 30, 98
LIST_WIDTH_PX = 240
SPLIT_RANGE = (0.42, 0.58)
"""Where two windows part the screen's height: each fits its part, and neither has a usual place."""


def draw_target(random: Random, min_words: int, max_words: int) -> tuple[list[str], str, str, str]:
    """Words for some things, which of them is meant, its ordinal in words, and another one."""
    words = sample_nouns(random, random.randint(min_words, max_words))
    index = random.randrange(len(words))
    is_last = index == len(words) - 1
    say_last = is_last and (index == MAX_ROWS - 1 or random.random() < 0.5)
    ordinal = "last" if say_last else ORDINALS[index]
    return words, words[index], ordinal, another_word(random, words, words[index])


def list_size(rows: int, *, header: bool) -> list[str]:
    """Size of a list that shows all its rows."""
    height = LIST_MARGIN_PX + ROW_HEIGHT_PX * rows + (HEADER_PX if header else 0)
    return ["--width", str(LIST_WIDTH_PX), "--height", str(height)]


def press_nth(random: Random) -> TaskDraft:
    """One dialog, three or four buttons."""
    words, target, ordinal, wrong = draw_target(random, 3, 4)
    return TaskDraft(
        instruction=f"Press the {ordinal} button.",
        config=[buttons_dialog("answer", "Question", words), place_window_randomly(random, "Question")],
        evaluator=answer_is(target, window_name="Question"),
        oracle=[click_button(target)],
        near_miss=[click_button(wrong)],
    )


def press_two(random: Random) -> TaskDraft:
    """Two dialogs, one above the other, with three buttons each."""
    above, first, first_ordinal, _ = draw_target(random, 3, 3)
    below, second, second_ordinal, wrong = draw_target(random, 3, 3)
    split = round(random.uniform(*SPLIT_RANGE), 3)
    moves = [click_button(first, window="First"), click_button(second, window="Second")]
    near_misses = [moves[::-1], [moves[0], click_button(wrong, window="Second")]]
    return TaskDraft(
        instruction=f"Press the {first_ordinal} button above, then the {second_ordinal} button below.",
        config=[
            buttons_dialog("first", "First", above),
            buttons_dialog("second", "Second", below),
            place_window_randomly(random, "First", area=(0.0, 0.0, 1.0, split)),
            place_window_randomly(random, "Second", area=(0.0, split, 1.0, 1.0)),
        ],
        evaluator=answers_are(first=("First", first), second=("Second", second)),
        oracle=moves,
        near_miss=random.choice(near_misses),
    )


def choose_nth(random: Random) -> TaskDraft:
    """A list of three to five rows: choose a row, then OK. Two clicks on the row, one after the other, are not an answer."""
    words, target, ordinal, wrong = draw_target(random, MIN_ROWS, MAX_ROWS)
    size = list_size(len(words), header=False)
    arguments = ["--list", "--text", "Which one?", "--hide-header", "--column", "Name", *size, *words]
    return TaskDraft(
        instruction=f"Choose the {ordinal} row, then press OK.",
        config=[captured_dialog("answer", "List", arguments), place_window_randomly(random, "List")],
        evaluator=answer_is(target, window_name="List"),
        oracle=[click("table cell", target), click_button("OK")],
        near_miss=random.choice(([click("table cell", wrong), click_button("OK")], [click("table cell", target)] * 2)),
    )


def tick_nth(random: Random) -> TaskDraft:
    """A list of three to five check boxes: tick one, then OK."""
    words, target, ordinal, wrong = draw_target(random, MIN_ROWS, MAX_ROWS)
    arguments = box_list_arguments("checklist", words, list_size(len(words), header=True))
    return TaskDraft(
        instruction=f"Tick the {ordinal} box, then press OK.",
        config=[captured_dialog("answer", "Tick", arguments), place_window_randomly(random, "Tick")],
        evaluator=answer_is(target, window_name="Tick"),
        oracle=[click_row_box(words, target), click_button("OK")],
        near_miss=[click_row_box(words, wrong), click_button("OK")],
    )


FAMILIES = (
    Family("press_nth", "zenity", "press the n-th button", 1, press_nth, publish_setup=False, demo=True),
    Family("press_two", "zenity", "press the n-th button in two dialogs", 2, press_two, publish_setup=False, demo=True),
    Family("choose_nth", "zenity", "choose the n-th row, then OK", 2, choose_nth, publish_setup=False, demo=True),
    Family("tick_nth", "zenity", "tick the n-th box, then OK", 2, tick_nth, publish_setup=False, demo=True),
)
