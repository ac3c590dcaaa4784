"""Pages full of texts that are cut out of recorded screens: what a vision tower learns to read from.

Role: `find_texts` finds the texts of a screen by its accessibility tree; `PageWriter` puts many of them at random places of a page. Rule: a
cutting holds a whole text, in the colours that it had; no cutting covers another one; what is on a page is known. A dialog shows a few
words, always at its own places; a page shows many, anywhere, so that one image teaches as much as several screens.
Non-goals: learning (`dart_train.warmup.reading`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from dart_envs.tasks.screen_names import WINDOW_ROLES, lies_within
from dart_envs.types import RgbImage
from dart_server.wire import A11yElement
from dart_train.warmup.screens import AnnotatedScreen, name_elements

MAX_TEXT_CHARS = 16
MIN_CUTTINGS = 8
"""A text with fewer cuttings is not taught: too few of its places and colours are known."""
FRAME_PX = 5
"""Width of what may surround an element's text, such as the border of a button."""
INK_DIFFERENCE = 150
"""Sum over the channels by which a pixel of a text differs from what is behind it."""
MIN_INK_PX = 9
MARGIN_X_PX, MARGIN_Y_PX = 8, 5
TEXTS_PER_PAGE = (10, 20)
OTHER_FRACTION = 0.2
"""Fraction of the texts of a page that no instruction mentions, such as those of menus, where there are enough of both."""
PATCHES_PER_PAGE = (1, 4)
"""Rectangles of other colours behind the texts."""
PLACES_TRIED = 20


ScreenBox = tuple[int, int, int, int]
"""(x0, y0, x1, y1) in pixels, x1 and y1 exclusive."""


@dataclass(frozen=True, slots=True)
class PlacedText:
    """A text on an image.

    Attributes:
        text: The text.
        box: (x0, y0, x1, y1) of its ink in pixels, x1 and y1 exclusive.
        click_box: The element that the text names where that is beside the text, such as the box of a row; None: the text itself.
    """

    text: str
    box: ScreenBox
    click_box: ScreenBox | None = None

    def translate(self, dx: int, dy: int) -> PlacedText:
        """Move a text.

        Args:
            dx: Pixels to the right.
            dy: Pixels downwards.

        Returns:
            The text at its new place.
        """
        click_box = None if self.click_box is None else _translate(self.click_box, dx, dy)
        return PlacedText(self.text, _translate(self.box, dx, dy), click_box)


def find_texts(pixels: RgbImage, screen: AnnotatedScreen) -> list[PlacedText]:
    """Find the short texts that a screen shows: the names of elements that hold no other named element.

    Args:
        pixels: The screenshot, uint8 [H, W, 3].
        screen: Its labels.

    Returns:
        The texts with the boxes of their ink.
    """
    size = pixels.shape[1], pixels.shape[0]
    click_boxes = _boxes_by_text(screen)
    named = [element for element in screen.elements if element.name.strip() and element.role not in WINDOW_ROLES]
    found = []
    for element in named:
        if len(element.name) > MAX_TEXT_CHARS or any(_holds(element, other) for other in named):
            continue
        ink = _ink_box(pixels, element)
        if ink is not None:
            named_box = click_boxes.get(element.name)
            beside = named_box is not None and _on_screen(named_box, size) and not _covers(named_box, ink)
            found.append(PlacedText(element.name, ink, named_box if beside else None))
    return found


class PageWriter:
    """Writes pages with the texts of screens.

    Args:
        screens: Screenshots with their texts, all of one size.
        mentioned: Texts that instructions mention; pages show mostly these.

    Attributes:
        texts: The texts that pages show, in alphabetical order; empty where no text is frequent enough.
    """

    def __init__(
        self, screens: Iterable[tuple[RgbImage, Sequence[PlacedText]]], mentioned: Collection[str] = ()
    ) -> None:
        cuttings: dict[str, list[tuple[RgbImage, PlacedText]]] = defaultdict(list)
        self._shape: tuple[int, ...] = ()
        for pixels, texts in screens:
            self._shape = pixels.shape
            for text in texts:
                cuttings[text.text].append(_cut(pixels, text))
        self._cuttings = {text: cuttings[text] for text in sorted(cuttings) if len(cuttings[text]) >= MIN_CUTTINGS}
        self.texts = tuple(self._cuttings)
        self._mentioned = [text for text in self.texts if text in mentioned]
        self._others = [text for text in self.texts if text not in mentioned]

    def write(self, random: Random) -> tuple[RgbImage, list[PlacedText]]:
        """Write a page.

        Args:
            random: Source of randomness.

        Returns:
            The page, of the size of the screens, and the texts on it, each of them once.
        """
        height, width = self._shape[:2]
        page = np.empty(self._shape, np.uint8)
        page[:] = self._some_colour(random)
        for _ in range(random.randint(*PATCHES_PER_PAGE)):
            x, y = random.randrange(width), random.randrange(height)
            page[y : y + random.randint(1, height), x : x + random.randint(1, width)] = self._some_colour(random)
        taken: list[tuple[int, int, int, int]] = []
        placed = []
        for name in self._draw_texts(random):
            pixels, text = random.choice(self._cuttings[name])
            corner = _free_corner(pixels.shape, (width, height), taken, random)
            if corner is None:
                continue
            x, y = corner
            taken.append((x, y, x + pixels.shape[1], y + pixels.shape[0]))
            page[y : y + pixels.shape[0], x : x + pixels.shape[1]] = pixels
            placed.append(text.translate(x, y))
        return page, placed

    def _draw_texts(self, random: Random) -> list[str]:
        """The different texts of a page."""
        count = min(random.randint(*TEXTS_PER_PAGE), len(self.texts))
        wanted = sum(random.random() < OTHER_FRACTION for _ in range(count))
        others = min(max(wanted, count - len(self._mentioned)), len(self._others))
        drawn = random.sample(self._mentioned, count - others) + random.sample(self._others, others)
        return random.sample(drawn, count)

    def _some_colour(self, random: Random) -> np.ndarray:
        """The colour behind some text, uint8 [3]."""
        pixels, _ = random.choice(self._cuttings[random.choice(self.texts)])
        return np.asarray(pixels[0, 0], np.uint8)


def _cut(pixels: RgbImage, text: PlacedText) -> tuple[RgbImage, PlacedText]:
    """The pixels of a text with a margin, and of the element beside it that it names; and where in them both are."""
    x0, y0, x1, y1 = text.box
    left, top = max(0, x0 - MARGIN_X_PX), max(0, y0 - MARGIN_Y_PX)
    right, bottom = x1 + MARGIN_X_PX, y1 + MARGIN_Y_PX
    if text.click_box is not None:
        left, top = min(left, text.click_box[0]), min(top, text.click_box[1])
        right, bottom = max(right, text.click_box[2]), max(bottom, text.click_box[3])
    return pixels[top:bottom, left:right], text.translate(-left, -top)


def _translate(box: ScreenBox, dx: int, dy: int) -> ScreenBox:
    x0, y0, x1, y1 = box
    return x0 + dx, y0 + dy, x1 + dx, y1 + dy


def _boxes_by_text(screen: AnnotatedScreen) -> dict[str, ScreenBox]:
    """The boxes of the elements that the suite's instructions name by a text, where only one has this text."""
    found: dict[str, list[ScreenBox]] = defaultdict(list)
    for part in name_elements(screen):
        if part.by_text:
            element = part.element
            found[part.name].append((element.x, element.y, element.x + element.w, element.y + element.h))
    return {text: boxes[0] for text, boxes in found.items() if len(boxes) == 1}


def _on_screen(box: ScreenBox, screen_wh: tuple[int, int]) -> bool:
    return _covers((0, 0, *screen_wh), box)


def _covers(outer: ScreenBox, inner: ScreenBox) -> bool:
    return outer[0] <= inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2] and inner[3] <= outer[3]


def _free_corner(
    shape: tuple[int, ...], page_wh: tuple[int, int], taken: Sequence[tuple[int, int, int, int]], random: Random
) -> tuple[int, int] | None:
    """The upper left corner of a place where a cutting covers nothing; None where none was found."""
    h, w = shape[:2]
    for _ in range(PLACES_TRIED):
        x, y = random.randint(0, page_wh[0] - w), random.randint(0, page_wh[1] - h)
        if all(x + w <= left or right <= x or y + h <= top or bottom <= y for left, top, right, bottom in taken):
            return x, y
    return None


def _holds(outer: A11yElement, inner: A11yElement) -> bool:
    """Whether an element lies inside another one and is smaller."""
    return lies_within(inner, outer) and inner.w * inner.h < outer.w * outer.h


def _ink_box(pixels: RgbImage, element: A11yElement) -> tuple[int, int, int, int] | None:
    """The box of what stands out inside an element's frame; None where nothing does, or where the screen does not show all of it."""
    x0, y0 = element.x + FRAME_PX, element.y + FRAME_PX
    x1, y1 = element.x + element.w - FRAME_PX, element.y + element.h - FRAME_PX
    height, width = pixels.shape[:2]
    if element.x < 0 or element.y < 0 or element.x + element.w > width or element.y + element.h > height:
        return None
    if x0 >= x1 or y0 >= y1:
        return None
    inside = pixels[y0:y1, x0:x1].astype(np.int16)
    behind = np.median(inside.reshape(-1, 3), axis=0)
    rows, columns = np.nonzero(np.abs(inside - behind).sum(axis=2) > INK_DIFFERENCE)
    if len(rows) < MIN_INK_PX:
        return None
    return (
        x0 + int(columns.min()),
        y0 + int(rows.min()),
        x0 + int(columns.max()) + 1,
        y0 + int(rows.max()) + 1,
    )
