"""What changed between two screens, as rectangles, and those rectangles as a viewer can read them.

Rule: pure; exact (a changed pixel is always inside a rectangle); rectangles do not overlap. Arrays are uint8 [H, W, 3], RGB.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_server.dashboard.rfb import Encoding, PixelFormat, Rectangle, tight_jpeg
from dart_server.wire.guest_answers import MalformedAnswer, check_picture

Pixels: TypeAlias = NDArray[np.uint8]
TILE = 64
"""Width and height of what is compared, in pixels."""
FULL_UPDATE_SHARE = 0.5
"""Where more than this share of the screen changed, the picture is sent as it came."""
Box = tuple[int, int, int, int]


@contextmanager
def open_picture(file: bytes, encoding: str, size: tuple[int, int]) -> Iterator[Image.Image]:
    """A picture file from a desktop, of the format and the size (width, height) that were asked for.

    What its decoder raises inside the context becomes `MalformedAnswer`, too.
    """
    check_picture(file, encoding, size)
    try:
        with Image.open(io.BytesIO(file), formats=(encoding.upper(),)) as image:
            if image.size != size:
                raise MalformedAnswer(f"a picture of {image.size} pixels, not {size}")
            yield image
    except MalformedAnswer:
        raise
    except Exception as error:
        raise MalformedAnswer(f"a {encoding} picture that cannot be decoded: {error}") from error


def decode(jpeg: bytes, size: tuple[int, int]) -> Pixels:
    """The pixels of a picture of `size`; black where it cannot be decoded."""
    try:
        with open_picture(jpeg, "jpeg", size) as image:
            return np.asarray(image.convert("RGB"))
    except MalformedAnswer:
        return np.zeros((size[1], size[0], 3), np.uint8)


def changed_boxes(before: Pixels, after: Pixels) -> list[Box]:
    """(left, top, right, bottom) of what differs, by tiles: neighbours in a row are one box, equal rows grow into one."""
    height, width = after.shape[:2]
    if before.shape != after.shape:
        return [(0, 0, width, height)]
    edges = np.arange(0, width, TILE) * 3
    boxes: list[Box] = []
    above: dict[tuple[int, int], int] = {}
    for top in range(0, height, TILE):
        bottom = min(top + TILE, height)
        old, new = before[top:bottom].reshape(bottom - top, -1), after[top:bottom].reshape(bottom - top, -1)
        if np.array_equal(old, new):
            above = {}
            continue
        dirty = np.logical_or.reduceat((old != new).any(axis=0), edges)
        here: dict[tuple[int, int], int] = {}
        for left, right in _runs(dirty, width):
            grown = above.get((left, right))
            if grown is None:
                here[(left, right)] = len(boxes)
                boxes.append((left, top, right, bottom))
            else:
                here[(left, right)] = grown
                boxes[grown] = (left, boxes[grown][1], right, bottom)
        above = here
    return boxes


def _runs(dirty: NDArray[np.bool_], width: int) -> list[tuple[int, int]]:
    """(left, right) of each run of dirty tiles."""
    steps = np.flatnonzero(np.diff(np.concatenate(([False], dirty, [False]))))
    return [
        (int(begin) * TILE, min(int(end) * TILE, width)) for begin, end in zip(steps[::2], steps[1::2], strict=True)
    ]


def jpeg_rectangle(pixels: Pixels, box: Box, quality: int) -> Rectangle:
    """A part of the screen as JPEG in the Tight encoding."""
    left, top, right, bottom = box
    target = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[top:bottom, left:right])).save(
        target, "JPEG", quality=quality, subsampling=0
    )
    return Rectangle(left, top, right - left, bottom - top, Encoding.TIGHT, tight_jpeg(target.getvalue()))


def raw_rectangle(pixels: Pixels, box: Box, form: PixelFormat) -> Rectangle:
    """A part of the screen as plain pixels."""
    left, top, right, bottom = box
    part = pixels[top:bottom, left:right]
    words = np.zeros((*part.shape[:2], 4), np.uint8)
    for channel, shift in enumerate((form.red_shift, form.green_shift, form.blue_shift)):
        words[..., shift // 8] = part[..., channel]
    return Rectangle(left, top, right - left, bottom - top, Encoding.RAW, words.tobytes())


def update_rectangles(
    before: Pixels | None, after: Pixels, jpeg: bytes, form: PixelFormat, quality: int | None
) -> list[Rectangle]:
    """The rectangles that lead from one screen to the next; `jpeg` is the second one as it came, `quality` None asks for plain pixels."""
    height, width = after.shape[:2]
    whole: Box = (0, 0, width, height)
    boxes = [whole] if before is None else changed_boxes(before, after)
    if quality is None:
        return [raw_rectangle(after, box, form) for box in boxes]
    area = sum((right - left) * (bottom - top) for left, top, right, bottom in boxes)
    if area > FULL_UPDATE_SHARE * width * height:
        return [Rectangle(0, 0, width, height, Encoding.TIGHT, tight_jpeg(jpeg))]
    return [jpeg_rectangle(after, box, quality) for box in boxes]
