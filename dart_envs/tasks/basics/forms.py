"""GTK dialogs (zenity) that need the keyboard, a slider or a calendar.

Role: families about typing into fields and setting values. Rule: as for `dialogs`.
"""

from __future__ import annotations

from datetime import date
from random import Random

from dart_envs.tasks.basics.parts import (
    DONE,
    answer_is,
    captured_dialog,
    click,
    click_button,
    key,
    place_window_randomly,
    type_text,
)
from dart_envs.tasks.basics.words import sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft

YEAR = 2025
MONTHS = ("January", "February", "March", "April", "May", "June")
LAST_SAFE_DAY = 28


def enter_text(random: Random) -> TaskDraft:
    """An entry that already holds a word: replace it."""
    old, new = sample_nouns(random, 2)
    arguments = ["--entry", "--text", "Name:", "--entry-text", old]
    return TaskDraft(
        instruction=f"Change the name to {new}, then press OK.",
        config=[captured_dialog("answer", "Entry", arguments), place_window_randomly(random, "Entry")],
        evaluator=answer_is(new, window_name="Entry"),
        oracle=[{"do": "triple_click", "target": {"role": "text"}}, type_text(new), click_button("OK"), DONE],
        near_miss=[{"do": "click", "target": {"role": "text"}}, key("end"), type_text(new), click_button("OK"), DONE],
    )


def fill_form(random: Random) -> TaskDraft:
    """A form with two fields: fill both."""
    first, second = sample_nouns(random, 2)
    arguments = ["--forms", "--text", "Fill in", "--add-entry", "One", "--add-entry", "Two"]
    return TaskDraft(
        instruction=f"Write {first} in field One and {second} in field Two, then press OK.",
        config=[captured_dialog("answer", "Form", arguments), place_window_randomly(random, "Form")],
        evaluator=answer_is(f"{first}|{second}", window_name="Form"),
        oracle=[*fill(first, second), click_button("OK"), DONE],
        near_miss=[*fill(second, first), click_button("OK"), DONE],
    )


def fill(one: str, two: str) -> list[dict[str, object]]:
    """Fill the two fields; the accessibility tree lists the lower one first."""
    return [
        {"do": "click", "target": {"role": "text", "nth": -1}},
        type_text(one),
        {"do": "click", "target": {"role": "text", "nth": 0}},
        type_text(two),
    ]


def set_scale(random: Random) -> TaskDraft:
    """A slider: set it to a value, a few steps away."""
    start = random.randrange(20, 80)
    goal = start + random.choice((-5, -4, -3, -2, 2, 3, 4, 5))
    arguments = ["--scale", "--text", "How many?", "--value", str(start), "--min-value", "0", "--max-value", "100"]
    turn = "right" if goal > start else "left"
    presses = [key(turn) for _ in range(abs(goal - start))]
    return TaskDraft(
        instruction=f"Set the slider to {goal}, then press OK.",
        config=[captured_dialog("answer", "Slider", arguments), place_window_randomly(random, "Slider")],
        evaluator=answer_is(str(goal), window_name="Slider"),
        oracle=[*presses, click_button("OK"), DONE],
        near_miss=[*presses[1:], click_button("OK"), DONE],
    )


def pick_day(random: Random) -> TaskDraft:
    """A calendar: choose a day of the month that is shown. The near miss is a day beside it."""
    month = random.randrange(1, len(MONTHS) + 1)
    start, goal = random.sample(range(2, LAST_SAFE_DAY), 2)
    arguments = ["--calendar", "--text", "Which day?", "--date-format", "%Y-%m-%d"]
    arguments += ["--day", str(start), "--month", str(month), "--year", str(YEAR)]
    return TaskDraft(
        instruction=f"Choose day {goal} of {MONTHS[month - 1]}, then press OK.",
        config=[captured_dialog("answer", "Calendar", arguments), place_window_randomly(random, "Calendar")],
        evaluator=answer_is(f"{YEAR}-{month:02d}-{goal:02d}", window_name="Calendar"),
        oracle=[day_cell(month, goal), click_button("OK"), DONE],
        near_miss=[day_cell(month, goal + 1), click_button("OK"), DONE],
    )


ROWS_TOP, ROWS_BOTTOM = 0.283, 0.973
"""Upper and lower edge of the six rows of days, as shares of the calendar's height."""
WEEK_ROWS, WEEK_DAYS = 6, 7


def day_cell(month: int, day: int) -> dict[str, object]:
    """Click a day.

    GTK shows six weeks from Sunday on; the month's first day is never in the upper left corner but a row below.
    """
    before = (date(YEAR, month, 1).weekday() + 1) % WEEK_DAYS or WEEK_DAYS
    row, column = divmod(before + day - 1, WEEK_DAYS)
    across = (column + 0.5) / WEEK_DAYS
    down = ROWS_TOP + (ROWS_BOTTOM - ROWS_TOP) * (row + 0.5) / WEEK_ROWS
    return click("calendar", "", at=[round(across, 4), round(down, 4)])


FAMILIES = (
    Family("enter_text", "zenity", "replace the word in an entry", 6, enter_text, publish_setup=False),
    Family("fill_form", "zenity", "fill the two fields of a form", 8, fill_form, publish_setup=False),
    Family("set_scale", "zenity", "set a slider to a value", 10, set_scale, publish_setup=False),
    Family("pick_day", "zenity", "choose a day in a calendar", 5, pick_day, publish_setup=False, held_out=True),
)
