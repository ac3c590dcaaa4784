"""What the desktop benchmarks read from a picture: a number from a bar code, and the states of check boxes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.desktops.counter import BITS, WIDTH_PX
from benchmarks.desktops.frames import NotAFrame, read_number
from benchmarks.desktops.toggle import OFF, ON, boxes, checked
from dart_envs.types import RgbImage


def bar_code(number: int, inverse: int | None = None) -> RgbImage:
    image = np.full((1080, 1920, 3), 77, dtype=np.uint8)
    code = number | ((~number & 0xFFFFFFFF) if inverse is None else inverse) << 32
    row = 1080 // BITS
    for bit in range(BITS):
        image[bit * row : (bit + 1) * row, :WIDTH_PX] = 255 if code >> bit & 1 else 0
    return image


@pytest.mark.parametrize("number", [0, 1, 0x12345678, 0xFFFFFFFF])
def test_a_bar_code_is_read(number: int) -> None:
    assert read_number(bar_code(number)) == number


def test_a_frame_that_is_not_whole_or_not_lossless_is_refused() -> None:
    with pytest.raises(NotAFrame, match="disagree"):
        read_number(bar_code(5, inverse=~6 & 0xFFFFFFFF))
    for seam in (500, 512):
        torn = bar_code(0)
        torn[seam:] = bar_code(0xFFFFFFFF)[seam:]
        with pytest.raises(NotAFrame):
            read_number(torn)
    lossy = bar_code(5)
    lossy[40, 10, 1] ^= 1
    with pytest.raises(NotAFrame, match="whole"):
        read_number(lossy)
    with pytest.raises(NotAFrame):
        read_number(np.full((1080, 1920, 3), 77, dtype=np.uint8))


def test_boxes_are_found_whatever_their_state() -> None:
    image = np.full((300, 400, 3), 255, dtype=np.uint8)
    for number, colour in enumerate((OFF, ON, OFF)):
        image[20 + number * 60 : 60 + number * 60, 30:70] = colour
    image[290, 300] = ON
    found = boxes(image)
    assert found == [(49, 39), (49, 99), (49, 159)]
    assert [checked(image, box) for box in found] == [False, True, False]
