"""Names of keys, as pyautogui and the guest agent write them.

This module says whether a name is a key, and reads and writes chords such as `ctrl+s`. Any single printable character
is a key too. The guest agent decides which keysym a name becomes.
"""

from __future__ import annotations

MODIFIERS = ("ctrl", "alt", "shift", "win")

NAMED_KEYS = (
    *MODIFIERS,
    *("ctrlleft", "ctrlright", "altleft", "altright", "shiftleft", "shiftright", "winleft", "winright"),
    *("enter", "return", "tab", "space", "backspace", "delete", "del", "insert", "escape", "esc"),
    *("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "pgup", "pgdn"),
    *(f"f{number}" for number in range(1, 13)),
    *("capslock", "numlock", "scrolllock", "printscreen", "pause"),
)
PYAUTOGUI_ONLY_KEYS = (
    *(
        "control",
        "super",
        "command",
        "option",
        "optionleft",
        "optionright",
        "altgr",
        "apps",
        "menu",
        "help",
        "select",
        "execute",
    ),
    *(
        "print",
        "prntscrn",
        "prtsc",
        "prtscr",
        "clear",
        "modechange",
        "sleep",
        "stop",
        "playpause",
        "nexttrack",
        "prevtrack",
    ),
    *("add", "subtract", "multiply", "divide", "decimal", "separator", "volumemute", "volumedown", "volumeup"),
    *(
        "browserback",
        "browserforward",
        "browserrefresh",
        "browserstop",
        "browsersearch",
        "browserfavorites",
        "browserhome",
    ),
    *("launchmail", "launchmediaselect", "launchapp1", "launchapp2"),
    *(f"f{number}" for number in range(13, 25)),
    *(f"num{digit}" for digit in range(10)),
)
"""pyautogui's other names, which the guest knows; not among the names that a policy of ours is taught."""
_NAMED = frozenset(NAMED_KEYS)
_GUEST = _NAMED | frozenset(PYAUTOGUI_ONLY_KEYS)
_PLUS = "+"


def is_key(name: str) -> bool:
    """Return True for a named key and for any single printable character."""
    return name in _NAMED or (len(name) == 1 and name.isprintable())


def to_guest_key(name: str) -> str | None:
    """Return the guest agent's name of a key.

    Args:
        name: pyautogui's name, in any case, or one character.

    Returns:
        The name, or None when it is not a key.
    """
    if len(name) == 1:
        return {"\n": "enter", "\r": "enter", "\t": "tab"}.get(name, name if name.isprintable() else None)
    lowered = name.lower()
    return lowered if lowered in _GUEST else None


def parse_chord(chord: str) -> tuple[str, ...] | None:
    """Read a chord written with plus signs.

    Args:
        chord: Such as `ctrl+shift+s` or `ctrl++`.

    Returns:
        The keys, or None when the text is not a chord.
    """
    if chord == _PLUS:
        return (_PLUS,)
    head, plus_key = (chord[:-2], True) if chord.endswith("++") else (chord, False)
    names = tuple(head.split(_PLUS)) + ((_PLUS,) if plus_key else ())
    if len(set(names)) != len(names) or not all(is_key(name) for name in names):
        return None
    return names


def format_chord(keys: tuple[str, ...]) -> str:
    """Write a chord with plus signs; the reverse of `parse_chord`."""
    return _PLUS.join(keys)
