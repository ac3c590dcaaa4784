"""Screens of the suite `basics` as the source of the benchmark.

Role: `BasicsSource` records first screens of tasks and writes them as samples: every element that an instruction can name by its place, or
that commits or cancels, is asked for. Rule: training screens are of the train split, and an image moves the windows of its screen to a
place of its own; test screens are of the validation split and as they were recorded. The kinds of test screens are new tasks, screens
of other sizes, and families with another font size. Elements that are named by their text are not asked for: reading takes pages of its
own, which no method has here. Non-goals: what policies of the suite do.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.grounding.recorded_screens import ShownTasks, record_screens, write_images
from benchmarks.grounding.setting import SMOKE, Setting
from benchmarks.grounding.text_arm import STEP_PX
from dart_agent.grounding.acting.targets import head_instruction
from dart_agent.grounding.samples import Box, GroundingSample, GroundingTarget
from dart_agent.grounding.verifier import Marking
from dart_envs.observations.transforms import resize_image
from dart_envs.tasks import load_suite
from dart_envs.tasks.screen_names import NamedElement
from dart_envs.types import RgbImage
from dart_server.wire import DesktopShape
from dart_train.warmup.screens import AnnotatedScreen, load_pixels, name_elements, read_screen, shift_windows

SUITE = "basics"
TRAINED_FAMILIES = (
    "press_nth", "press_two", "choose_nth", "tick_nth", "press_button", "press_both", "tick_box", "enter_text", "open_folder",
)  # fmt: skip
HELD_OUT_FAMILIES = ("choose_row", "tick_two", "pick_radio")
TRAINED_FONT_SIZES, HELD_OUT_FONT_SIZES = (12, 14, 16), (13,)
"""In points; with a larger font two dialogs do not fit above each other. Rows are as high as their font asks for."""
TRAINED_SIZES_WH = ((640, 400), (800, 400), (640, 480))
HELD_OUT_SIZES_WH = ((720, 400), (720, 480), (800, 480))
"""All of their coordinates are within those that were trained."""
SCALE = 0.4
"""Pixels of the model's image / pixels of the screen, that of the demo."""


@dataclass(frozen=True, slots=True)
class RecordedSet:
    """Which screens are recorded.

    Attributes:
        split: Split of the tasks.
        families: Families of the tasks, in turn.
        sizes_wh: (width, height) of the desktops in pixels, each with every font size in turn.
        font_sizes: Font sizes of the desktops in points.
    """

    split: str
    families: tuple[str, ...]
    sizes_wh: tuple[tuple[int, int], ...]
    font_sizes: tuple[int, ...]

    def shown(self, folder: Path, count: int) -> list[ShownTasks]:
        """Choose tasks.

        Args:
            folder: Where the screens of the set are kept.
            count: How many; no task is shown twice.

        Returns:
            The tasks by kind of desktop.
        """
        suite = load_suite(SUITE)
        of_family = {family: iter(suite.tasks(self.split, [family])) for family in self.families}
        by_shape: dict[DesktopShape, list[str]] = defaultdict(list)
        shapes = [
            DesktopShape(image=suite.image, resolution=size, font_size=font_size)
            for font_size, size in product(self.font_sizes, self.sizes_wh)
        ]
        for shape, family in islice(cycle(product(shapes, self.families)), count):
            by_shape[shape].append(next(of_family[family]))
        return [
            ShownTasks(folder / f"{shape.resolution[0]}x{shape.resolution[1]}-{shape.font_size}", shape, tuple(tasks))
            for shape, tasks in by_shape.items()
        ]


TRAIN = "train"
SETS = {
    TRAIN: RecordedSet("train", TRAINED_FAMILIES, TRAINED_SIZES_WH, TRAINED_FONT_SIZES),
    "screens": RecordedSet("validation", TRAINED_FAMILIES, TRAINED_SIZES_WH, TRAINED_FONT_SIZES),
    "resolutions": RecordedSet("validation", TRAINED_FAMILIES, HELD_OUT_SIZES_WH, TRAINED_FONT_SIZES),
    "layouts": RecordedSet("validation", HELD_OUT_FAMILIES, TRAINED_SIZES_WH, HELD_OUT_FONT_SIZES),
}


class BasicsSource:
    """Screens of `basics` (`ScreenSource`).

    Args:
        folder: Keeps the recorded screens.
        setting: How many screens.
    """

    name = "basics"
    held_out: tuple[str, ...] = ("screens", "resolutions", "layouts")
    shares_test_screens = True
    words: tuple[str, ...] = ()
    # A place such as "second row" can only be judged with what is around it.
    full = Setting(
        held_out_screens=108,
        recorded_screens=972,
        verifier_updates=800,
        verifier_marking=Marking(reach=64.0, radius=4.0, line=1.0),
    )
    smoke = replace(SMOKE, screens=16, held_out_screens=3, recorded_screens=4)

    def __init__(self, folder: Path, setting: Setting) -> None:
        self._folder, self._setting = folder, setting

    @property
    def told(self) -> dict[str, Any]:
        """As `ScreenSource`: how many screens there are of each set and family."""
        counts = {}
        for name in SETS:
            families = (
                read_screen(file).task_id.split("/")[1] for file in sorted((self._folder / name).rglob("*.json"))
            )
            counts[name] = dict(sorted(Counter(families).items()))
        return counts

    def write(self, out: Path, name: str, count: int, seed: str) -> Path:
        """As `ScreenSource`: each recorded screen as often as others; the copies of a training screen follow each other."""
        random = Random(f"{seed}/{name}")
        screens = sorted((read_screen(file) for file in self._record(name)), key=lambda screen: screen.task_id)
        if name == TRAIN:  # test screens have the same ids with every seed
            random.shuffle(screens)

        def make(screen: AnnotatedScreen, file: str, screen_id: str) -> tuple[RgbImage, list[GroundingSample]]:
            pixels = load_pixels(screen)
            if name == TRAIN:
                pixels, screen = shift_windows(pixels, screen, random)
            wh = round(pixels.shape[1] * SCALE), round(pixels.shape[0] * SCALE)
            return resize_image(pixels, wh), screen_samples(screen, wh, file, screen_id)

        return write_images(out, name, count if name == TRAIN else min(count, len(screens)), screens, make)

    def _record(self, name: str) -> list[Path]:
        """Record the screens of a set that are not there; the files of all of them."""
        count = self._setting.recorded_screens if name == TRAIN else self._setting.held_out_screens
        shown = SETS[name].shown(self._folder / name, count)
        asyncio.run(record_screens(shown))
        return sorted(file for one in shown for file in one.folder.glob("*.json"))


def screen_samples(screen: AnnotatedScreen, wh: tuple[int, int], image: str, screen_id: str) -> list[GroundingSample]:
    """Ask for every element of a screen that has a name without its text.

    Args:
        screen: The screen.
        wh: (width, height) of the image in pixels.
        image: Its file.
        screen_id: Which screen it is.

    Returns:
        One sample per name; none of an element that is smaller than the grid of the text baseline.
    """
    _, family, _ = screen.task_id.split("/")
    named = _named_boxes(screen, wh)
    return [
        GroundingSample(
            sample_id=f"{screen_id}/{index}",
            image=image,
            image_wh=wh,
            instruction=head_instruction(part.name),
            targets=(GroundingTarget(boxes=(box,)),),
            application=SUITE,
            role=part.element.role,
            kind="positional",
            screen_id=screen_id,
            group=family,
            distractors=tuple(dict.fromkeys((other.element.role, at) for other, at in named if at != box)),
        )
        for index, (part, box) in enumerate(named)
    ]


def _named_boxes(screen: AnnotatedScreen, wh: tuple[int, int]) -> list[tuple[NamedElement, Box]]:
    """Elements with a name that is no text to read, each with its box in pixels of the image."""
    found = []
    for part in name_elements(screen):
        if part.by_text:
            continue
        element = part.element
        left, top = max(0.0, element.x * SCALE), max(0.0, element.y * SCALE)
        right, bottom = min(wh[0], (element.x + element.w) * SCALE), min(wh[1], (element.y + element.h) * SCALE)
        if min(right - left, bottom - top) >= STEP_PX:
            found.append((part, (left, top, right, bottom)))
    return found
