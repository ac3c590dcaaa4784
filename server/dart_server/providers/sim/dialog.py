"""Simulation: one dialog on a pretended screen, as a file declares it: what it shows, how it reacts, and its answer.

Role: `read_dialog` parses the declaration, `Dialog` is the state, with drawing and accessibility tree. Rule: the file says everything; a
dialog closes after so many presses of its buttons and reacts no more. Non-goals: programs, several windows.

    {"title": "Question", "box": [40, 30, 420, 130], "presses": 2,
     "items": [{"role": "push button", "name": "Apple", "box": [60, 70, 150, 110]}, ...]}

Boxes are (left, top, right, bottom) in pixels, the last two exclusive.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from PIL import ImageDraw

Box = tuple[int, int, int, int]

DIALOG_FILE = "/sim/dialog.json"
"""Writing this file opens the dialog that it declares."""
ANSWER_FILE = "/sim/answer"
"""Has the answer of the dialog, which is empty while it is open."""
BUTTON, CHECK_BOX, ROW = "push button", "check box", "table cell"
TITLE_PX = 20
_INK, _PAPER, _TITLE, _MARKED = (0, 0, 0), (252, 252, 252), (90, 110, 150), (70, 130, 220)
_FACES = {BUTTON: (214, 214, 214), CHECK_BOX: _PAPER, ROW: (240, 240, 240)}


class InvalidDialogError(ValueError):
    """A declaration that is none; one sentence."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something in a dialog that reacts to clicks: a button, a check box, or a row of a list."""

    role: str
    name: str
    box: Box


@dataclass(slots=True)
class Dialog:
    """A dialog. `presses`: of its buttons until it closes. `marked`: ticked boxes and the chosen row. `pressed`: buttons in their order."""

    title: str
    box: Box
    items: tuple[Item, ...]
    presses: int
    marked: set[str] = field(default_factory=set)
    pressed: list[str] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether it is shown and reacts."""
        return len(self.pressed) < self.presses

    @property
    def answer(self) -> str:
        """What is marked, as listed, then the buttons as pressed; empty while it is open."""
        if self.open:
            return ""
        return " ".join([*(item.name for item in self.items if item.name in self.marked), *self.pressed])

    def boxes(self) -> dict[str, Box]:
        """The box of each item that can be clicked."""
        return {item.name: item.box for item in self.items} if self.open else {}

    def click(self, name: str) -> None:
        """React to a click on an item."""
        item = next(item for item in self.items if item.name == name)
        if item.role == BUTTON:
            self.pressed.append(name)
        elif item.role == CHECK_BOX:
            self.marked ^= {name}
        else:
            self.marked = {name}

    def draw(self, pen: ImageDraw.ImageDraw) -> None:
        """Draw it where it is open; buttons that were pressed keep another colour."""
        if not self.open:
            return
        left, top, right, low = self.box
        pen.rectangle((left, top, right - 1, low - 1), fill=_PAPER, outline=_INK)
        pen.rectangle((left, top, right - 1, top + TITLE_PX), fill=_TITLE, outline=_INK)
        pen.text((left + 6, top + 4), self.title, fill=_PAPER)
        for item in self.items:
            x0, y0, x1, y1 = item.box
            marked = item.name in self.marked or item.name in self.pressed
            face = _MARKED if marked else _FACES[item.role]
            middle = (y0 + y1) // 2 - 6
            if item.role == CHECK_BOX:
                side = y1 - y0 - 8
                pen.rectangle((x0 + 4, y0 + 4, x0 + 4 + side, y1 - 4), fill=face, outline=_INK)
                pen.text((x0 + side + 12, middle), item.name, fill=_INK)
            else:
                pen.rectangle((x0, y0, x1 - 1, y1 - 1), fill=face, outline=_INK)
                pen.text((x0 + 6, middle), item.name, fill=_INK)

    def elements(self) -> list[dict[str, Any]]:
        """Its accessibility tree, flat; empty once it is closed."""
        if not self.open:
            return []
        states = {CHECK_BOX: "checked", ROW: "selected"}
        found = [_element("dialog", self.title, self.box, [])]
        for item in self.items:
            mark = [states[item.role]] if item.role in states and item.name in self.marked else []
            found.append(_element(item.role, item.name, item.box, mark))
        return [{**element, "window": self.title} for element in found]


def read_dialog(content: bytes) -> Dialog:
    """The dialog of a declaration. Raises InvalidDialogError."""
    try:
        data = json.loads(content)
        items = tuple(Item(str(each["role"]), str(each["name"]), _box(each["box"])) for each in data["items"])
        dialog = Dialog(str(data["title"]), _box(data["box"]), items, int(data["presses"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidDialogError(f"{DIALOG_FILE} declares no dialog: {error!r}") from error
    if len({item.name for item in items}) < len(items) or any(item.role not in _FACES for item in items):
        raise InvalidDialogError(
            f"{DIALOG_FILE}: items need names of their own and one of the roles {', '.join(_FACES)}"
        )
    return dialog


def _box(value: Any) -> Box:
    left, top, right, bottom = (int(edge) for edge in value)
    return left, top, right, bottom


def _element(role: str, name: str, box: Box, states: list[str]) -> dict[str, Any]:
    left, top, right, bottom = box
    place = {"x": left, "y": top, "w": right - left, "h": bottom - top}
    return {"role": role, "name": name, "text": "", "states": ["showing", "visible", *states], **place, "app": "sim"}
