"""Names of keys, as pyautogui and the guest agent write them.

Role: say whether a name is a key, read and write chords such as `ctrl+s`. Rule: any one printable character
is a key too. Non-goals: which keysym a name becomes (the guest agent's business).
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
    """True for a named key and for any one printable character."""
    return name in _NAMED or (len(name) == 1 and name.isprintable())


def to_guest_key(name: str) -> str | None:
    """What the guest calls a key that pyautogui names, in whatever case; None when it is no key."""
    if len(name) == 1:
        return {"\n": "enter", "\r": "enter", "\t": "tab"}.get(name, name if name.isprintable() else None)
    lowered = name.lower()
    return lowered if lowered in _GUEST else None


def parse_chord(chord: str) -> tuple[str, ...] | None:
    """Keys of a chord written with plus signs (`ctrl+shift+s`, `ctrl++`); None when it is not one."""
    if chord == _PLUS:
        return (_PLUS,)
    head, plus_key = (chord[:-2], True) if chord.endswith("++") else (chord, False)
    names = tuple(head.split(_PLUS)) + ((_PLUS,) if plus_key else ())
    if len(set(names)) != len(names) or not all(is_key(name) for name in names):
        return None
    return names


def format_chord(keys: tuple[str, ...]) -> str:
    """The written form of a chord."""
    return _PLUS.join(keys)
