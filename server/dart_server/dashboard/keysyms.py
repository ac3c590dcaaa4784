"""From the X keysyms that a viewer sends to the key names that guests know. Pure tables.

Rule: a keysym is a named key, or stands for one character: Latin-1 as itself, others in X's Unicode range or in the older sets that
follow an eight-bit code page. What is none of these is None, and not pressed. Non-goals: keyboard layouts (the guest's).
"""

from __future__ import annotations

UNICODE = 0x01000000
NAMES: dict[int, str] = {
    0xFF08: "backspace", 0xFF09: "tab", 0xFF0D: "enter", 0xFF13: "pause", 0xFF14: "scrolllock", 0xFF1B: "esc",
    0xFF50: "home", 0xFF51: "left", 0xFF52: "up", 0xFF53: "right", 0xFF54: "down", 0xFF55: "pageup", 0xFF56: "pagedown",
    0xFF57: "end", 0xFF61: "printscreen", 0xFF63: "insert", 0xFF67: "menu", 0xFF7F: "numlock", 0xFF8D: "enter",
    0xFF95: "home", 0xFF96: "left", 0xFF97: "up", 0xFF98: "right", 0xFF99: "down", 0xFF9A: "pageup", 0xFF9B: "pagedown",
    0xFF9C: "end", 0xFF9E: "insert", 0xFF9F: "delete", 0xFFAA: "multiply", 0xFFAB: "add", 0xFFAC: "separator",
    0xFFAD: "subtract", 0xFFAE: "decimal", 0xFFAF: "divide", 0xFFE1: "shiftleft", 0xFFE2: "shiftright",
    0xFFE3: "ctrlleft", 0xFFE4: "ctrlright", 0xFFE5: "capslock", 0xFFE7: "winleft", 0xFFE8: "winright",
    0xFFE9: "altleft", 0xFFEA: "altright", 0xFFEB: "winleft", 0xFFEC: "winright", 0xFFFF: "delete", 0xFE03: "altgr",
    0xFE20: "tab",
    **{0xFFB0 + digit: f"num{digit}" for digit in range(10)},
    **{0xFFBD + number: f"f{number}" for number in range(1, 25)},
}  # fmt: skip
"""Keysyms of keys that make no character. A left tab is a tab with Shift, which is held anyway."""

MODIFIERS = frozenset(
    {"shiftleft", "shiftright", "ctrlleft", "ctrlright", "altleft", "altright", "altgr"}
    | {"winleft", "winright", "capslock", "numlock"}
)
"""Keys that do not repeat while they are held."""

_PAGES = {
    1: "iso8859-2",
    2: "iso8859-3",
    3: "iso8859-4",
    5: "iso8859-6",
    6: "koi8-r",
    7: "iso8859-7",
    12: "iso8859-8",
    13: "tis-620",
}
"""The upper byte of an older keysym, and the code page whose bytes its lower byte follows."""
_EXCEPTIONS = {0x07F2: "σ", 0x07F3: "ς", 0x20AC: "€", 0x13BC: "Œ", 0x13BD: "œ", 0x13BE: "Ÿ"}


def key_name(keysym: int) -> str | None:
    """The guest's name of a key, or the character that it makes; None for what no guest can press."""
    if keysym in NAMES:
        return NAMES[keysym]
    if keysym in _EXCEPTIONS:
        return _EXCEPTIONS[keysym]
    if 0x20 <= keysym <= 0x7E or 0xA0 <= keysym <= 0xFF:
        return chr(keysym)
    if UNICODE + 0x20 <= keysym <= UNICODE + 0x10FFFF:
        point = keysym - UNICODE
        return None if 0x7F <= point < 0xA0 or 0xD800 <= point <= 0xDFFF else chr(point)
    page = _PAGES.get(keysym >> 8)
    if page is None or keysym & 0xFF < 0xA0:
        return None
    try:
        return bytes([keysym & 0xFF]).decode(page)
    except UnicodeDecodeError:
        return None
