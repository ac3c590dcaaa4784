"""Pictures that tasks are about: drawn from a description, changed as a task asks, read back with limits.

Role: `draw`, `changed`, `decode`, `encode_png`, all pure, for setup and verdict alike. Rule: the same description gives the same bytes
on every machine (no compression, no anti-aliasing); what is decoded is small or `InvalidArtifact`. Pictures are uint8 RGB arrays
[H, W, 3]. Non-goals: verdicts (`dart_envs.evaluators.metrics.media`).
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from dart_envs.evaluators.artifacts import InvalidArtifact

RgbImage = NDArray[np.uint8]
Scene = Mapping[str, Any]
"""{size: [width, height], background: colour, shapes: [{kind: box | circle | triangle, colour, x, y, r}], border: pixels}: shapes
by the pixel of their centre and the half of their width; the border is white.
"""

MAX_PIXELS = 4_000_000
MAX_STORED_BLOCK_BYTES = 65_535
"""Most that one uncompressed block of a zlib stream holds."""
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
LUMA = np.array([0.299, 0.587, 0.114])


def draw_scene(scene: Scene) -> RgbImage:
    """The picture of a description."""
    width, height = scene["size"]
    picture = np.empty((height, width, 3), dtype=np.uint8)
    picture[:] = scene["background"]
    y, x = np.mgrid[0:height, 0:width]
    for shape in scene["shapes"]:
        dx, dy, r = x - shape["x"], y - shape["y"], shape["r"]
        inside = {
            "box": (abs(dx) <= r) & (abs(dy) <= r),
            "circle": dx * dx + dy * dy <= r * r,
            "triangle": (abs(dy) <= r) & (2 * abs(dx) <= dy + r),
        }[shape["kind"]]
        picture[inside] = shape["colour"]
    border = scene.get("border", 0)
    return np.pad(picture, ((border, border), (border, border), (0, 0)), constant_values=255) if border else picture


def _invert(picture: RgbImage) -> RgbImage:
    return 255 - picture


def _grey(weights: NDArray[np.float64]) -> Callable[[RgbImage], RgbImage]:
    def grey(picture: RgbImage) -> RgbImage:
        return _all_channels(np.rint(picture @ weights))

    return grey


def _linear_grey(picture: RgbImage) -> RgbImage:
    share = picture / 255.0
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4) @ LUMINANCE
    return _all_channels(
        np.rint(255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))
    )


def _all_channels(values: NDArray[Any]) -> RgbImage:
    return np.repeat(np.clip(values, 0, 255).astype(np.uint8)[:, :, None], 3, axis=2)


def _lightness(picture: RgbImage) -> RgbImage:
    return _all_channels((picture.max(axis=2).astype(int) + picture.min(axis=2)) // 2)


def _scale(picture: RgbImage, width: int, height: int) -> RgbImage:
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))


def _crop(picture: RgbImage, left: int, top: int, width: int, height: int) -> RgbImage:
    return picture[top : top + height, left : left + width]


def _threshold(picture: RgbImage, low: int) -> RgbImage:
    return _all_channels(np.where(picture.max(axis=2) >= low, 255, 0))


IMAGE_CHANGES: Mapping[str, Callable[..., RgbImage]] = {
    "flip_horizontally": lambda picture: picture[:, ::-1],
    "flip_vertically": lambda picture: picture[::-1],
    "turn_right": lambda picture: np.rot90(picture, -1),
    "turn_left": lambda picture: np.rot90(picture, 1),
    "turn_over": lambda picture: np.rot90(picture, 2),
    "invert": _invert,
    "grey_luma": _grey(LUMA),
    "grey_luminance": _grey(LUMINANCE),
    "grey_linear": _linear_grey,
    "grey_average": _grey(np.full(3, 1 / 3)),
    "grey_lightness": _lightness,
    "grey_value": lambda picture: _all_channels(picture.max(axis=2)),
    "scale": _scale,
    "crop": _crop,
    "threshold": _threshold,
}
"""What can be done to a picture; further arguments are numbers (pixels, or GIMP's own units)."""


def apply_changes(picture: RgbImage, changes: Sequence[Sequence[Any]]) -> RgbImage:
    """The picture after changes, each a name and its arguments. Raises KeyError for a name that is not there."""
    for name, *arguments in changes:
        picture = IMAGE_CHANGES[name](picture, *arguments)
    return picture


def decode_image(content: bytes) -> tuple[str, RgbImage]:
    """Format (PNG, JPEG, …) and picture of a file; what is transparent is seen on white.

    Raises InvalidArtifact where it is no picture, or one of more than `MAX_PIXELS`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")) as opened:
                if opened.width * opened.height > MAX_PIXELS:
                    raise InvalidArtifact(
                        f"a picture of {opened.width}x{opened.height} pixels, more than any answer needs"
                    )
                whole = opened.convert("RGBA")
                form = str(opened.format)
    except (UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidArtifact(f"no picture: {error}") from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as error:
        raise InvalidArtifact(f"a broken picture: {error}") from error
    paper = Image.new("RGBA", whole.size, (255, 255, 255, 255))
    return form, np.asarray(Image.alpha_composite(paper, whole).convert("RGB"))


def encode_png(picture: RgbImage) -> bytes:
    """A PNG file without compression: the same bytes whatever library there is."""
    height, width, _ = picture.shape
    raw = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(picture))
    blocks = [raw[start : start + MAX_STORED_BLOCK_BYTES] for start in range(0, len(raw), MAX_STORED_BLOCK_BYTES)]
    stream = b"\x78\x01" + b"".join(
        struct.pack("<BHH", index == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for index, block in enumerate(blocks)
    )
    stream += struct.pack(">I", zlib.adler32(raw))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", stream) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
