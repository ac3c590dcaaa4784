"""Typed text arrives exactly, by code point, in fields of four toolkits, whatever it is written in."""

from __future__ import annotations

import random
import time
import unicodedata
from collections.abc import AsyncIterator

import live_host
import pytest
from provider_cases import Case
from typed_fields import FIELDS, Field

from dart_server.providers.base import DesktopSpec

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(3600)]
CHARACTERS = 10_000
LINE = 60
SPEC = DesktopSpec("desktop", (1280, 800), memory_mib=2048, pids=768, cpus=2.0, disk_mib=512)

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


@pytest.fixture
async def live(runc_case: Case) -> AsyncIterator[Case]:
    live_host.require_image(SPEC.image)
    await runc_case.provider.create("d1", SPEC)
    yield runc_case
    await runc_case.provider.destroy("d1")


@pytest.mark.parametrize("kind", FIELDS)
async def test_ten_thousand_characters_of_many_scripts_arrive_exactly(
    live: Case, kind: str, record_property: pytest.RecordProperty
) -> None:
    assert len(SCRIPTS) >= 12
    field: Field = FIELDS[kind](live, "d1")
    await field.open()
    chosen = random.Random(20)
    typing_s = 0.0
    for part in range(CHARACTERS // field.part):
        text = random_text(chosen, field.part, field.takes)
        began_s = time.monotonic()
        await live.step("d1", {"type": "text", "text": text})
        typing_s += time.monotonic() - began_s
        arrived = await field.read(len(text))
        differing = [(ascii(a), ascii(b)) for a, b in zip(text, arrived, strict=False) if a != b][:5]
        assert arrived == text, f"part {part}: {len(arrived)} of {len(text)} characters, first differences {differing}"
        await field.empty()
    record_property("characters_per_s", round(CHARACTERS / typing_s))
    print(f"{kind}: {CHARACTERS / typing_s:.0f} characters per second")
