"""Numbered marks on a screenshot, by which a model names elements.

Role: `draw_marks`. Rule: the picture keeps its size; a mark is a frame around the element and its number on a filled field at the corner.
Non-goals: the table of what the numbers are (`dart_agent.explore.model_chooser`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from dart_agent.grounding.samples import Box
from dart_envs.types import RgbImage

FRAME_RGB, LABEL_RGB = (220, 30, 30), (255, 255, 255)


def draw_marks(image: RgbImage, boxes: Sequence[Box | None]) -> RgbImage:
    """Draw the number of each box.

    Args:
        image: uint8 `[H, W, 3]`.
        boxes: In pixels; number 1 is the first. None has a number and no mark.

    Returns:
        A new picture, uint8 `[H, W, 3]`.
    """
    picture = Image.fromarray(image)
    draw = ImageDraw.Draw(picture)
    for number, box in enumerate(boxes, 1):
        if box is None:
            continue
        left, top, right, bottom = box
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=FRAME_RGB)
        label = draw.textbbox((left + 1, top), str(number))
        draw.rectangle((label[0] - 1, label[1] - 1, label[2] + 1, label[3] + 1), fill=FRAME_RGB)
        draw.text((left + 1, top), str(number), fill=LABEL_RGB)
    return np.array(picture, dtype=np.uint8)
