"""galculator, a calculator.

Role: families about working out a number. Rule: the verdict is the number on the display of the calculator that the task
started. The menu is hidden so that it fits small screens.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import DONE, JsonDict, click, note_programs, place_window_randomly, step
from dart_envs.tasks.suite import Family, TaskDraft

TITLE = "galculator"
PROGRAM = "/usr/bin/galculator"
CONFIG = "/home/user/.config/galculator/galculator.conf"


def open_app(random: Random) -> list[JsonDict]:
    """The calculator somewhere on the screen, with the pointer out of its way: its buttons have tooltips."""
    return [
        step("write_file", path=CONFIG, content="show_menu_bar=false\n"),
        step("execute", command=["xdotool", "mousemove", "0", "0"]),
        step("launch", command=["galculator"], protected=True, sealed="code"),
        step("wait_window", window_name=TITLE),
        place_window_randomly(random, TITLE),
        step("wait_element", role="text"),
        note_programs(),
    ]


def buttons(keys: str) -> list[JsonDict]:
    """Click one button per character."""
    return [click("toggle button", name) for name in keys]


def display_shows(number: int) -> JsonDict:
    """Evaluator: the display shows this number."""
    return {
        "func": "contains_element",
        "result": {"type": "protected_elements", "executable": PROGRAM, "role": "text"},
        "expected": {"type": "rule", "rules": {"text": str(number)}},
    }


def calculate(random: Random) -> TaskDraft:
    """A sum, a difference or a product of two numbers. The near miss forgets to press =."""
    first, second = random.randrange(12, 99), random.randrange(3, 10)
    if first == 2 * second:  # without =, the display shows the second number, and that would be the difference
        first += 1
    sign, word, result = random.choice(
        (("+", "plus", first + second), ("-", "minus", first - second), ("*", "times", first * second))
    )
    keys = f"{first}{sign}{second}"
    return TaskDraft(
        instruction=f"Let the display of the calculator show the result of {first} {word} {second}.",
        config=open_app(random),
        evaluator=display_shows(result),
        oracle=[*buttons(f"{keys}="), DONE],
        near_miss=[*buttons(keys), DONE],
    )


FAMILIES = (Family("calculate", "galculator", "work out a sum, a difference or a product", 10, calculate),)
