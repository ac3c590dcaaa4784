"""Pure functions on observations: resized images, mapped points, the accessibility tree as text.

Images are uint8 RGB `[H, W, 3]`, sizes are (width, height). Prompts are in `dart_agent.prompts.builder`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable

import numpy as np

from dart_envs.types import RgbImage
from dart_server.wire import A11yElement


def resize_image(image: RgbImage, to_wh: tuple[int, int]) -> RgbImage:
    """Resize an image with antialiasing.

    Args:
        image: uint8 `[H, W, 3]`.
        to_wh: (width, height) of the result.

    Returns:
        A new array, also where the size is already right.
    """
    if (image.shape[1], image.shape[0]) == to_wh:
        return image.copy()
    from PIL import Image

    return np.array(Image.fromarray(image).resize(to_wh, Image.Resampling.LANCZOS), dtype=np.uint8)


def encode_png(image: RgbImage) -> bytes:
    """Encode an image as PNG, fast rather than small.

    Args:
        image: uint8 `[H, W, 3]`.

    Returns:
        The content of a PNG file.
    """
    from PIL import Image

    Image.fromarray(image).save(file := io.BytesIO(), "PNG", compress_level=1)
    return file.getvalue()


def scale_point(xy: tuple[int, int], from_wh: tuple[int, int], to_wh: tuple[int, int]) -> tuple[int, int]:
    """Map a pixel to the pixel of another image size that holds its centre.

    Args:
        xy: Pixel of the first image.
        from_wh: (width, height) of the first image.
        to_wh: (width, height) of the second image.

    Returns:
        Pixel of the second image, clamped to it.
    """
    x, y = (int((xy[axis] + 0.5) * to_wh[axis] / from_wh[axis]) for axis in (0, 1))
    return min(max(x, 0), to_wh[0] - 1), min(max(y, 0), to_wh[1] - 1)


def a11y_to_text(elements: Iterable[A11yElement]) -> str:
    """Write an accessibility tree as one JSON object per line, without characters that UTF-8 cannot encode.

    Args:
        elements: The showing elements.

    Returns:
        The text.
    """
    lines = (json.dumps(element.model_dump(), ensure_ascii=False) for element in elements)
    return "\n".join(lines).encode("utf-8", "replace").decode("utf-8")
