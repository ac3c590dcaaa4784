"""Neighbours, order and colours of elements.

Role: geometry and looks of boxes. Rule: what is close to a tie is no answer: a neighbour, a rank or a colour is given only where a person
would see the same one. Non-goals: sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from dart_agent.grounding.desktop_ground.screen import center
from dart_agent.grounding.samples import Box
from dart_envs.types import RgbImage

DIRECTIONS: Mapping[str, str] = {
    "right": "directly to the right of",
    "left": "directly to the left of",
    "below": "directly below",
    "above": "directly above",
}
FARTHEST_PX = 160
"""Largest gap between neighbours."""
ALIGNED = 0.6
"""Share of the smaller box's side that neighbours have in common, across the direction."""
TIE_PX = 6
"""Gaps, rows or columns that differ by less are the same to a reader."""
HUES: tuple[tuple[float, str], ...] = (
    (15, "red"),
    (42, "orange"),
    (68, "yellow"),
    (165, "green"),
    (200, "turquoise"),
    (260, "blue"),
    (300, "purple"),
    (340, "pink"),
    (360, "red"),
)
"""Upper ends of hues in degrees, with their names."""
COLOURED, NOT_COLOURED = 0.2, 0.04
"""Share of an element's pixels from which it has a colour, and up to which another one has not."""
_SATURATED, _BRIGHT = 0.45, 0.35


def gap(direction: str, anchor: Box, box: Box) -> float | None:
    """How far a box is from another one in a direction.

    Args:
        direction: One of `DIRECTIONS`: where the box is, seen from the anchor.
        anchor: The box that the direction starts from.
        box: The other one.

    Returns:
        Pixels between the two; None where the box is not there, not aligned, or too far away.
    """
    if direction in ("left", "above"):
        opposite = {"left": "right", "above": "below"}[direction]
        return gap(opposite, box, anchor)
    along, across = (0, 1) if direction == "right" else (1, 0)
    distance = box[along] - anchor[along + 2]
    common = min(anchor[across + 2], box[across + 2]) - max(anchor[across], box[across])
    smaller = min(anchor[across + 2] - anchor[across], box[across + 2] - box[across])
    if not -1 <= distance <= FARTHEST_PX or common < ALIGNED * smaller:
        return None
    return distance


def neighbour(direction: str, anchor: Box, boxes: Sequence[Box]) -> int | None:
    """The nearest box in a direction.

    Args:
        direction: One of `DIRECTIONS`.
        anchor: The box that the direction starts from.
        boxes: Boxes that may be meant, or lie between.

    Returns:
        Index of the nearest; None without one, or where the second is as near.
    """
    gaps = sorted(
        (distance, index)
        for index, box in enumerate(boxes)
        if box != anchor and (distance := gap(direction, anchor, box)) is not None
    )
    if not gaps or (len(gaps) > 1 and gaps[1][0] - gaps[0][0] < TIE_PX):
        return None
    return gaps[0][1]


def line_of(boxes: Sequence[Box]) -> tuple[str, list[int]] | None:
    """The order of boxes that stand in a row or in a column.

    Args:
        boxes: At least two.

    Returns:
        "row" or "column" with the indices from left to right or from top to bottom; None where they do not stand in one line.
    """
    for name, along, across in (("row", 0, 1), ("column", 1, 0)):
        middles = [center(box)[across] for box in boxes]
        order = sorted(range(len(boxes)), key=lambda index: boxes[index][along])
        apart = all(boxes[after][along] >= boxes[before][along + 2] - 1 for before, after in pairwise(order))
        if max(middles) - min(middles) < TIE_PX and apart:
            return name, order
    return None


def colour_shares(pixels: RgbImage, box: Box) -> dict[str, float]:
    """Which colours a part of the screen has.

    Args:
        pixels: The screen, uint8 [H, W, 3].
        box: The part.

    Returns:
        By name: the share of pixels that are saturated and have this hue.
    """
    left, top, right, bottom = (round(value) for value in box)
    part = pixels[top:bottom, left:right].reshape(-1, 3).astype(np.float64) / 255
    if not len(part):
        return {}
    high, low = part.max(axis=1), part.min(axis=1)
    spread = high - low
    saturated = (spread > _SATURATED * high) & (high > _BRIGHT)
    red, green, blue = part[saturated].T
    high, spread = high[saturated], spread[saturated]
    hue = np.where(
        high == red,
        (green - blue) / spread % 6,
        np.where(high == green, (blue - red) / spread + 2, (red - green) / spread + 4),
    )
    shares: dict[str, float] = {}
    begin = 0.0
    for end, name in HUES:
        inside = float(((hue * 60 >= begin) & (hue * 60 < end)).sum()) / len(part)
        shares[name] = shares.get(name, 0.0) + inside
        begin = end
    return shares


def is_plain(pixels: RgbImage, box: Box) -> bool:
    """Whether nothing is drawn in a part of the screen.

    Args:
        pixels: The screen, uint8 [H, W, 3].
        box: The part.

    Returns:
        True where all pixels have one colour.
    """
    left, top, right, bottom = (round(value) for value in box)
    part = pixels[top:bottom, left:right].reshape(-1, 3)
    return len(part) == 0 or bool((part == part[0]).all())
