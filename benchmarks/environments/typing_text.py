"""Random texts of many scripts for `python -m benchmarks typing`: visible, assigned characters, each script as likely as another."""

from __future__ import annotations

import random
import unicodedata

LINE = 60
"""Characters between two control characters."""

SCRIPTS = {
    "latin": ((0x20, 0x7E),), "latin with accents": ((0xA1, 0x24F), (0x1E00, 0x1EFF)), "greek": ((0x370, 0x3FF),),
    "cyrillic": ((0x400, 0x4FF),), "armenian": ((0x531, 0x58A),), "hebrew": ((0x591, 0x5F4),), "arabic": ((0x620, 0x6D3),),
    "devanagari": ((0x901, 0x97F),), "thai": ((0xE01, 0xE5B),), "georgian": ((0x10A0, 0x10FF),), "hangul": ((0xAC00, 0xD7A3),),
    "kana": ((0x3041, 0x30FF),), "han": ((0x4E00, 0x9FA0), (0x20000, 0x20400)),
    "punctuation": ((0x2010, 0x205E), (0x20A0, 0x20BF)), "mathematics": ((0x2190, 0x22FF), (0x1D400, 0x1D7FF)),
    "combining": ((0x300, 0x36F),), "emoji": ((0x1F600, 0x1F64F), (0x1F680, 0x1F6FF)),
}  # fmt: skip
"""Ranges of characters by what they are written in."""
NOT_TYPED = frozenset({"Cn", "Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Categories of what is no visible character: unassigned, controls, formats, separators of lines and paragraphs."""


def pools() -> dict[str, list[str]]:
    """The characters of each script."""
    return {
        name: [
            chr(point)
            for low, high in ranges
            for point in range(low, high + 1)
            if unicodedata.category(chr(point)) not in NOT_TYPED
        ]
        for name, ranges in SCRIPTS.items()
    }


def random_text(chosen: random.Random, length: int, controls: str) -> str:
    """`length` characters, each of a random script, with one of `controls` now and then."""
    scripts = list(pools().values())
    return "".join(
        chosen.choice(controls) if controls and number % LINE == LINE - 1 else chosen.choice(chosen.choice(scripts))
        for number in range(length)
    )
