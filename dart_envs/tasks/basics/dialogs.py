"""GTK dialogs (zenity) that are answered with the mouse.

Four of them are small enough for a policy that learns in minutes.

Role: families about buttons, lists, check boxes and radio buttons. Rule: what is shown gives no hint of what is asked
for; order and place are drawn anew; the answer is what the dialog itself printed, kept where only root can read and
write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dart_envs.tasks.basics.parts import (
    JsonDict,
    answer_is,
    answers_are,
    captured_dialog,
    click,
    click_button,
    place_window_randomly,
)
from dart_envs.tasks.basics.words import sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft

ROWS = 4
LIST_SIZE = ("--width", "240", "--height", "265")
UPPER, LOWER = (0.0, 0.0, 1.0, 0.5), (0.0, 0.5, 1.0, 1.0)


def buttons_dialog(name: str, title: str, words: list[str]) -> JsonDict:
    """A question with one button per word and nothing else."""
    extra = [part for word in words for part in ("--extra-button", word)]
    return captured_dialog(name, title, ["--question", "--switch", "--text", "Which one?", *extra])


def another_word(random: Random, words: list[str], target: str) -> str:
    """One of the words that is not the target."""
    return random.choice([word for word in words if word != target])


def press_button(random: Random) -> TaskDraft:
    """One dialog, four buttons."""
    words = sample_nouns(random, 4)
    target = random.choice(words)
    return TaskDraft(
        instruction=f"Press {target}.",
        config=[buttons_dialog("answer", "Question", words), place_window_randomly(random, "Question")],
        evaluator=answer_is(target, window_name="Question"),
        oracle=[click_button(target)],
        near_miss=[click_button(another_word(random, words, target))],
    )


def press_both(random: Random) -> TaskDraft:
    """Two dialogs with three buttons each."""
    words = sample_nouns(random, 6)
    first, second = words[:3], words[3:]
    targets = [random.choice(first), random.choice(second)]
    moves = [click_button(target) for target in targets]
    near_misses = [moves[::-1], [moves[0], click_button(another_word(random, second, targets[1]))]]
    places = [UPPER, LOWER]
    random.shuffle(places)
    return TaskDraft(
        instruction=f"Press {targets[0]}, then {targets[1]}.",
        config=[
            buttons_dialog("first", "First", first),
            buttons_dialog("second", "Second", second),
            place_window_randomly(random, "First", area=places[0]),
            place_window_randomly(random, "Second", area=places[1]),
        ],
        evaluator=answers_are(first=("First", targets[0]), second=("Second", targets[1])),
        oracle=moves,
        near_miss=random.choice(near_misses),
    )


def choose_row(random: Random) -> TaskDraft:
    """A list: choose a row, then OK."""
    words = sample_nouns(random, ROWS)
    target = random.choice(words)
    arguments = ["--list", "--text", "Which one?", "--hide-header", "--column", "Name", *LIST_SIZE, *words]
    return TaskDraft(
        instruction=f"Choose {target}, then press OK.",
        config=[captured_dialog("answer", "List", arguments), place_window_randomly(random, "List")],
        evaluator=answer_is(target, window_name="List"),
        oracle=[click("table cell", target), click_button("OK")],
        near_miss=[click("table cell", another_word(random, words, target)), click_button("OK")],
    )


def box_list_arguments(kind: str, words: list[str], size: Sequence[str] = LIST_SIZE) -> list[str]:
    """Arguments of a list with one box per row."""
    rows = [part for word in words for part in ("FALSE", word)]
    columns = ["--column", "Mark", "--column", "Name"]
    return ["--list", f"--{kind}", "--text", "Which one?", *columns, *size, *rows]


def tick_box(random: Random) -> TaskDraft:
    """A list with check boxes: tick one, then OK."""
    words = sample_nouns(random, ROWS)
    target = random.choice(words)
    return TaskDraft(
        instruction=f"Tick {target}, then press OK.",
        config=[
            captured_dialog("answer", "Tick", box_list_arguments("checklist", words)),
            place_window_randomly(random, "Tick"),
        ],
        evaluator=answer_is(target, window_name="Tick"),
        oracle=[click_row_box(words, target), click_button("OK")],
        near_miss=[click_row_box(words, target), click_button("Cancel")],
    )


def click_row_box(words: list[str], target: str) -> JsonDict:
    """Click the box of a row: the nameless cell in front of its name."""
    return click("table cell", "", nth=words.index(target))


def tick_two(random: Random) -> TaskDraft:
    """A list with check boxes: tick two, then OK."""
    words = sample_nouns(random, ROWS)
    first, second = random.sample(words, 2)
    expected = "|".join(word for word in words if word in (first, second))
    return TaskDraft(
        instruction=f"Tick {first} and {second}, then press OK.",
        config=[
            captured_dialog("answer", "Tick", box_list_arguments("checklist", words)),
            place_window_randomly(random, "Tick"),
        ],
        evaluator=answer_is(expected, window_name="Tick"),
        oracle=[click_row_box(words, first), click_row_box(words, second), click_button("OK")],
        near_miss=[click_row_box(words, first), click_button("OK")],
    )


def pick_radio(random: Random) -> TaskDraft:
    """A list with radio buttons: pick one, then OK."""
    words = sample_nouns(random, ROWS)
    target = random.choice(words)
    return TaskDraft(
        instruction=f"Mark {target}, then press OK.",
        config=[
            captured_dialog("answer", "Radio", box_list_arguments("radiolist", words)),
            place_window_randomly(random, "Radio"),
        ],
        evaluator=answer_is(target, window_name="Radio"),
        oracle=[click_row_box(words, target), click_button("OK")],
        near_miss=[click_row_box(words, another_word(random, words, target)), click_button("OK")],
    )


FAMILIES = (
    Family("press_button", "zenity", "press the named one of four buttons", 1, press_button, publish_setup=False),
    Family(
        "press_both",
        "zenity",
        "press the named button in each of two dialogs",
        2,
        press_both,
        publish_setup=False,
    ),
    Family("choose_row", "zenity", "choose the named row of a list, then OK", 2, choose_row, publish_setup=False),
    Family("tick_box", "zenity", "tick the named check box, then OK", 2, tick_box, publish_setup=False),
    Family("tick_two", "zenity", "tick two named check boxes, then OK", 3, tick_two, publish_setup=False),
    Family("pick_radio", "zenity", "mark the named radio button, then OK", 2, pick_radio, publish_setup=False),
)
