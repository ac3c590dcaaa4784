"""The names that suites give to elements of a screen, and that supervised learning has none of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_envs import tasks
from dart_server.wire import A11yElement

WARMUP = Path(__file__).resolve().parents[4] / "dart_train" / "warmup"


def element(role: str, name: str, x: int, y: int, w: int = 20, h: int = 20) -> A11yElement:
    return A11yElement(role=role, name=name, x=x, y=y, w=w, h=h)


def test_elements_of_two_windows_are_named_by_their_place() -> None:
    names = tasks.load_suite("basics").screen_names
    assert names is not None
    screen = [
        element("dialog", "", 0, 0, 100, 100),
        element("push button", "A", 50, 10),
        element("push button", "B", 10, 10),
        element("push button", "OK", 10, 60),
        element("dialog", "", 0, 200, 100, 100),
        element("table cell", "one", 10, 210),
    ]
    found = {part.name: part.element.name for part in names.name_elements(screen) if not part.by_text}
    assert found == {
        "first button above": "B",
        "second button above": "A",
        "last button above": "A",
        "OK above": "OK",
        "first row below": "one",
        "last row below": "one",
    }


def test_fields_are_named_by_their_place_whatever_they_hold() -> None:
    names = tasks.load_suite("basics").screen_names
    assert names is not None
    form = [element("dialog", "", 0, 0, 100, 100), element("text", "", 10, 40), element("text", "Wolf", 10, 10)]
    found = [(part.name, part.sentence, part.element.y) for part in names.name_elements(form)]
    assert found == [
        ("first field", "Click the first field.", 10),
        ("last field", "Click the last field.", 40),
        ("second field", "Click the second field.", 40),
    ]


def test_elements_are_named_by_their_text_too_and_a_box_by_that_of_its_row() -> None:
    names = tasks.load_suite("basics").screen_names
    assert names is not None
    buttons = [
        element("dialog", "", 0, 0, 100, 100),
        element("push button", "Sun", 10, 10),
        element("push button", "OK", 10, 60),
    ]
    boxes = [
        element("dialog", "", 0, 0, 100, 100),
        *(element("table cell", "", 0, y) for y in (10, 40)),
        *(element("table cell", word, 30, y) for word, y in (("Wolf", 40), ("Moon", 10))),
    ]
    found = [
        [
            (part.name, part.sentence, part.element.x, part.element.y)
            for part in names.name_elements(screen)
            if part.by_text
        ]
        for screen in (buttons, boxes)
    ]
    assert found == [[("Sun", "Press Sun.", 10, 10)], [("Moon", "Tick Moon.", 0, 10), ("Wolf", "Tick Wolf.", 0, 40)]]


def test_files_are_named_by_their_text_alone_and_the_other_cells_of_their_list_are_not_named() -> None:
    names = tasks.load_suite("basics").screen_names
    assert names is not None
    files = [
        element("frame", "Work - Thunar", 0, 0, 400, 200),
        *(
            cell
            for word, y in (("Wolf", 70), ("Moon", 40))
            for cell in (
                element("table cell", "", 10, y, 100, 30),
                element("table cell", "", 10, y, 26, 30),
                element("table cell", word, 36, y, 81, 30),
                element("table cell", "40 bytes", 117, y, 98, 30),
            )
        ),
    ]
    found = [
        (part.name, part.sentence, part.element.x, part.element.y, part.by_text) for part in names.name_elements(files)
    ]
    assert found == [("Moon", "Open Moon.", 36, 40, True), ("Wolf", "Open Wolf.", 36, 70, True)]


@pytest.mark.parametrize(
    ("name", "instruction", "mentioned"),
    [
        ("first button above", "Press the first button above.", True),
        ("first button", "Press the first button above.", False),
        ("first button", "Press the first button, then press OK.", True),
        ("row", "Choose the first arrow.", False),
    ],
)
def test_an_instruction_means_a_name_or_a_longer_one(name: str, instruction: str, mentioned: bool) -> None:
    names = tasks.load_suite("basics").screen_names
    assert names is not None
    assert names.is_mentioned(name, instruction) is mentioned


def test_the_warm_start_knows_no_suite() -> None:
    words = ("basics", "press_", "choose_", "tick_", "above", "below", '"OK"')
    text = {path.name: path.read_text(encoding="utf-8") for path in WARMUP.glob("*.py")}
    assert not [(name, word) for name, source in text.items() for word in words if word in source]
