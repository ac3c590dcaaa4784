"""What the benchmark trains on, and for how long.

Role: `Setting` holds every number of it; `ScreenSource` says where screens come from. Rule: one setting for all methods; the setting `full`
of a source is declared to take at most `budget_minutes` on two quiet cores for three seeds, its `smoke` shows that the benchmark works.
Non-goals: figures, screens (`benchmarks.grounding.drawn_source` and its siblings).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dart_agent.grounding.regions import RegionScore
from dart_agent.grounding.verifier import Marking
from dart_train.presets import PRESETS, ModelPreset

REGION_SCORES: tuple[RegionScore, ...] = ("sum", "max")
"""How regions are scored beside `mean`, which is that of all other methods."""
GUI_ACTOR_WORDS = ("os", "pyautogui")
"""Words of the head's answers."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes and budgets.

    Attributes:
        screens: Training images of a seed, each seen `updates * images_per_update / screens` times.
        held_out_screens: Most test screens of each kind.
        recorded_screens: Most screens of desktops that the training images are made of; 0: all are drawn.
        updates: Updates of head and text.
        frozen_updates: Updates of a head on a frozen backbone.
        verifier_updates: Updates of each verifier.
        adaptation_updates: Updates of each adaptation.
        images_per_update: Screens per update.
        questions_per_image: Greatest number of questions about a screen in an update.
        learning_rate: Greatest learning rate of what is trained from its beginning.
        adaptation_learning_rate: Greatest learning rate of an adaptation.
        shares: Shares of data, and of updates, with which the head is trained for the data efficiency; the first that is enough ends it.
        pages: Pages of the held-out application.
        reachable_pages: Pages of it that an exploration can reach; the other pages are the test.
        explore_steps: Most steps of the exploration.
        verifier_marking: How the verifier sees a point, in pixels of the image.
        verifier_gamma: Score from which the first candidate is taken at once; 0.95 is GUI-Actor's for ScreenSpot-Pro.
        budget_minutes: Declared duration on two quiet cores with three seeds.
    """

    screens: int = 19_200
    held_out_screens: int = 40
    recorded_screens: int = 0
    updates: int = 2400
    frozen_updates: int = 400
    verifier_updates: int = 1800
    adaptation_updates: int = 60
    images_per_update: int = 8
    questions_per_image: int = 6
    learning_rate: float = 1e-3
    adaptation_learning_rate: float = 3e-4
    shares: tuple[float, ...] = (0.3, 0.45, 0.6)
    pages: int = 85
    reachable_pages: int = 45
    explore_steps: int = 240
    verifier_marking: Marking = dataclasses.field(default_factory=lambda: Marking(reach=16.0, radius=3.0, line=1.0))
    verifier_gamma: float = 0.95
    budget_minutes: int = 150


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
"""A few updates, which learn nothing."""


class ScreenSource(Protocol):
    """Where screens come from; it is made of a folder for what all seeds share, and of the setting. Which recorded screens are for the
    training depends on no seed.

    Attributes:
        name: What `--screens` calls it.
        held_out: Kinds of test screens; the id of a sample begins with its kind and a slash.
        shares_test_screens: Whether all seeds have the same test screens, with the same ids.
        full: The setting of records.
        smoke: The setting that shows whether the benchmark works.
    """

    name: str
    held_out: tuple[str, ...]
    shares_test_screens: bool
    full: Setting
    smoke: Setting

    @property
    def words(self) -> tuple[str, ...]:
        """Words of its questions that are one token each."""
        ...

    @property
    def told(self) -> dict[str, Any]:
        """What a record says of the screens that were recorded."""
        ...

    def write(self, out: Path, name: str, count: int, seed: str) -> Path:
        """Write screens with their questions.

        Args:
            out: Folder; images go to a folder of its own in it.
            name: `train`, or a kind of test screens.
            count: How many images; fewer test screens where fewer were recorded.
            seed: Of everything random.

        Returns:
            The file of samples.
        """
        ...


def tiny_preset(words: Sequence[str]) -> ModelPreset:
    """The tiny Qwen3-VL with further words.

    Args:
        words: The words.

    Returns:
        The preset.
    """
    tiny = PRESETS["tiny"]
    known = tuple(dict.fromkeys((*tiny.words, *GUI_ACTOR_WORDS, *words)))
    return dataclasses.replace(tiny, name="tiny-grounding", words=known, input_wh=(320, 192))
