"""What a policy typed, read from its recorded actions.

Role: `typed_texts`, and which keys of a chord type. Rule: texts and characters that follow each other are one text, across steps and waits;
a click or a key such as Escape ends it. Non-goals: taking texts out (`redaction`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

TEXT_FIELDS = frozenset({"text", "code"})
"""Fields of an action that hold typed text."""
SHIFT_KEYS = frozenset({"shift", "shiftleft", "shiftright"})
KEYPAD_DIGITS: Mapping[str, str] = {f"num{digit}": str(digit) for digit in range(10)}
SPACING_KEYS: Mapping[str, str] = {"space": " ", "tab": "\t", "enter": "\n", "return": "\n"}
_US_KEYS = "`1234567890-=[]\\;',./"
_US_KEYS_WITH_SHIFT = '~!@#$%^&*()_+{}|:"<>?'
_WITH_SHIFT = str.maketrans(_US_KEYS, _US_KEYS_WITH_SHIFT)


def typed_texts(actions: Iterable[Mapping[str, Any] | None]) -> set[str]:
    """Read what a policy typed.

    Args:
        actions: The recorded actions of its steps, in order; None: the step performed nothing.

    Returns:
        Each text, and what texts and keys that follow each other type together. Of both also the lines, and the parts between Tabs. All are
        without space around them, and none has one character only.
    """
    keyboard, texts = _Keyboard(), set[str]()
    for action in actions:
        if action is not None:
            texts |= _text_fields(action)
            for event in _events(action):
                keyboard.perform(event)
    keyboard.end_text()
    texts |= keyboard.texts
    found = {part.strip() for text in texts for part in (text, *text.replace("\t", "\n").splitlines())}
    return {text for text in found if len(text) > 1}


def typed_keys(keys: Sequence[str]) -> frozenset[str]:
    """Find the keys of a chord that type a character.

    Args:
        keys: Names of the keys.

    Returns:
        Those of characters and digits; none in a chord with a key other than Shift, such as Control.
    """
    characters = frozenset(key for key in keys if len(key) == 1 or key in KEYPAD_DIGITS)
    return characters if characters.union(SHIFT_KEYS).issuperset(keys) else frozenset()


class _Keyboard:
    """Joins what input events type.

    Attributes:
        texts: The texts so far.
    """

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self._held: set[str] = set()
        self._as_named: list[str] = []
        self._with_shift: list[str] = []

    def perform(self, event: Mapping[str, Any]) -> None:
        """Read the next event, or the next action that is no list of events."""
        kind, text, key = event.get("type"), event.get("text"), event.get("key")
        if isinstance(text, str):
            self._type(text, text)
        elif kind == "key_up":
            self._held.discard(str(key))
        elif kind == "key_down":
            self._press(str(key))
        elif kind != "wait":
            self.end_text()

    def end_text(self) -> None:
        """What follows is another text."""
        self.texts |= {"".join(self._as_named), "".join(self._with_shift)}
        self._as_named, self._with_shift = [], []

    def _type(self, as_named: str, with_shift: str) -> None:
        self._as_named += as_named
        self._with_shift += with_shift

    def _press(self, key: str) -> None:
        character = key if len(key) == 1 else KEYPAD_DIGITS.get(key) or SPACING_KEYS.get(key)
        if key in SHIFT_KEYS:
            self._held.add(key)
        elif self._held - SHIFT_KEYS:
            self.end_text()
        elif character is not None:
            shifted = character.upper().translate(_WITH_SHIFT) if self._held else character
            self._type(character, shifted)
        elif key == "backspace":
            self._as_named, self._with_shift = self._as_named[:-1], self._with_shift[:-1]
        else:
            self._held.add(key)
            self.end_text()


def _events(action: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The input events of an action; an action other than a chord that has none stands for itself."""
    inner = (*(action.get("actions") or ()), *(action.get("events") or ()))
    keys = action.get("keys") or ()
    if inner:
        for each in inner:
            yield from _events(each)
    elif keys:
        chord = [keys] if isinstance(keys, str) else keys
        yield from ({"type": "key_down", "key": key} for key in chord)
        yield from ({"type": "key_up", "key": key} for key in chord)
    else:
        yield action


def _text_fields(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        own = {each for name, each in value.items() if name in TEXT_FIELDS and isinstance(each, str)}
        return own.union(*(_text_fields(each) for each in value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*(_text_fields(each) for each in value))
    return set()
