"""Decoding of what a desktop sends: JSON, frames of the stepping channel, and the pictures in them.

Role: the one place where bytes from inside a desktop become values, for the farm and for its clients. Rule: a program inside the desktop
may have written every byte, so size, depth, number of values and pixels are checked before a parser sees them, and whatever is not what
the protocol says is `MalformedAnswer`, nothing else. Standard library only: who wants pixels opens what `check_picture` has passed.
Non-goals: reading from connections (`messages`, `dart_server.guest`), whose fault a malformed answer is (`dart_server.guest.access`,
`dart_envs.farm.lease`).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from dart_server.wire.desktop import FrameSpec

MIB = 1024**2
LENGTH_NBYTES = 4
"""Bytes of the length of a frame's header, big-endian."""
LARGEST_POINTER = 2**16
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_CHUNKS = frozenset(b"IHDR PLTE IDAT IEND tRNS gAMA cHRM sRGB sBIT bKGD pHYs tIME".split())
"""Chunks of a screen. Those with text, profiles or further pictures are left out: they unpack to more than they take."""
PNG_CHUNK_LIMIT = 65_536
JPEG_SCAN_LIMIT = 32
"""Scans of a JPEG file: each costs as much time as a whole picture."""


MALFORMED_CODE = "malformed_answer"


class MalformedAnswer(ValueError):
    """A desktop sent something that is not what the protocol says, or more of it than is read. `code` is its name in the guest protocol."""

    code = MALFORMED_CODE


@dataclass(frozen=True, slots=True)
class JsonLimit:
    """How much of a JSON text is parsed.

    Attributes:
        nbytes: Bytes of the text.
        depth: Objects and arrays inside each other.
        values: Values and keys in all.
    """

    nbytes: int
    depth: int = 8
    values: int = 1_000


HEADER_LIMIT = JsonLimit(64 * 1024, depth=4, values=256)
"""Header of a frame."""


def parse_json(content: bytes | bytearray | memoryview, limit: JsonLimit) -> Any:
    """Parse a JSON text that a desktop sent.

    Args:
        content: The text as UTF-8.
        limit: How much of it is parsed.

    Returns:
        The value; its texts can be encoded, halves of surrogate pairs are replaced.

    Raises:
        MalformedAnswer: If the text is beyond the limit or is not JSON.
    """
    if len(content) > limit.nbytes:
        raise MalformedAnswer(f"a JSON text of {len(content)} bytes, more than {limit.nbytes}")
    text = bytes(content)
    _check_shape(text, limit)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(f"not JSON: {error}") from error
    return _without_surrogates(value) if b"\\ud" in text or b"\\uD" in text else value


def parse_object(content: bytes | bytearray | memoryview, limit: JsonLimit) -> dict[str, Any]:
    """Parse a JSON object; as `parse_json`."""
    value = parse_json(content, limit)
    if not isinstance(value, dict):
        raise MalformedAnswer("not a JSON object")
    return value


def _check_shape(text: bytes, limit: JsonLimit) -> None:
    """Raise `MalformedAnswer` for too much nesting or too many values: first counted with what is inside texts, then without."""
    if _values(text) <= limit.values and text.count(b"[") + text.count(b"{") <= limit.depth:
        return
    # Pairs of backslashes first: then a backslash before a quote is one that escapes it.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    if unescaped.count(b'"') > 2 * limit.values:
        raise MalformedAnswer(f"more than {limit.values} values")
    outside = b"".join(unescaped.split(b'"')[::2])
    if _values(outside) > limit.values:
        raise MalformedAnswer(f"more than {limit.values} values")
    depth = 0
    for mark in outside.translate(None, delete=_NO_BRACKETS):
        if mark in b"[{":
            depth += 1
            if depth > limit.depth:
                raise MalformedAnswer(f"nested deeper than {limit.depth} levels")
        else:
            depth -= 1
            if depth < 0:
                return  # no JSON: the parser ends here, too


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _values(text: bytes) -> int:
    return text.count(b",") + text.count(b":") + text.count(b"[") + text.count(b"{")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_without_surrogates(one) for one in value]
        case dict():
            return {_without_surrogates(key): _without_surrogates(one) for key, one in value.items()}
        case _:
            return value


def split_frame(message: bytes | bytearray) -> tuple[dict[str, Any], memoryview]:
    """Split one binary message into its header and payload.

    Args:
        message: Four bytes of the header's length (big-endian), the header as JSON, and the payload.

    Returns:
        The header, and the payload as a view of the message.

    Raises:
        MalformedAnswer: If the message is not a frame.
    """
    end = LENGTH_NBYTES + int.from_bytes(message[:LENGTH_NBYTES], "big")
    if len(message) < end or end == LENGTH_NBYTES:
        raise MalformedAnswer("the frame is shorter than its header says")
    header = parse_object(memoryview(message)[LENGTH_NBYTES:end], HEADER_LIMIT)
    payload = memoryview(message)[end:]
    if len(payload) != header.get("nbytes", 0):
        raise MalformedAnswer("the frame's payload is not as long as its header says")
    return header, payload


def check_draft(message: bytes | bytearray, seq: int) -> memoryview:
    """Check the message with the picture that comes ahead of a frame.

    Args:
        message: The message.
        seq: Number of the step.

    Returns:
        The picture.

    Raises:
        MalformedAnswer: If it is anything but a draft of this step.
    """
    header, payload = split_frame(message)
    if header.keys() != {"draft", "seq", "nbytes"} or header["draft"] is not True or not _is_step(header["seq"], seq):
        raise MalformedAnswer("a message ahead of the frame is not a draft of this step")
    return payload


def check_frame(
    header: Mapping[str, Any],
    payload: memoryview,
    *,
    spec: FrameSpec,
    screen: tuple[int, int],
    seq: int,
    draft: memoryview | None = None,
) -> memoryview:
    """Check that a frame is what the step asked for; the pixels themselves are not looked at.

    Args:
        header: The frame's header.
        payload: The frame's payload.
        spec: What was asked for.
        screen: (width, height) of the screen in pixels.
        seq: Number of the step.
        draft: The picture that came ahead, if one came.

    Returns:
        The picture: the payload, or the draft where the frame says that it is the one.

    Raises:
        MalformedAnswer: If size, encoding, length or number are others.
    """
    if not _is_step(header.get("seq"), seq):
        raise MalformedAnswer("the frame is not of this step")
    if (header.get("width"), header.get("height")) != screen or isinstance(header["width"], bool):
        told = f"{_brief(header.get('width'))}x{_brief(header.get('height'))}"
        raise MalformedAnswer(f"a frame of {told} pixels, not {screen[0]}x{screen[1]}")
    if header.get("encoding") != spec.encoding:
        raise MalformedAnswer(f"a frame encoded as {_brief(header.get('encoding'))}, not {spec.encoding}")
    _check_fields(header)
    picture = payload
    if header.get("early", False) is not False:
        if header["early"] is not True or draft is None or len(payload):
            raise MalformedAnswer("the frame refers to a picture that did not come ahead of it")
        picture = draft
    expected = {"raw": screen[0] * screen[1] * 3, "none": 0}.get(spec.encoding)
    if expected is not None and len(picture) != expected:
        raise MalformedAnswer(f"a {spec.encoding} picture of {len(picture)} bytes, not {expected}")
    return picture


def _check_fields(header: Mapping[str, Any]) -> None:
    pointer = header.get("cursor")
    if not (isinstance(pointer, list) and len(pointer) == 2 and all(map(_is_coordinate, pointer))):
        raise MalformedAnswer("the frame's pointer is no position")
    if not isinstance(header.get("settled"), bool):
        raise MalformedAnswer("the frame does not say whether the screen settled")
    for name in ("settle_ms", "grab_ms"):
        value = header.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise MalformedAnswer(f"the frame's {name} is no duration")


def _is_coordinate(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_POINTER


def _is_step(value: object, seq: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == seq


def _brief(value: object) -> str:
    """A value of unknown size, for a message."""
    return str(value)[:32] if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**64) else "?"


def check_picture(payload: bytes | bytearray | memoryview, encoding: str, screen: tuple[int, int]) -> None:
    """Check that a picture file has the format and the size that were asked for, before a decoder sees it.

    Args:
        payload: The file.
        encoding: `png`, `jpeg` or `webp`.
        screen: (width, height) in pixels.

    Raises:
        MalformedAnswer: If it is another format or size, or has parts that a screen does not need.
    """
    data = bytes(payload)
    try:
        size = {"png": _png_size, "jpeg": _jpeg_size, "webp": _webp_size}[encoding](data)
    except (struct.error, IndexError) as error:
        raise MalformedAnswer(f"a {encoding} picture that ends too early") from error
    if size != screen:
        raise MalformedAnswer(f"a picture of {size[0]}x{size[1]} pixels, not {screen[0]}x{screen[1]}")


def _png_size(data: bytes) -> tuple[int, int]:
    if not data.startswith(PNG_SIGNATURE) or data[12:16] != b"IHDR":
        raise MalformedAnswer("not a PNG picture")
    place, kind, chunks = len(PNG_SIGNATURE), b"", 0
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, place)
        chunks += 1
        if kind not in PNG_CHUNKS or chunks > PNG_CHUNK_LIMIT:
            raise MalformedAnswer("a PNG picture with parts that no screen has")
        place += 12 + length
    return cast(tuple[int, int], struct.unpack_from(">II", data, 16))


def _jpeg_size(data: bytes) -> tuple[int, int]:
    if not data.startswith(b"\xff\xd8\xff"):
        raise MalformedAnswer("not a JPEG picture")
    if data.count(b"\xff\xda") > JPEG_SCAN_LIMIT:
        raise MalformedAnswer(f"a JPEG picture with more than {JPEG_SCAN_LIMIT} scans")
    place = 2
    while True:
        if data[place] != 0xFF:
            raise MalformedAnswer("a broken JPEG picture")
        kind = data[place + 1]
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, place + 5)
            return width, height
        if kind in (0xD9, 0xDA):
            raise MalformedAnswer("a JPEG picture without a size")
        (length,) = struct.unpack_from(">H", data, place + 2)
        if length < 2:
            raise MalformedAnswer("a broken JPEG picture")
        place += 2 + length


def _webp_size(data: bytes) -> tuple[int, int]:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        raise MalformedAnswer("not a WebP picture")
    if data[12:16] == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if data[12:16] == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    raise MalformedAnswer("a WebP picture with parts that no screen has")
