"""How people call elements: kinds, names, labels, and what a control does.

Role: `KINDS`, `spoken_name`, `FUNCTIONS`, `is_text`. Rule: two elements with the same kind and the same spoken name are the same to a
reader, however their roles are called. Non-goals: sentences (`dart_agent.grounding.desktop_ground.queries`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dart_agent.grounding.desktop_ground.screen import ScreenElement

KINDS: Mapping[str, str] = {
    "push-button": "button",
    "toggle-button": "button",
    "button": "button",
    "push-button-menu": "button",
    "check-box": "check box",
    "radio-button": "radio button",
    "menu": "menu",
    "menu-item": "menu item",
    "check-menu-item": "menu item",
    "radio-menu-item": "menu item",
    "text": "text field",
    "entry": "text field",
    "password-text": "text field",
    "spin-button": "number field",
    "combo-box": "drop-down list",
    "slider": "slider",
    "page-tab": "tab",
    "table-cell": "list entry",
    "list-item": "list entry",
    "tree-item": "list entry",
    "icon": "icon",
    "table-column-header": "column header",
    "column-header": "column header",
    "link": "link",
    "terminal": "terminal",
    "label": "label",
    "static": "label",
}
"""What a role is to a reader; other roles are not asked about."""
NOT_ASKED = frozenset({"label"})
"""Kinds that only help to describe others."""
NAMELESS = frozenset({"text field", "number field", "drop-down list", "slider"})
"""Kinds that are known by a label beside them, when they have no name."""
SHOWING_VALUE = frozenset({"drop-down list"})
"""Kinds whose name is the value that they show."""
LONGEST_NAME = 48
TEXT_PX_PER_CHARACTER = 4.5
"""Width of a character of the smallest interface font: a box that is narrower than its name shows a picture instead."""
_MNEMONIC = re.compile(r"_(?=\w)")
_SPACE = re.compile(r"\s+")

FUNCTIONS: Mapping[str, str] = {
    "undo": "take back the last change",
    "redo": "do again what was taken back",
    "save": "store the document in its file",
    "save as": "store the document under another name",
    "open": "load a file",
    "new": "begin something new and empty",
    "new tab": "add one more tab",
    "new window": "add one more window",
    "copy": "put what is selected on the clipboard and leave it where it is",
    "cut": "move what is selected to the clipboard",
    "paste": "insert what is on the clipboard",
    "delete": "remove what is selected",
    "select all": "mark everything",
    "find": "look for a text",
    "find and replace": "look for a text and put another in its place",
    "print": "put the document on paper",
    "quit": "end the program",
    "close": "close this document or window",
    "cancel": "leave without keeping any change",
    "ok": "confirm and go on",
    "apply": "put the changes into effect",
    "help": "get assistance with the program",
    "about": "learn which version of the program this is",
    "preferences": "change the settings of the program",
    "back": "return to what was shown before",
    "forward": "go on to what was shown after this",
    "home": "go to the own folder",
    "up": "go to the folder that holds this one",
    "reload": "load what is shown again",
    "zoom in": "show everything larger",
    "zoom out": "show everything smaller",
    "fullscreen": "fill the whole screen",
    "bold": "make the letters heavier",
    "italic": "make the letters slanted",
    "underline": "draw a line below the letters",
    "play": "begin to play",
    "stop": "end the playing",
    "=": "compute the result",
    "sqrt": "take the square root",
    "ac": "clear everything that was entered",
}
"""What a control of a name does, in words that do not contain the name."""


def kind_of(element: ScreenElement) -> str:
    """What an element is to a reader.

    Args:
        element: The element.

    Returns:
        The kind; "" for what is not asked about.
    """
    return KINDS.get(element.role, "")


def shown_name(element: ScreenElement) -> str:
    """The name as a question quotes it.

    Args:
        element: The element.

    Returns:
        The name without mnemonics and trailing dots, of one line; "" where it has none that can be quoted.
    """
    name = element.name or (element.text if kind_of(element) in ("list entry", "label") else "")
    name = _SPACE.sub(" ", name).strip().removesuffix("…").removesuffix("...").rstrip(": ").strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or '"' in name:
        return ""
    return name


def spoken_name(element: ScreenElement) -> str:
    """The name as it is compared.

    Args:
        element: The element.

    Returns:
        `shown_name` without case and mnemonics.
    """
    return _MNEMONIC.sub("", shown_name(element)).casefold()


def is_text(element: ScreenElement) -> bool:
    """Whether an element shows its name, as "text" and "icon" are told apart in benchmarks.

    Args:
        element: The element, with a box.

    Returns:
        True where the name fits into the box.
    """
    name = shown_name(element)
    if element.box is None or not name or kind_of(element) == "icon":
        return False
    return len(name) * TEXT_PX_PER_CHARACTER <= element.box[2] - element.box[0]
