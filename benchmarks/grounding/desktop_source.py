"""Screens of applications of the image `desktop` as the source of the benchmark.

Role: `DesktopSource` records the states of applications as `desktop-ground` does, and writes them as samples with the questions of
`desktop-ground`. Rule: a question may be asked on several screens, other than in `desktop-ground`, but a test screen is never a training
screen: other states of applications that were trained, all states on desktops of another size, and whole applications that were not
trained. Which screens are of which set is noted before anything is trained, and does not change any more. Non-goals: a score that compares
with published models.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.grounding.recorded_screens import DESKTOPS, write_images
from benchmarks.grounding.setting import SMOKE, Setting
from benchmarks.grounding.text_arm import STEP_PX
from benchmarks.work_folder import write_json
from dart_agent.grounding.desktop_ground.applications import find_applications
from dart_agent.grounding.desktop_ground.benchmark import NOVEL, choose_novel, choose_queries, choose_splits
from dart_agent.grounding.desktop_ground.kept_screens import KeptScreens
from dart_agent.grounding.desktop_ground.queries import GroundQuery, find_queries
from dart_agent.grounding.desktop_ground.recording import RecordedApplications, RecordPlan, record_applications
from dart_agent.grounding.desktop_ground.screen import CapturedScreen
from dart_agent.grounding.desktop_ground.wording import is_text
from dart_agent.grounding.samples import Box, GroundingSample, GroundingTarget
from dart_agent.grounding.verifier import Marking
from dart_envs.errors import UnsupportedCapabilityError
from dart_envs.observations.transforms import resize_image
from dart_envs.types import RgbImage

IMAGE = "desktop"
TRAIN = "train"
TRAINED_SIZES_WH = ((640, 384), (512, 448))
HELD_OUT_SIZES_WH = ((576, 384),)
"""All of its coordinates are within those that were trained."""
SCALE = 0.5
"""Pixels of the model's image / pixels of the screen."""
REACH_PX = 24
"""How far a training screen is moved at most, in pixels of the image."""
SEED = 0
"""Of states, questions and splits."""
STATES = 10
"""Most screens of an application on a desktop of one size."""
QUESTIONS_PER_SCREEN = 24
WORDS = 400
"""How many words of the training questions are one token each."""


@dataclass(frozen=True, slots=True)
class AskedScreen:
    """A screen with its questions."""

    screen: CapturedScreen
    queries: tuple[GroundQuery, ...]


class DesktopSource:
    """Screens of applications (`ScreenSource`).

    Args:
        folder: Keeps the recorded screens.
        setting: How many screens.
    """

    name = "desktop"
    held_out: tuple[str, ...] = ("screens", "resolutions", "layouts")
    shares_test_screens = True
    full = Setting(
        screens=9_600,
        held_out_screens=80,
        recorded_screens=STATES * len(TRAINED_SIZES_WH) * 22,
        updates=4800,
        verifier_updates=800,
        verifier_marking=Marking(reach=48.0, radius=4.0, line=1.0),
        budget_minutes=240,
    )
    smoke = replace(
        SMOKE, screens=16, held_out_screens=3, recorded_screens=STATES * len(TRAINED_SIZES_WH) * 3, budget_minutes=30
    )

    def __init__(self, folder: Path, setting: Setting) -> None:
        self._folder, self._setting = folder, setting

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The most frequent words of the training questions."""
        asked = (query.instruction for asked in self._sets[TRAIN] for query in asked.queries)
        counts = Counter(word for instruction in asked for word in re.findall(r"[A-Za-z]+", instruction))
        return tuple(sorted(sorted(counts), key=lambda word: -counts[word])[:WORDS])

    @property
    def told(self) -> dict[str, Any]:
        """As `ScreenSource`: applications, those that are novel, what is missing with the cause, and how many screens each set has."""
        noted = self._noted
        counts = Counter(one["set"] for one in noted["screens"])
        return {key: noted[key] for key in ("applications", "novel", "missing", "image_digests")} | {
            "screens": dict(counts)
        }

    def write(self, out: Path, name: str, count: int, seed: str) -> Path:
        """As `ScreenSource`: each recorded screen as often as others; copies of a training screen follow each other, each moved."""
        # Test screens, their choice and their ids are those of all seeds.
        random = Random(f"{seed if name == TRAIN else SEED}/{name}")
        screens = random.sample(self._sets[name], len(self._sets[name]))
        reach = REACH_PX if name == TRAIN else 0

        def make(asked: AskedScreen, file: str, screen_id: str) -> tuple[RgbImage, list[GroundingSample]]:
            height, width = asked.screen.pixels.shape[:2]
            wh = round(width * SCALE), round(height * SCALE)
            shift = random.randint(-reach, reach), random.randint(-reach, reach)
            moved = move_picture(resize_image(asked.screen.pixels, wh), shift)
            return moved, screen_samples(asked, wh, shift, file, screen_id)

        return write_images(out, name, count if name == TRAIN else min(count, len(screens)), screens, make)

    @cached_property
    def _sets(self) -> dict[str, list[AskedScreen]]:
        """Screens with questions, by set."""
        set_of = {(tuple(one["size"]), one["screen_id"]): one["set"] for one in self._noted["screens"]}
        sets: dict[str, list[AskedScreen]] = {name: [] for name in (TRAIN, *self.held_out)}
        for size in (*TRAINED_SIZES_WH, *HELD_OUT_SIZES_WH):
            kept = KeptScreens(self._folder / f"{size[0]}x{size[1]}")
            for application in self._noted["applications"]:
                for screen in (kept.read(application) or ("", []))[1]:
                    name = set_of.get((size, screen.screen_id))
                    if name is not None:
                        sets[name].append(AskedScreen(screen, _questions(screen)))
        return sets

    @cached_property
    def _noted(self) -> dict[str, Any]:
        """Which screens are of which set, and what was recorded; recorded and noted with the first call.

        Raises:
            UnsupportedCapabilityError: Too little was recorded for one of the sets.
        """
        file = self._folder / "sets.json"
        if not file.exists():
            names = [one.name for one in find_applications(IMAGE, ()).applications]
            names = names[: self._setting.recorded_screens // (STATES * len(TRAINED_SIZES_WH))]
            found = {size: self._record(size, names) for size in (*TRAINED_SIZES_WH, *HELD_OUT_SIZES_WH)}
            noted = choose_sets({size: recorded.screens for size, recorded in found.items()})
            noted["missing"] = {f"{size[0]}x{size[1]}": recorded.missing for size, recorded in found.items()}
            noted["image_digests"] = sorted({digest for recorded in found.values() for digest in recorded.digests})
            empty = {TRAIN, *self.held_out} - {one["set"] for one in noted["screens"]}
            if empty:
                lost = any(noted["missing"].values())
                fix = (
                    "the same command records what is missing again"
                    if lost
                    else f"delete {self._folder}, and record again"
                )
                raise UnsupportedCapabilityError(
                    f"the recorded applications give no screen for {', '.join(sorted(empty))} (missing: {noted['missing']}): {fix}"
                )
            write_json(file, noted)
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return content

    def _record(self, size: tuple[int, int], applications: Sequence[str]) -> RecordedApplications:
        plan = RecordPlan(IMAGE, size, SEED, tuple(applications), STATES, DESKTOPS)
        kept = KeptScreens(self._folder / f"{size[0]}x{size[1]}")
        return asyncio.run(record_applications(plan, kept, lambda line: print(line, file=sys.stderr, flush=True)))


def choose_sets(by_size: Mapping[tuple[int, int], Sequence[CapturedScreen]]) -> dict[str, Any]:
    """Choose the set of every screen that has questions.

    Args:
        by_size: Recorded screens by (width, height) of the desktop in pixels.

    Returns:
        `applications`, `novel`, and `screens`, each with `size`, `screen_id` and `set`. A state that is a test state on one desktop is none
        of the training on another one.
    """
    asked = {size: [screen for screen in screens if _questions(screen)] for size, screens in by_size.items()}
    by_id = {screen.screen_id: screen for screens in asked.values() for screen in screens}
    applications = sorted({screen.application for screen in by_id.values()})
    novel = choose_novel(applications, SEED)
    splits = choose_splits(by_id.values(), novel, SEED)
    chosen = []
    for size, screens in asked.items():
        for screen in screens:
            split = splits[screen.screen_id]
            if size in HELD_OUT_SIZES_WH:
                name = None if split == NOVEL else "resolutions"
            else:
                name = {NOVEL: "layouts", "test": "screens"}.get(split, TRAIN)
            if name is not None:
                chosen.append({"size": list(size), "screen_id": screen.screen_id, "set": name})
    return {"applications": applications, "novel": sorted(novel), "screens": chosen}


def _questions(screen: CapturedScreen) -> tuple[GroundQuery, ...]:
    return tuple(choose_queries(find_queries(screen), QUESTIONS_PER_SCREEN, Random(screen.screen_id)))


def move_picture(picture: RgbImage, shift: tuple[int, int]) -> RgbImage:
    """Move a picture within its frame; what it leaves shows its mean colour.

    Args:
        picture: uint8 [H, W, 3].
        shift: (to the right, downwards) in pixels.

    Returns:
        The moved picture, uint8 [H, W, 3].
    """
    (dx, dy), (height, width) = shift, picture.shape[:2]
    moved = np.empty_like(picture)
    moved[:] = picture.reshape(-1, 3).mean(axis=0).astype(np.uint8)
    moved[max(0, dy) : height + min(0, dy), max(0, dx) : width + min(0, dx)] = picture[
        max(0, -dy) : height + min(0, -dy), max(0, -dx) : width + min(0, -dx)
    ]
    return moved


def screen_samples(
    asked: AskedScreen, wh: tuple[int, int], shift: tuple[int, int], image: str, screen_id: str
) -> list[GroundingSample]:
    """Make the samples of an image.

    Args:
        asked: The screen.
        wh: (width, height) of the image in pixels.
        shift: How far the screen was moved in it, in pixels of the image.
        image: Its file.
        screen_id: Which screen it is.

    Returns:
        One sample per question whose answer is whole on the image, and no smaller than the grid of the text baseline. Where the move takes
        an element off the image, questions about places are left out: what was the second button may be the first one.
    """
    shown_before = (
        box for element in asked.screen.elements if (box := element.box) and _is_shown(_moved(box, (0, 0)), wh)
    )
    complete = all(_is_shown(_moved(box, shift), wh) for box in shown_before)
    boxes = [query.element.box and _moved(query.element.box, shift) for query in asked.queries]
    shown = [
        (query, box)
        for query, box in zip(asked.queries, boxes, strict=True)
        if box is not None
        and (complete or query.kind != "positional")
        and 0 <= box[0] <= box[2] - STEP_PX
        and box[2] <= wh[0]
        and 0 <= box[1] <= box[3] - STEP_PX
        and box[3] <= wh[1]
    ]
    return [
        GroundingSample(
            sample_id=_sample_id(screen_id, asked.screen.application, index),
            image=image,
            image_wh=wh,
            instruction=query.instruction,
            targets=(GroundingTarget(boxes=(box,)),),
            application=asked.screen.application,
            element_type="text" if is_text(query.element) else "icon",
            role=query.element.role,
            kind=query.kind,
            screen_id=screen_id,
            group=asked.screen.application,
            distractors=tuple(dict.fromkeys((other.element.role, at) for other, at in shown if at != box)),
        )
        for index, (query, box) in enumerate(shown)
    ]


def _sample_id(screen_id: str, application: str, index: int) -> str:
    """The id of a question; it begins with its application, whose screens show the same menus and bars, so that they are drawn together."""
    name, _, number = screen_id.rpartition("/")
    return f"{name}/{application}/{number}-{index}"


def _moved(box: Box, shift: tuple[int, int]) -> Box:
    """A box of the screen in pixels of the moved image."""
    (left, top, right, bottom), (dx, dy) = box, shift
    return left * SCALE + dx, top * SCALE + dy, right * SCALE + dx, bottom * SCALE + dy


def _is_shown(box: Box, wh: tuple[int, int]) -> bool:
    """Whether the middle of a box is on an image."""
    return 0 <= (box[0] + box[2]) / 2 < wh[0] and 0 <= (box[1] + box[3]) / 2 < wh[1]
