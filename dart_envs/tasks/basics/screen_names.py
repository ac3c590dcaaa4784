"""How the instructions of `basics` call the elements of a screen: by their place in their window, or by their text.

Role: names buttons, rows, boxes and fields by their place ("second row", "last button above"), the first three by their text, too
("Apple"), files by their text alone, and the buttons that commit or cancel by their label. Rule: of several windows the upper one is
"above" and the lowest one "below"; a box has the text of its row. Non-goals: generating tasks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dart_envs.tasks.screen_names import WINDOW_ROLES, NamedElement, lies_within
from dart_server.wire import A11yElement

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
VERBS = {"button": "Press", "row": "Choose", "box": "Tick", "field": "Click", "file": "Open"}
DIALOG_BUTTONS = frozenset({"OK", "Cancel", "Close", "Apply", "Save", "Open", "Yes", "No"})


class BasicsScreenNames:
    """The names that the instructions of `basics` use."""

    def name_elements(self, elements: Sequence[A11yElement]) -> list[NamedElement]:
        """Name the elements of a screen; an element may have several names.

        Args:
            elements: The accessibility tree.

        Returns:
            The named elements.
        """
        windows = sorted((e for e in elements if e.role in WINDOW_ROLES), key=lambda e: e.y)
        sides = [""] if len(windows) < 2 else [" above", *([""] * (len(windows) - 2)), " below"]
        parts: list[NamedElement] = []
        for window, side in zip(windows, sides, strict=False):
            inside = [e for e in elements if e is not window and lies_within(e, window)]
            for noun, members in _group_elements(inside):
                for index, member in enumerate(members):
                    for name in _places(index, len(members)) if noun != "file" else []:
                        parts.append(
                            NamedElement(f"{name} {noun}{side}", f"{VERBS[noun]} the {name} {noun}{side}.", member)
                        )
                    if noun != "field" and (text := _text_of(member, inside)):
                        parts.append(NamedElement(text, f"{VERBS[noun]} {text}.", member, by_text=True))
            for element in inside:
                if element.role == "push button" and element.name in DIALOG_BUTTONS:
                    parts.append(NamedElement(f"{element.name}{side}", f"Press {element.name}{side}.", element))
        return parts

    def is_mentioned(self, name: str, instruction: str) -> bool:
        """Say whether an instruction means the element of a name: "first button" is not meant by "the first button above".

        Args:
            name: The name.
            instruction: The instruction.

        Returns:
            True where it does.
        """
        return re.search(rf"\b{re.escape(name)}\b(?! (?:above|below)\b)", instruction) is not None


def _places(index: int, count: int) -> list[str]:
    """The words for one place of several, in alphabetical order."""
    names = {ORDINALS[index]} if index < len(ORDINALS) else set()
    if index == count - 1:
        names.add("last")
    return sorted(names)


def _group_elements(inside: Sequence[A11yElement]) -> list[tuple[str, list[A11yElement]]]:
    """Buttons from left to right, rows, boxes, fields and files from top to bottom.

    The list of a file manager has a cell without a name around icon and text of each file; its other cells are neither rows nor boxes.
    """
    buttons = [e for e in inside if e.role == "push button" and e.name not in DIALOG_BUTTONS]
    cells = [e for e in inside if e.role == "table cell"]
    files = [cell for cell in cells if cell.name and any(_begins_inside(cell, other) for other in cells)]
    if files:
        cells = []
    boxes = [e for e in cells if not e.name] + [e for e in inside if e.role == "check box"]
    rows = [] if boxes else cells
    groups = [
        ("button", sorted(buttons, key=lambda e: (e.y // 20, e.x))),
        ("box", sorted(boxes, key=lambda e: e.y)),
        ("row", sorted(rows, key=lambda e: e.y)),
        ("field", sorted((e for e in inside if e.role == "text"), key=lambda e: e.y)),
        ("file", sorted(files, key=lambda e: e.y)),
    ]
    return [(noun, members) for noun, members in groups if members]


def _begins_inside(cell: A11yElement, outer: A11yElement) -> bool:
    """Whether a cell begins inside of an unnamed one in its row; its text may be wider."""
    return not outer.name and cell.y == outer.y and outer.x < cell.x < outer.x + outer.w


def _text_of(member: A11yElement, inside: Sequence[A11yElement]) -> str:
    """The text of an element; of a box without one, that of the nearest cell to its right in its row."""
    if member.name:
        return member.name
    right_of_it = [e for e in inside if e.role == "table cell" and e.name and e.x > member.x and e.y == member.y]
    return min(right_of_it, key=lambda e: e.x).name if right_of_it else ""
