"""GTK dialogs (zenity) in which the target is named by its place: the demo's families.

Role: families about counting buttons and rows, small enough for a policy that learns to see in minutes. Rule: words and their number are
drawn anew, so the place is the only clue; the answer is what the dialog itself printed, kept where only root can read and write it.
Non-goals: reading (`dialogs`).
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.dialogs import LIST_SIZE, LOWER, UPPER, box_of, buttons_dialog, marked_list, other_than
from dart_envs.tasks.basics.parts import all_of, answer_is, captured_dialog, click, press, random_place
from dart_envs.tasks.basics.words import pick
from dart_envs.tasks.suite import Draft, Family

ORDINALS = ("first", "second", "third", "fourth")
LAST = "last"


def nth(random: Random, words: list[str]) -> tuple[str, str]:
    """A word drawn by its place: the name of the place, and the word there."""
    index = random.randrange(len(words))
    is_last = index == len(words) - 1
    return (LAST if is_last else ORDINALS[index]), words[index]


def press_nth(random: Random) -> Draft:
    """One dialog with three to five buttons."""
    words = pick(random, random.choice((3, 4, 5)))
    place, target = nth(random, words)
    return Draft(
        instruction=f"Press the {place} button.",
        config=[buttons_dialog("answer", "Question", words), random_place(random, "Question")],
        evaluator=answer_is(target, window_name="Question"),
        oracle=[press(target)],
        near_miss=[press(other_than(random, words, target))],
    )


def press_nth_twice(random: Random) -> Draft:
    """Two dialogs, one above the other, with three buttons each."""
    words = pick(random, 6)
    above, below = words[:3], words[3:]
    (place, first), (other_place, second) = nth(random, above), nth(random, below)
    return Draft(
        instruction=f"Press the {place} button above, then the {other_place} button below.",
        config=[
            buttons_dialog("above", "Above", above),
            buttons_dialog("below", "Below", below),
            random_place(random, "Above", area=UPPER),
            random_place(random, "Below", area=LOWER),
        ],
        evaluator=all_of(
            answer_is(first, name="above", window_name="Above"), answer_is(second, name="below", window_name="Below")
        ),
        oracle=[press(first), press(second)],
        near_miss=[press(first), press(other_than(random, below, second))],
    )


def choose_nth(random: Random) -> Draft:
    """A list with three to five rows: choose one, then OK."""
    words = pick(random, random.choice((3, 4, 5)))
    place, target = nth(random, words)
    arguments = ["--list", "--text", "Which one?", "--hide-header", "--column", "Name", *LIST_SIZE, *words]
    return Draft(
        instruction=f"Choose the {place} row, then press OK.",
        config=[captured_dialog("answer", "List", arguments), random_place(random, "List")],
        evaluator=answer_is(target, window_name="List"),
        oracle=[click("table cell", target), press("OK")],
        near_miss=[click("table cell", other_than(random, words, target)), press("OK")],
    )


def tick_nth(random: Random) -> Draft:
    """A list with three or four check boxes: tick one, then OK."""
    words = pick(random, random.choice((3, 4)))
    place, target = nth(random, words)
    return Draft(
        instruction=f"Tick the {place} box, then press OK.",
        config=[captured_dialog("answer", "Tick", marked_list("checklist", words)), random_place(random, "Tick")],
        evaluator=answer_is(target, window_name="Tick"),
        oracle=[box_of(words, target), press("OK")],
        near_miss=[box_of(words, target), press("Cancel")],
    )


FAMILIES = (
    Family(
        "press_nth",
        "zenity",
        "press a button named by its place",
        1,
        press_nth,
        publish_setup=False,
        demo=True,
        variations=4000,
    ),
    Family(
        "press_nth_twice",
        "zenity",
        "press a button named by its place in each of two dialogs",
        2,
        press_nth_twice,
        publish_setup=False,
        demo=True,
        variations=4000,
    ),
    Family(
        "choose_nth",
        "zenity",
        "choose a row named by its place, then OK",
        2,
        choose_nth,
        publish_setup=False,
        demo=True,
        variations=4000,
    ),
    Family(
        "tick_nth",
        "zenity",
        "tick a box named by its place, then OK",
        2,
        tick_nth,
        publish_setup=False,
        demo=True,
        variations=4000,
    ),
)
