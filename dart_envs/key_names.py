"""Names of keys, as pyautogui and the guest agent write them.

This module says whether a name is a key, and reads and writes chords such as `ctrl+s`. Any single printable character
is a key too. The guest agent decides which keysym a name becomes.
"""

from __future__ import annotations

from collections.abc import Mapping

MODIFIERS = ("ctrl", "alt", "shift", "win")

KEY_GROUPS: Mapping[str, tuple[str, ...]] = {
    "modifiers": MODIFIERS,
    "modifiers of one side": (
        *("ctrlleft", "ctrlright", "altleft", "altright"),
        *("shiftleft", "shiftright", "winleft", "winright"),
    ),
    "editing": ("enter", "return", "tab", "space", "backspace", "delete", "del", "insert", "escape", "esc"),
    "moving": ("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "pgup", "pgdn"),
    "functions": tuple(f"f{number}" for number in range(1, 13)),
    "locks and others": ("capslock", "numlock", "scrolllock", "printscreen", "pause"),
}
"""The named keys of a canonical action, by what they are for."""
NAMED_KEYS = tuple(name for names in KEY_GROUPS.values() for name in names)
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
KEY_ALIASES = {
    "control": "ctrl",
    "control_l": "ctrlleft",
    "control_r": "ctrlright",
    "ctrl_l": "ctrlleft",
    "ctrl_r": "ctrlright",
    "option": "alt",
    "alt_l": "altleft",
    "alt_r": "altright",
    "shift_l": "shiftleft",
    "shift_r": "shiftright",
    "cmd": "win",
    "command": "win",
    "meta": "win",
    "super": "win",
    "windows": "win",
    "super_l": "winleft",
    "super_r": "winright",
    "meta_l": "winleft",
    "meta_r": "winright",
    **{f"arrow{side}": side for side in ("up", "down", "left", "right")},
    **{f"arrow_{side}": side for side in ("up", "down", "left", "right")},
    "page_up": "pageup",
    "page_down": "pagedown",
    "prior": "pageup",
    "next": "pagedown",
    "kp_enter": "enter",
    "back_space": "backspace",
    "spacebar": "space",
    "print": "printscreen",
    "print_screen": "printscreen",
    "caps_lock": "capslock",
    "num_lock": "numlock",
    "scroll_lock": "scrolllock",
    "minus": "-",
    "plus": "+",
    "equal": "=",
    "comma": ",",
    "period": ".",
    "slash": "/",
    "backslash": "\\",
    "semicolon": ";",
    "apostrophe": "'",
    "grave": "`",
    "bracketleft": "[",
    "bracketright": "]",
    "underscore": "_",
}
"""Names that models write, those of X11 and of browsers among them, in lower case -> the key."""


def is_key(name: str) -> bool:
    """Return True for a named key and for any single printable character."""
    return name in _NAMED or (len(name) == 1 and name.isprintable())


def canonical_key(written: str) -> str | None:
    """Return the key of a canonical action that a model's name means.

    Args:
        written: The name in any case, also one of X11 or of a browser, or one character, whose case is kept.

    Returns:
        The name, or None when it is not a key.
    """
    name = written.strip() or written[:1]
    if len(name) > 1:
        name = KEY_ALIASES.get(name.lower(), name.lower())
    return name if is_key(name) else None


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
