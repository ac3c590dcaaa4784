"""Drawn screens of coloured symbols, with their grounding samples.

Role: `draw` paints symbols on a themed background; `write_screens` writes a file of samples with such screens. Rule: the same seed gives
the same files. A symbol is a button without a text: its name is a colour and a shape, such as "Red disc", and a screen shows no name twice.
Layouts, sizes of screens and themes are arguments, so that those of a test set can be others than those of the training. Non-goals: how
real applications look.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from dart_agent.grounding.samples import GroundingSample, GroundingTarget, write_samples
from dart_envs.types import RgbImage

Rgb = tuple[int, int, int]
PixelBox = tuple[int, int, int, int]
"""(left, top, right, bottom) in pixels, right and bottom exclusive."""
COLOURS: Mapping[str, Rgb] = {
    "Red": (210, 40, 40),
    "Green": (40, 150, 60),
    "Blue": (40, 80, 210),
    "Orange": (240, 150, 30),
    "Purple": (140, 60, 170),
    "Black": (30, 30, 30),
}
SHAPES = ("disc", "square", "triangle", "cross", "ring", "bar")
NOVEL_SHAPES = ("arrow", "star", "moon")
"""Shapes that only held-out applications show."""
ROLE = "push button"
MARGIN_PX = 6
TRIES = 60

Layout = Callable[[random.Random, tuple[int, int], int, int], list[PixelBox]]
"""(random numbers, (width, height), number of symbols, their side) to boxes, fewer where they do not fit."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A button without a text."""

    colour: str
    shape: str

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Theme:
    """What the screens of an application look like beside their symbols."""

    background: Rgb
    bar: Rgb
    bar_px: int

    @classmethod
    def draw(cls, rng: random.Random) -> Theme:
        """Choose a light theme."""
        return cls(_light(rng), _light(rng), rng.randint(8, 16))


@dataclass(frozen=True, slots=True)
class ScreenSet:
    """Which screens are drawn.

    Attributes:
        layouts: Names of layouts.
        sizes_wh: (width, height) of screens in pixels.
        sides_px: Smallest and greatest side of a symbol.
        shapes: Shapes of symbols.
    """

    layouts: tuple[str, ...]
    sizes_wh: tuple[tuple[int, int], ...]
    sides_px: tuple[int, int] = (14, 30)
    shapes: tuple[str, ...] = SHAPES


def draw(wh: tuple[int, int], theme: Theme, placed: Sequence[tuple[Symbol, PixelBox]], boxed: bool = False) -> RgbImage:
    """Paint a screen.

    Args:
        wh: (width, height) in pixels.
        theme: Its look.
        placed: Symbols with their boxes.
        boxed: Whether a thin frame is around each symbol.

    Returns:
        The picture, uint8 [H, W, 3].
    """
    picture = Image.new("RGB", wh, theme.background)
    pen = ImageDraw.Draw(picture)
    pen.rectangle((0, 0, wh[0], theme.bar_px - 1), fill=theme.bar)
    for symbol, box in placed:
        if boxed:
            left, top, right, bottom = box
            pen.rectangle((left - 2, top - 2, right + 1, bottom + 1), outline=(150, 150, 150))
        _paint(pen, symbol, box)
    pixels: RgbImage = np.array(picture, dtype=np.uint8)
    return pixels


def write_screens(
    out: Path, name: str, count: int, which: ScreenSet, seed: str, *, symbols: tuple[int, int] = (5, 9)
) -> Path:
    """Write screens with a question about every symbol.

    Args:
        out: Folder; images go to a folder of its own in it.
        name: Name of the set.
        count: How many screens.
        which: What they look like.
        seed: Of everything random.
        symbols: Smallest and greatest number of symbols.

    Returns:
        The file of samples.
    """
    rng = random.Random(f"{seed}/{name}")
    (out / name).mkdir(parents=True, exist_ok=True)
    samples: list[GroundingSample] = []
    for number in range(count):
        layout, wh = rng.choice(which.layouts), rng.choice(which.sizes_wh)
        side = rng.randint(*which.sides_px)
        boxes = LAYOUTS[layout](rng, wh, rng.randint(*symbols), side)
        names = [Symbol(colour, shape) for colour in COLOURS for shape in which.shapes]
        placed = list(zip(rng.sample(names, len(boxes)), boxes, strict=True))
        image = f"{name}/{number}.png"
        Image.fromarray(draw(wh, Theme.draw(rng), placed, rng.random() < 0.5)).save(out / image, compress_level=1)
        samples += symbol_samples(placed, wh, image, f"{name}/{number}", group=layout)
    path = out / f"{name}.jsonl"
    write_samples(path, samples)
    return path


def symbol_samples(
    placed: Sequence[tuple[Symbol, PixelBox]], wh: tuple[int, int], image: str, screen_id: str, group: str
) -> list[GroundingSample]:
    """Ask about every symbol of a screen, as the explorer's rules ask by name.

    Args:
        placed: Symbols with their boxes.
        wh: (width, height) of the screen in pixels.
        image: Its file.
        screen_id: Which screen it is.
        group: Class of the screen.

    Returns:
        One sample per symbol.
    """
    return [
        GroundingSample(
            sample_id=f"{screen_id}/{index}",
            image=image,
            image_wh=wh,
            instruction=f'click "{symbol.name}"',
            targets=(GroundingTarget(boxes=(box,)),),
            application="drawn",
            role=ROLE,
            screen_id=screen_id,
            group=group,
            distractors=tuple((ROLE, other) for _, other in placed if other != box),
        )
        for index, (symbol, box) in enumerate(placed)
    ]


def _scattered(rng: random.Random, wh: tuple[int, int], count: int, side: int) -> list[PixelBox]:
    return _free(rng, (MARGIN_PX, 18, wh[0] - MARGIN_PX, wh[1] - MARGIN_PX), count, side)


def _top_row(rng: random.Random, wh: tuple[int, int], count: int, side: int) -> list[PixelBox]:
    """A tool bar and some symbols below it."""
    row = min(count, max(2, (wh[0] - 2 * MARGIN_PX) // (side + 8)), count - 1)
    left, top = rng.randint(MARGIN_PX, 20), rng.randint(18, 24)
    boxes = [_square(left + at * (side + 8), top, side) for at in range(row) if left + at * (side + 8) + side < wh[0]]
    return boxes + _free(rng, (MARGIN_PX, top + side + 8, wh[0] - MARGIN_PX, wh[1] - MARGIN_PX), count - row, side)


def _left_column(rng: random.Random, wh: tuple[int, int], count: int, side: int) -> list[PixelBox]:
    """A side bar and some symbols beside it."""
    left, top, step = rng.randint(MARGIN_PX, 16), rng.randint(18, 26), side + rng.randint(6, 12)
    rows = min(count, (wh[1] - top - MARGIN_PX - side) // step + 1)
    boxes = [_square(left, top + at * step, side) for at in range(rows)]
    return boxes + _free(rng, (left + side + 8, 18, wh[0] - MARGIN_PX, wh[1] - MARGIN_PX), count - rows, side)


def _grid(rng: random.Random, wh: tuple[int, int], count: int, side: int) -> list[PixelBox]:
    """Rows and columns, as icons on a desktop."""
    across, down = side + rng.randint(10, 30), side + rng.randint(8, 18)
    columns, rows = (wh[0] - 2 * MARGIN_PX) // across, (wh[1] - 20 - MARGIN_PX) // down
    left, top = rng.randint(MARGIN_PX, 18), rng.randint(18, 22)
    places = [(left + x * across, top + y * down) for y in range(rows) for x in range(columns)]
    fitting = [(x, y) for x, y in places if x + side <= wh[0] - 2 and y + side <= wh[1] - 2]
    return [_square(x, y, side) for x, y in rng.sample(fitting, min(count, len(fitting)))]


def _bottom_right(rng: random.Random, wh: tuple[int, int], count: int, side: int) -> list[PixelBox]:
    """A task bar and a side bar on the right."""
    row = min((count + 1) // 2, (wh[0] - 2 * MARGIN_PX - 2 * side) // (side + 8))
    top = wh[1] - side - rng.randint(4, 8)
    boxes = [_square(MARGIN_PX + at * (side + 8), top, side) for at in range(row)]
    left, step = wh[0] - side - rng.randint(4, 10), side + rng.randint(6, 10)
    rows = min(count - row, (top - 20 - side) // step + 1)
    return boxes + [_square(left, 20 + at * step, side) for at in range(rows)]


LAYOUTS: Mapping[str, Layout] = {
    "scattered": _scattered,
    "top_row": _top_row,
    "left_column": _left_column,
    "grid": _grid,
    "bottom_right": _bottom_right,
}


def _free(rng: random.Random, area: PixelBox, count: int, side: int) -> list[PixelBox]:
    """Squares that are apart."""
    left, top, right, bottom = area
    found: list[PixelBox] = []
    if right - left < side or bottom - top < side:
        return found
    for _ in range(TRIES):
        if len(found) == count:
            break
        new = _square(rng.randint(left, right - side), rng.randint(top, bottom - side), side)
        if all(_apart(new, old) for old in found):
            found.append(new)
    return found


def _apart(one: PixelBox, other: PixelBox, gap: int = 5) -> bool:
    return one[2] + gap <= other[0] or other[2] + gap <= one[0] or one[3] + gap <= other[1] or other[3] + gap <= one[1]


def _square(left: int, top: int, side: int) -> PixelBox:
    return left, top, left + side, top + side


def _light(rng: random.Random) -> Rgb:
    base = rng.randint(215, 250)
    red, green, blue = (min(255, base + rng.randint(-14, 14)) for _ in range(3))
    return red, green, blue


def _paint(pen: ImageDraw.ImageDraw, symbol: Symbol, box: PixelBox) -> None:
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1
    side, fill = right - left, COLOURS[symbol.colour]
    x, y = (left + right) / 2, (top + bottom) / 2
    thick = max(3, round(side / 4))
    match symbol.shape:
        case "disc":
            pen.ellipse((left, top, right, bottom), fill=fill)
        case "square":
            pen.rectangle((left, top, right, bottom), fill=fill)
        case "triangle":
            pen.polygon([(x, top), (right, bottom), (left, bottom)], fill=fill)
        case "cross":
            pen.rectangle((x - thick / 2, top, x + thick / 2, bottom), fill=fill)
            pen.rectangle((left, y - thick / 2, right, y + thick / 2), fill=fill)
        case "ring":
            pen.ellipse((left, top, right, bottom), outline=fill, width=thick)
        case "bar":
            pen.rectangle((left, y - thick / 2, right, y + thick / 2), fill=fill)
        case "arrow":
            pen.polygon([(left, top), (x, y), (left, bottom)], fill=fill)
            pen.polygon([(x, top), (right, y), (x, bottom)], fill=fill)
        case "star":
            pen.line((left, top, right, bottom), fill=fill, width=thick)
            pen.line((left, bottom, right, top), fill=fill, width=thick)
        case "moon":
            pen.pieslice((left, top, right, bottom), 40, 320, fill=fill)
        case _:
            raise ValueError(f"there is no shape {symbol.shape}")
