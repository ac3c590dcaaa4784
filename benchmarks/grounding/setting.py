"""What the benchmark trains on, and for how long.

Role: `Setting` holds every number of it; `FULL` is what is recorded, `SMOKE` shows that the benchmark works. Rule: one setting for all
methods; `FULL` is declared to take at most `budget_minutes` on two quiet cores for three seeds. Non-goals: figures.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from benchmarks.grounding.drawn_screens import NOVEL_SHAPES, SHAPES, ScreenSet
from dart_agent.grounding.regions import RegionScore
from dart_train.presets import PRESETS, ModelPreset

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
REGION_SCORES: tuple[RegionScore, ...] = ("sum", "max")
"""How regions are scored beside `mean`, which is that of all other methods."""
WORDS = ("os", "pyautogui", "Orange", "Purple", *SHAPES, *NOVEL_SHAPES)


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes and budgets.

    Attributes:
        screens: Training screens of a seed, each seen `updates * images_per_update / screens` times.
        held_out_screens: Test screens of each kind.
        updates: Updates of head and text.
        frozen_updates: Updates of a head on a frozen backbone.
        verifier_updates: Updates of the verifier.
        adaptation_updates: Updates of each adaptation.
        images_per_update: Screens per update.
        questions_per_image: Greatest number of questions about a screen in an update.
        learning_rate: Greatest learning rate of what is trained from its beginning.
        adaptation_learning_rate: Greatest learning rate of an adaptation.
        shares: Shares of data, and of updates, with which the head is trained for the data efficiency; the first that is enough ends it.
        pages: Pages of the held-out application.
        reachable_pages: Pages of it that an exploration can reach; the other pages are the test.
        explore_steps: Most steps of the exploration.
        verifier_reach_px: Pixels to each side of a point that the verifier sees.
        budget_minutes: Declared duration on two quiet cores with three seeds.
    """

    screens: int = 19_200
    held_out_screens: int = 40
    updates: int = 2400
    frozen_updates: int = 400
    verifier_updates: int = 400
    adaptation_updates: int = 60
    images_per_update: int = 8
    questions_per_image: int = 6
    learning_rate: float = 1e-3
    adaptation_learning_rate: float = 3e-4
    shares: tuple[float, ...] = (0.3, 0.45, 0.6)
    pages: int = 85
    reachable_pages: int = 45
    explore_steps: int = 240
    verifier_reach_px: float = 32.0
    budget_minutes: int = 150

    def preset(self) -> ModelPreset:
        """The tiny Qwen3-VL with the words of the screens."""
        tiny = PRESETS["tiny"]
        words = tuple(dict.fromkeys((*tiny.words, *WORDS)))
        return dataclasses.replace(tiny, name="tiny-grounding", words=words, input_wh=(320, 192))


FULL = Setting()
SMOKE = Setting(
    screens=48,
    held_out_screens=4,
    updates=6,
    frozen_updates=3,
    verifier_updates=3,
    adaptation_updates=3,
    images_per_update=4,
    shares=(0.5,),
    pages=12,
    reachable_pages=6,
    explore_steps=60,
    budget_minutes=5,
)
