"""A second look: the same question about the crop around the first answer.

Role: `zoom_in` asks again about the part of the image around the best point, enlarged, and maps the answer back. Rule: the crop keeps the
image's shape and is clipped into the image; the model sees it at the size of the whole image, so that each visual token covers less of the
screen. Source: two-step inference as in GUI-AIMA, arXiv 2511.00810. Non-goals: a trained choice of crops.
"""

from __future__ import annotations

from dart_agent.grounding.grounder import Grounder
from dart_agent.grounding.scoring import Point
from dart_envs.observations.transforms import resize_image
from dart_envs.types import RgbImage

ZOOM = 2.0


def zoom_box(image_wh: tuple[int, int], point: Point, zoom: float = ZOOM) -> tuple[int, int, int, int]:
    """The crop around a point, moved into the image.

    Args:
        image_wh: (width, height) of the image in pixels.
        point: The point, in pixels.
        zoom: How many times smaller each side of the crop is.

    Returns:
        (left, top, right, bottom) in whole pixels, right and bottom exclusive.
    """
    edges = []
    for at, size in zip(point, image_wh, strict=True):
        side = max(1, round(size / zoom))
        low = min(max(0, round(at - side / 2)), size - side)
        edges.append((low, low + side))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def zoom_in(grounder: Grounder, image: RgbImage, instruction: str, first: Point, zoom: float = ZOOM) -> Point:
    """Ask again about the part of an image around the first answer.

    Args:
        grounder: Asks the model.
        image: The image, uint8 [H, W, 3].
        instruction: What is asked; one point answers it.
        first: The answer about the whole image, in pixels.
        zoom: How many times smaller each side of the crop is.

    Returns:
        The second answer, in pixels of the whole image.
    """
    height, width = image.shape[:2]
    left, top, right, bottom = zoom_box((width, height), first, zoom)
    (answer,) = grounder.ask(resize_image(image[top:bottom, left:right], (width, height)), [instruction])
    ((x, y),) = answer.points
    return left + x * (right - left) / width, top + y * (bottom - top) / height
