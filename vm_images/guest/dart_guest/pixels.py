"""The X server's pixels as rows of RGB.

Role: turn four bytes a pixel (blue, green, red, unused) into three, in one pass. Rule: libyuv does it where it is installed, with the
processor's wide instructions and one fresh buffer; Pillow, which takes two passes and two buffers, does it elsewhere, byte for byte the
same. What costs is fresh memory, far more than the arithmetic. Non-goals: grabbing, files of pictures.
"""

from __future__ import annotations

import ctypes
from functools import cache

from PIL import Image


@cache
def libyuv() -> ctypes.CDLL | None:
    """The library with the one function that is used here; None where it is not installed."""
    try:
        library = ctypes.CDLL("libyuv.so.0")
        library.ARGBToRAW.argtypes = [
            ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ]  # fmt: skip
    except (OSError, AttributeError):
        return None
    return library


def picture(address: int, width: int, height: int) -> Image.Image:
    """The pixels at `address` as an RGB image of its own."""
    pixels = (ctypes.c_ubyte * (width * height * 4)).from_address(address)
    # Any buffer will do, whatever the annotation says; this one is read where it lies.
    return Image.frombuffer("RGB", (width, height), pixels, "raw", "BGRX", 0, 1)  # type: ignore[arg-type]


def rows(address: int, width: int, height: int) -> bytes | bytearray:
    """The pixels at `address` as `height` rows of `width` times red, green, blue."""
    library = libyuv()
    if library is None:
        return picture(address, width, height).tobytes()
    out = bytearray(width * height * 3)
    target = (ctypes.c_char * len(out)).from_buffer(out)
    # Its ARGB is a little-endian word, blue first; its RAW is red first.
    if library.ARGBToRAW(address, width * 4, ctypes.addressof(target), width * 3, width, height) != 0:
        return picture(address, width, height).tobytes()
    return out
