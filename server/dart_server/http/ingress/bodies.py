"""What a JSON body may look like before anything parses it.

Rule: cheap for ordinary bodies: one pass of a compiled expression, and only where something suspicious is in the text. Refused are nesting
beyond `MAX_DEPTH` (a parser's stack), halves of surrogate pairs (no text; databases and encoders choke on them), and numbers of more digits
than any machine has. Non-goals: JSON's grammar and the fields (pydantic).
"""

from __future__ import annotations

import re

MAX_DEPTH = 32
MAX_DIGITS = 400
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_ESCAPES = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def find_json_problem(body: bytes) -> str | None:
    """What is wrong with a JSON body, None when nothing is to be seen from here."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        return f"the body is nested deeper than {MAX_DEPTH} levels"
    if len(body) > MAX_DIGITS and _LONG_NUMBER.search(_outside_strings(body)):
        return f"a number has more than {MAX_DIGITS} digits"
    if _SURROGATE.search(body) and _has_lone_surrogate(body):
        return "a text has half of a surrogate pair"
    return None


def _outside_strings(body: bytes) -> bytes:
    return re.sub(rb'"(?:[^"\\]|\\.)*+"', b'""', body, flags=re.DOTALL) if _LONG_NUMBER.search(body) else b""


def _depth(body: bytes) -> int:
    depth = deepest = 0
    for match in _BRACKETS.finditer(body):
        mark = match.group()
        if mark in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in b"]}":
            depth -= 1
    return deepest


def _has_lone_surrogate(body: bytes) -> bool:
    high_ends = -1
    for match in _ESCAPES.finditer(body):
        unit = int(match.group(1), 16) if match.group(1) else 0
        if high_ends >= 0 and not (match.start() == high_ends and 0xDC00 <= unit < 0xE000):
            return True
        if high_ends < 0 and 0xDC00 <= unit < 0xE000:
            return True
        high_ends = match.end() if 0xD800 <= unit < 0xDC00 else -1
    return high_ends >= 0
