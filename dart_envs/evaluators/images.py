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
SRGB_PRIMARIES = ((0.4360, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141))
"""Red, green and blue of sRGB, adapted to D50, as the tags rXYZ, gXYZ and bXYZ of a profile have them (ICC.1, annex E; IEC 61966-2-1)."""
SRGB_CURVE = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
"""Parameters g, a, b, c, d of sRGB's curve (IEC 61966-2-1), function type 3 of ICC.1."""
PROFILE_TOLERANCE = 0.002
MAX_PROFILE_TAGS = 64
ORIENTATION_TAG = 0x0112
SRGB_GAMMA, GAMMA_TOLERANCE = 1 / 2.2, 0.01
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


def is_srgb_profile(profile: bytes) -> bool:
    """Whether a colour profile changes no colour: it has sRGB's primaries and curve, as parameters, and no table.

    Args:
        profile: The profile, as ICC.1 has it.

    Returns:
        Whether it is sRGB; False, too, for what cannot be read.
    """
    try:
        (count,) = struct.unpack_from(">I", profile, 128)
        entries = [
            struct.unpack_from(">4sII", profile, 132 + 12 * index) for index in range(min(count, MAX_PROFILE_TAGS))
        ]
        tags = {name: profile[offset : offset + nbytes] for name, offset, nbytes in entries}
        if len(tags) != count or any(name[:3] in (b"A2B", b"B2A", b"D2B", b"B2D") for name in tags):
            return False
        held = [_s15_fixed16(tags[name], 8, 3) for name in (b"rXYZ", b"gXYZ", b"bXYZ")]
        curves = [tags[name] for name in (b"rTRC", b"gTRC", b"bTRC")]
        held += [_s15_fixed16(curve, 12, 5) for curve in curves]
        parametric = all(curve[:4] == b"para" and curve[8:10] == b"\0\3" for curve in curves)
    except (struct.error, KeyError):
        return False
    wanted = [*SRGB_PRIMARIES, *[SRGB_CURVE] * 3]
    return parametric and all(
        np.allclose(one, other, atol=PROFILE_TOLERANCE) for one, other in zip(held, wanted, strict=True)
    )


def _s15_fixed16(content: bytes, offset: int, count: int) -> list[float]:
    """Numbers as ICC profiles write them: 16 bits before the point and 16 behind it."""
    return [number / 65_536 for number in struct.unpack_from(f">{count}i", content, offset)]


def _check_shown_as_stored(opened: Image.Image) -> None:
    """Raise InvalidArtifact where a viewer shows something else than the pixels."""
    if getattr(opened, "n_frames", 1) != 1:
        raise InvalidArtifact("a picture that moves")
    if opened.getexif().get(ORIENTATION_TAG, 1) != 1:
        raise InvalidArtifact("a picture that viewers turn")
    gamma = opened.info.get("gamma")
    if gamma is not None and abs(gamma - SRGB_GAMMA) > GAMMA_TOLERANCE:
        raise InvalidArtifact(f"a picture with a gamma of {gamma}")
    profile = opened.info.get("icc_profile")
    if profile and not is_srgb_profile(profile):
        raise InvalidArtifact("a picture with a colour profile of its own")


def decode_image(content: bytes) -> tuple[str, RgbImage]:
    """Format (PNG, JPEG, …) and picture of a file; what is transparent is seen on white.

    Raises InvalidArtifact where it is no picture, one of more than `MAX_PIXELS`, or one that a viewer shows in another way than its pixels
    are: turned, moving, or in other colours.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")) as opened:
                if opened.width * opened.height > MAX_PIXELS:
                    raise InvalidArtifact(
                        f"a picture of {opened.width}x{opened.height} pixels, more than any answer needs"
                    )
                _check_shown_as_stored(opened)
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
