"""Sizes of model-input images, and the mapping of points between screen, image and the numbers that a model writes.

This module has pure functions of sizes. A point maps to the pixel that holds its centre, so model → screen → model is
the identity wherever the screen is not smaller than the image. Text is in `dart_envs.action_formats`, prompts are in
`dart_agent.prompts`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dart_envs.observations.transforms import resize_image, scale_point
from dart_envs.types import RgbImage

Coordinates = Literal["pixels", "thousandths"]
"""What a model writes: pixels of its own input image (Qwen2.5-VL, UI-TARS), or 0..1000 along each axis (Qwen3-VL)."""

MAX_ASPECT = 200
_THOUSANDTHS = (1000, 1000)


def model_size(screen_wh: tuple[int, int], *, multiple: int, max_pixels: int) -> tuple[int, int]:
    """Return the size of the model's input: the shape of the screen, never enlarged.

    Args:
        screen_wh: (width, height) of the screen.
        multiple: Both sides are a multiple of this number.
        max_pixels: Limit of width times height.

    Returns:
        (width, height).
    """
    width, height = screen_wh
    scale = min(1.0, (max_pixels / (width * height)) ** 0.5)
    sides = [max(multiple, int(side * scale + 1e-6) // multiple * multiple) for side in (width, height)]
    return sides[0], sides[1]


def to_model_image(screenshot: RgbImage, *, multiple: int, max_pixels: int) -> RgbImage:
    """Resize a screenshot to the model's input, in a size that image processors leave as it is.

    Args:
        screenshot: uint8 `[H, W, 3]`.
        multiple: As `model_size`.
        max_pixels: As `model_size`.

    Returns:
        uint8 `[H', W', 3]`.
    """
    height, width = screenshot.shape[:2]
    return resize_image(screenshot, model_size((width, height), multiple=multiple, max_pixels=max_pixels))


def smart_size(screen_wh: tuple[int, int], *, multiple: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return the size to which the image processors of Qwen2.5-VL and Qwen3-VL resize a picture.

    Each side becomes the nearest multiple. A picture that is then too large or too small is scaled by the square root of the
    ratio of the areas, with sides rounded down or up. A picture may grow, other than with `model_size`.
    Source: `smart_resize` of the processors of these models.

    Args:
        screen_wh: (width, height) of the screen.
        multiple: Both sides are a multiple of this number: 28 for Qwen2.5-VL, 32 for Qwen3-VL.
        min_pixels: Least width times height.
        max_pixels: Limit of width times height.

    Returns:
        (width, height). The size of such a picture is its own.

    Raises:
        ValueError: If one side is more than 200 times the other.
    """
    if max(screen_wh) > MAX_ASPECT * min(screen_wh):
        raise ValueError(f"a picture of {screen_wh[0]}x{screen_wh[1]} pixels is too narrow: at most {MAX_ASPECT} to 1")
    width, height = (max(multiple, round(side / multiple) * multiple) for side in screen_wh)
    area = screen_wh[0] * screen_wh[1]
    if width * height > max_pixels:
        shrink = math.sqrt(area / max_pixels)
        width, height = (max(multiple, math.floor(side / shrink / multiple) * multiple) for side in screen_wh)
    elif width * height < min_pixels:
        grow = math.sqrt(min_pixels / area)
        width, height = (math.ceil(side * grow / multiple) * multiple for side in screen_wh)
    return width, height


@dataclass(frozen=True, slots=True)
class PointMap:
    """Maps points between what the model writes and screen pixels.

    Attributes:
        model_wh: (width, height) of the model's input.
        screen_wh: (width, height) of the screen.
        coordinates: What the model writes: `pixels` or `thousandths`.
    """

    model_wh: tuple[int, int]
    screen_wh: tuple[int, int]
    coordinates: Coordinates = "pixels"

    @property
    def coordinate_wh(self) -> tuple[int, int]:
        """Range of the numbers that the model writes, on each axis."""
        return _THOUSANDTHS if self.coordinates == "thousandths" else self.model_wh

    def to_screen(self, x: float, y: float) -> tuple[int, int] | None:
        """Map a written point to the screen.

        Args:
            x: As the model writes it.
            y: As the model writes it.

        Returns:
            (x, y) in screen pixels, or None when the point is outside the image. The far edge counts as inside.
        """
        width, height = self.coordinate_wh
        if not (0 <= x <= width and 0 <= y <= height):
            return None
        inside = min(int(x), width - 1), min(int(y), height - 1)
        return scale_point(inside, self.coordinate_wh, self.screen_wh)

    def to_model(self, x: int, y: int) -> tuple[int, int]:
        """Map a screen pixel to what the model writes.

        Args:
            x: Screen pixel.
            y: Screen pixel.

        Returns:
            (x, y) as the model writes it.
        """
        return scale_point((x, y), self.screen_wh, self.coordinate_wh)

    def on_grid(self, x: float, y: float, step: int) -> tuple[int, int]:
        """Move a written point to the middle of its cell of a grid.

        Args:
            x: As the model writes it.
            y: As the model writes it.
            step: Side of a cell in the numbers that the model writes; 1 leaves a point on the image where it is.

        Returns:
            (x, y) as the model writes it; the point of the image nearest to (x, y) decides on the cell.
        """
        width, height = self.coordinate_wh
        across, down = (min(max(int(value), 0), limit - 1) for value, limit in ((x, width), (y, height)))
        return across // step * step + step // 2, down // step * step + step // 2
