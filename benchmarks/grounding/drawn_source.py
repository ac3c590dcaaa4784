"""Drawn screens as the source of the benchmark.

Role: `DrawnSource`, and which screens are drawn. Rule: test screens have coordinates within those that were trained, since a model without
any idea of a larger number cannot say it. Non-goals: drawing (`benchmarks.grounding.drawn_screens`).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from benchmarks.grounding.drawn_screens import NOVEL_SHAPES, SHAPES, ScreenSet, write_screens
from benchmarks.grounding.setting import SMOKE, Setting

TRAINED = ScreenSet(("scattered", "top_row", "left_column"), ((192, 128), (224, 96), (128, 160)), (14, 36))
"""What all methods are trained on."""
TESTED_PX = (14, 24)
HELD_OUT = {
    "screens": dataclasses.replace(TRAINED, sides_px=TESTED_PX),
    "resolutions": ScreenSet(TRAINED.layouts, ((160, 128), (224, 128), (192, 96)), TESTED_PX),
    "layouts": ScreenSet(("grid", "bottom_right"), TRAINED.sizes_wh, TESTED_PX),
}
"""New screens; new sizes, whose coordinates are all within those that were trained; new layouts."""
NOVEL_APPLICATION = ScreenSet(("grid", "bottom_right"), ((224, 128),), TESTED_PX, (*NOVEL_SHAPES, *SHAPES[:2]))
SYMBOLS = (2, 5)
"""Smallest and greatest number of symbols of a screen."""
FULL = Setting()


class DrawnSource:
    """Drawn screens (`ScreenSource`).

    Args:
        folder: As `ScreenSource`; not needed.
        setting: As `ScreenSource`; not needed.
    """

    name = "drawn"
    held_out = tuple(HELD_OUT)
    shares_test_screens = False
    words = ("Orange", "Purple", *SHAPES, *NOVEL_SHAPES)
    full = FULL
    smoke = SMOKE

    def __init__(self, folder: Path, setting: Setting) -> None:
        del folder, setting
        self.told: dict[str, Any] = {}

    def write(self, out: Path, name: str, count: int, seed: str) -> Path:
        """As `ScreenSource`."""
        return write_screens(out, name, count, HELD_OUT.get(name, TRAINED), seed, symbols=SYMBOLS)
