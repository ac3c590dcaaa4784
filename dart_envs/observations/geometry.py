"""Between the screen, the picture that the model sees, and the numbers that it writes.

Role: sizes of model-input images and the mapping of points. Rule: pure functions of sizes; a point maps to the pixel that holds its
centre, so model → screen → model is the identity wherever the screen is not smaller than the picture. Non-goals: text (`uitars`), prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dart_envs.observations.transforms import resize_image, scale_point
from dart_envs.types import RgbImage

Coordinates = Literal["pixels", "thousandths"]
"""What a model writes: pixels of its own input image (Qwen2.5-VL, UI-TARS), or 0..1000 along each axis (Qwen3-VL)."""

_THOUSANDTHS = (1000, 1000)


def model_size(screen_wh: tuple[int, int], *, multiple: int, max_pixels: int) -> tuple[int, int]:
    """Width and height of the model's input: the screen's shape, both sides a multiple, at most `max_pixels` (never enlarged)."""
    width, height = screen_wh
    scale = min(1.0, (max_pixels / (width * height)) ** 0.5)
    sides = [max(multiple, int(side * scale + 1e-6) // multiple * multiple) for side in (width, height)]
    return sides[0], sides[1]


def to_model_image(screenshot: RgbImage, *, multiple: int, max_pixels: int) -> RgbImage:
    """The screenshot as the model gets it, uint8 [H, W, 3]. Its size is one that image processors leave as it is."""
    height, width = screenshot.shape[:2]
    return resize_image(screenshot, model_size((width, height), multiple=multiple, max_pixels=max_pixels))


@dataclass(frozen=True, slots=True)
class PointMap:
    """Maps points between what the model writes and screen pixels. Sizes are (width, height)."""

    model_wh: tuple[int, int]
    screen_wh: tuple[int, int]
    coordinates: Coordinates = "pixels"

    @property
    def coordinate_wh(self) -> tuple[int, int]:
        """Range of the numbers that the model writes, per axis."""
        return _THOUSANDTHS if self.coordinates == "thousandths" else self.model_wh

    def to_screen(self, x: float, y: float) -> tuple[int, int] | None:
        """Screen pixel of a written point; None when it is outside the picture. The far edge itself counts as inside."""
        width, height = self.coordinate_wh
        if not (0 <= x <= width and 0 <= y <= height):
            return None
        inside = min(int(x), width - 1), min(int(y), height - 1)
        return scale_point(inside, self.coordinate_wh, self.screen_wh)

    def to_model(self, x: int, y: int) -> tuple[int, int]:
        """What the model writes for a screen pixel."""
        return scale_point((x, y), self.screen_wh, self.coordinate_wh)
