"""Key names to keysyms to key strokes; no X connection.

Role: which keysym a pyautogui key name or a Unicode character means, and which key, with which modifiers, makes it.
Rule: pure; the current keyboard map comes in as a table.
Legend: a keycode is 8..255; level 0 is plain, 1 Shift, 4 AltGr, 5 AltGr+Shift (columns of X's core keyboard map).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NO_SYMBOL = 0
UNICODE_KEYSYMS = 0x01000000

NAMED_KEYSYMS: dict[str, int] = {
    "backspace": 0xFF08, "tab": 0xFF09, "clear": 0xFF0B, "enter": 0xFF0D, "return": 0xFF0D, "pause": 0xFF13,
    "scrolllock": 0xFF14, "esc": 0xFF1B, "escape": 0xFF1B, "home": 0xFF50, "left": 0xFF51, "up": 0xFF52,
    "right": 0xFF53, "down": 0xFF54, "pageup": 0xFF55, "pgup": 0xFF55, "pagedown": 0xFF56, "pgdn": 0xFF56,
    "end": 0xFF57, "select": 0xFF60, "print": 0xFF61, "printscreen": 0xFF61, "prntscrn": 0xFF61, "prtsc": 0xFF61,
    "prtscr": 0xFF61, "execute": 0xFF62, "insert": 0xFF63, "apps": 0xFF67, "menu": 0xFF67, "help": 0xFF6A,
    "modechange": 0xFF7E, "numlock": 0xFF7F, "multiply": 0xFFAA, "add": 0xFFAB, "separator": 0xFFAC,
    "subtract": 0xFFAD, "decimal": 0xFFAE, "divide": 0xFFAF, "shift": 0xFFE1, "shiftleft": 0xFFE1,
    "shiftright": 0xFFE2, "ctrl": 0xFFE3, "ctrlleft": 0xFFE3, "control": 0xFFE3, "ctrlright": 0xFFE4,
    "capslock": 0xFFE5, "alt": 0xFFE9, "altleft": 0xFFE9, "altright": 0xFFEA, "option": 0xFFE9, "optionleft": 0xFFE9,
    "optionright": 0xFFEA, "win": 0xFFEB, "winleft": 0xFFEB, "super": 0xFFEB, "command": 0xFFEB, "winright": 0xFFEC,
    "delete": 0xFFFF, "del": 0xFFFF, "space": 0x20, "altgr": 0xFE03, "browserback": 0x1008FF26,
    "browserforward": 0x1008FF27, "browserrefresh": 0x1008FF29, "browserstop": 0x1008FF28, "browsersearch": 0x1008FF1B,
    "browserfavorites": 0x1008FF30, "browserhome": 0x1008FF18, "volumemute": 0x1008FF12, "volumedown": 0x1008FF11,
    "volumeup": 0x1008FF13, "nexttrack": 0x1008FF17, "prevtrack": 0x1008FF16, "stop": 0x1008FF15,
    "playpause": 0x1008FF14, "launchmail": 0x1008FF19, "launchmediaselect": 0x1008FF32, "launchapp1": 0x1008FF41,
    "launchapp2": 0x1008FF42, "sleep": 0x1008FF2F,
    **{f"f{number}": 0xFFBD + number for number in range(1, 25)},
    **{f"num{digit}": 0xFFB0 + digit for digit in range(10)},
}  # fmt: skip
"""pyautogui's key names (and a few usual aliases) as X keysyms."""

CONTROL_CHARACTERS = {"\n": 0xFF0D, "\r": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08, "\x1b": 0xFF1B}

SHIFT, ALTGR = "shift", "altgr"
LEVEL_MODIFIERS: dict[int, tuple[str, ...]] = {0: (), 1: (SHIFT,), 4: (ALTGR,), 5: (ALTGR, SHIFT)}


class UnknownKey(ValueError):
    """A key name that is neither in `NAMED_KEYSYMS` nor a single character."""


def character_keysym(character: str) -> int:
    """The keysym of one Unicode character: Latin-1 as itself, all others in X's Unicode range."""
    if character in CONTROL_CHARACTERS:
        return CONTROL_CHARACTERS[character]
    point = ord(character)
    if 0x20 <= point <= 0x7E or 0xA0 <= point <= 0xFF:
        return point
    if point < 0x20 or 0x7F <= point < 0xA0 or 0xD800 <= point <= 0xDFFF:
        raise UnknownKey(f"character U+{point:04X} cannot be typed")
    return UNICODE_KEYSYMS | point


def key_keysym(name: str) -> int:
    """The keysym of a key name or of one character; names are matched without regard to case."""
    if len(name) == 1:
        return character_keysym(name)
    keysym = NAMED_KEYSYMS.get(name.lower())
    if keysym is None:
        raise UnknownKey(f"unknown key name {name!r}: use a pyautogui key name or one character")
    return keysym


def beyond_bmp(keysym: int) -> bool:
    """Whether a keysym is a character beyond U+FFFF (emoji, mathematical letters, rare ideographs)."""
    return UNICODE_KEYSYMS + 0x10000 <= keysym <= UNICODE_KEYSYMS + 0x10FFFF


@dataclass(frozen=True, slots=True)
class Stroke:
    """One key with the modifiers (`shift`, `altgr`) that give the wanted keysym."""

    keycode: int
    modifiers: tuple[str, ...] = ()


def given_away(row: Sequence[int]) -> bool:
    """Whether a spare key was given a character: no keyboard layout has one beyond ASCII on all levels of a key."""
    same = len(row) > 1 and len(set(row) - {NO_SYMBOL}) == 1 and row[0] == row[1]
    return same and (0xA0 <= row[0] <= 0xFF or UNICODE_KEYSYMS <= row[0] < 2 * UNICODE_KEYSYMS)


@dataclass(slots=True)
class Keymap:
    """A core keyboard map and the spare keys in it.

    `rows[i]` holds the keysyms of keycode `first + i`, by column. A spare key has none at all. Spare keys that were
    given a character keep it until all are taken; then the one used longest ago is given the next. A key that another program gave a
    character beyond ASCII, the same on every level, is a spare key too.
    """

    rows: list[list[int]]
    first: int = 8
    spares: list[int] = field(init=False)
    borrowed: dict[int, int] = field(init=False, default_factory=dict)
    """keysym -> spare keycode, least recently used first."""
    by_keysym: dict[int, Stroke] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        given = {self.first + i: row[0] for i, row in enumerate(self.rows) if given_away(row)}
        self.spares = [self.first + i for i, row in enumerate(self.rows) if not any(row) or self.first + i in given]
        self.borrowed.update((keysym, keycode) for keycode, keysym in given.items())
        for level in sorted(LEVEL_MODIFIERS, reverse=True):
            for i in reversed(range(len(self.rows))):
                if level < len(self.rows[i]) and self.rows[i][level] != NO_SYMBOL and self.first + i not in given:
                    self.by_keysym[self.rows[i][level]] = Stroke(self.first + i, LEVEL_MODIFIERS[level])

    def find(self, keysym: int) -> Stroke | None:
        """The stroke for a keysym, with the fewest modifiers; None when a spare key is needed."""
        found = self.by_keysym.get(keysym)
        if found is not None:
            return found
        if keysym in self.borrowed:
            keycode = self.borrowed.pop(keysym)
            self.borrowed[keysym] = keycode
            return Stroke(keycode)
        return None

    def missing(self, keysyms: Sequence[int]) -> list[int]:
        """The keysyms that need a spare key, each once, in order of first use."""
        return [keysym for keysym in dict.fromkeys(keysyms) if self.find(keysym) is None]

    def borrow(self, keysyms: Sequence[int], keep: frozenset[int] = frozenset()) -> dict[int, int]:
        """Give each keysym a spare key; returns keycode -> keysym to write to the server.

        Keysyms in `keep` stay where they are (they are held down, or typed in the same breath). Raises UnknownKey
        when there are more keysyms than spare keys.
        """
        changes: dict[int, int] = {}
        taken = set(self.borrowed.values())
        free = [keycode for keycode in self.spares if keycode not in taken]
        old = [keysym for keysym in self.borrowed if keysym not in keep]
        if len(keysyms) > len(free) + len(old):
            raise UnknownKey("the keyboard map has no spare key left for this character")
        for keysym in keysyms:
            keycode = free.pop(0) if free else self.borrowed.pop(old.pop(0))
            self.borrowed[keysym] = keycode
            changes[keycode] = keysym
        return changes

    def batches(self, keysyms: Sequence[int]) -> list[list[int]]:
        """Cut a text into runs whose missing characters fit the spare keys at once."""
        runs: list[list[int]] = []
        current: list[int] = []
        needed: set[int] = set()
        for keysym in keysyms:
            if keysym not in self.by_keysym and keysym not in needed:
                if len(needed) >= max(1, len(self.spares)):
                    runs.append(current)
                    current, needed = [], set()
                needed.add(keysym)
            current.append(keysym)
        if current:
            runs.append(current)
        return runs
