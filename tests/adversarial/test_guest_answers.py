"""Planted attacks on the decoding of what a desktop sends: each is refused as `MalformedAnswer`, quickly and in little memory."""

from __future__ import annotations

import io
import json
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from dart_envs.farm.channel import decode_frame
from dart_server.wire import FrameSpec
from dart_server.wire.guest_answers import (
    JsonLimit,
    MalformedAnswer,
    check_draft,
    check_picture,
    parse_json,
    parse_object,
    split_frame,
)

MIB = 1024**2
LIMIT = JsonLimit(8 * MIB, depth=6, values=10_000)
SCREEN = (64, 48)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 400_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"[" * 7 + b"]" * 7 + b"}",
        b"[" + b"0," * 400_000 + b"0]",
        b"[" + b'"",' * 200_000 + b'""]',
        b'"\\\\" ' + b"[" * 400_000,
        b'{"' + b'\\"' * 20 + b'":' + b"[" * 400_000,
        b"1" * 5_000,
        b"NaN",
        b"[Infinity]",
        b'"\xff"',
        b"",
        b" " * (8 * MIB + 1),
    ],
)
def test_json_that_costs_more_than_it_is_worth_is_refused(text: bytes) -> None:
    tracemalloc.start()
    started_s = time.perf_counter()
    try:
        with pytest.raises(MalformedAnswer):
            parse_json(text, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text) + MIB
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started_s < 5.0


def test_long_texts_full_of_marks_are_read() -> None:
    text = '[{,:"\\' * 200_000
    assert parse_object(json.dumps({"stdout": text}).encode(), LIMIT) == {"stdout": text}
    assert parse_json(b"[" * 6 + b"]" * 6, LIMIT) == [[[[[[]]]]]]


def test_texts_can_be_encoded_again() -> None:
    assert parse_json(b'["\\ud800", {"\\uDFFF": "\\ud83d\\ude00"}]', LIMIT) == ["\ufffd", {"\ufffd": "\U0001f600"}]


def header(payload: bytes, **fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"seq": 3, "width": 64, "height": 48, "encoding": "raw", "settled": True, "settle_ms": 1.0}
    return {**told, "grab_ms": 1.0, "cursor": [1, 2], "nbytes": len(payload), **fields}


def decoded(payload: bytes, encoding: str = "raw", **fields: Any) -> Any:
    spec = FrameSpec.model_validate({"encoding": encoding})
    told = header(payload, **{"encoding": encoding, **fields})
    return decode_frame(told, memoryview(payload), spec, SCREEN, 3)[1]


def picture(encoding: str, size: tuple[int, int] = SCREEN, **options: Any) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", size, (200, 10, 10)).save(target, encoding, **options)
    return target.getvalue()


@pytest.mark.parametrize("encoding", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"progressive": True}], ids=["plain", "exact", "in scans"])
def test_honest_pictures_are_decoded(encoding: str, options: dict[str, Any]) -> None:
    assert decoded(picture(encoding, **options), encoding).shape == (48, 64, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"height": -1},
        {"width": 2**40},
        {"width": 64.0, "height": "48"},
        {"encoding": "png"},
        {"encoding": None},
        {"seq": 4},
        {"seq": True},
        {"cursor": [1]},
        {"cursor": [10**400, 0]},
        {"cursor": None},
        {"settled": "yes"},
        {"settle_ms": 1e999},
        {"grab_ms": -1},
        {"early": True},
        {"early": 1},
    ],
)
def test_a_frame_is_what_was_asked_for(fields: dict[str, Any]) -> None:
    raw = bytes(64 * 48 * 3)
    assert decoded(raw).shape == (48, 64, 3)
    with pytest.raises(MalformedAnswer):
        decode_frame(header(raw, **fields), memoryview(raw), FrameSpec(), SCREEN, 3)


@pytest.mark.parametrize("nbytes", [0, 1, 64 * 48 * 3 - 1, 64 * 48 * 3 + 1])
def test_raw_pixels_have_the_length_of_the_screen(nbytes: int) -> None:
    with pytest.raises(MalformedAnswer):
        decoded(bytes(nbytes))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def with_chunk(kind: bytes, content: bytes) -> bytes:
    whole = picture("png")
    return whole[:33] + chunk(kind, content) + whole[33:]


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\n(x) print\nshowpage\n"
HUGE_WEBP = b"RIFF\x1e\0\0\0WEBPVP8X\n\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2 + b"VP8L" + bytes(10)
PICTURE_ATTACKS: dict[str, tuple[str, bytes]] = {
    "PostScript": ("png", POSTSCRIPT),
    "another format": ("png", picture("bmp")),
    "JPEG for PNG": ("png", picture("jpeg")),
    "PNG for JPEG": ("jpeg", picture("png")),
    "another size": ("png", picture("png", (65, 48))),
    "a bomb": ("png", picture("png")[:16] + struct.pack(">II", 2**30, 2**30) + picture("png")[24:]),
    "texts that unpack": ("png", with_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(MIB)))),
    "a profile": ("png", with_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(MIB)))),
    "an animation": ("png", with_chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))),
    "cut off": ("png", picture("png")[:-30]),
    "no pixels": ("png", picture("png").replace(b"IDAT", b"IDAX")),
    "broken pixels": ("png", picture("png")[:45] + b"\xff" * 9 + picture("png")[54:]),
    "a thousand scans": ("jpeg", picture("jpeg") + b"\xff\xda" * 1_000),
    "JPEG without end": ("jpeg", picture("jpeg")[:40]),
    "JPEG of another size": ("jpeg", picture("jpeg", (640, 480))),
    "a huge canvas": ("webp", HUGE_WEBP),
    "WebP of another size": ("webp", picture("webp", (640, 480))),
    "an animated WebP": ("webp", picture("webp", save_all=True, append_images=[Image.new("RGB", SCREEN)])),
    "empty": ("png", b""),
}


@pytest.mark.parametrize(("encoding", "payload"), PICTURE_ATTACKS.values(), ids=PICTURE_ATTACKS)
def test_a_picture_has_the_format_and_the_size_that_were_asked_for(encoding: str, payload: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedAnswer):
            decoded(payload, encoding)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_no_decoder_sees_a_postscript_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object, **_named: object) -> None:
        raise AssertionError("a decoder was asked")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(MalformedAnswer, match="not a PNG"):
        decoded(POSTSCRIPT, "png")
    with pytest.raises(MalformedAnswer):
        check_picture(POSTSCRIPT, "jpeg", SCREEN)


def message(head: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(head)) + head + payload


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0\0\0",
        struct.pack(">I", 2**32 - 1) + b"{}",
        struct.pack(">I", 0),
        message(b"[]"),
        message(b"{" * 70_000),
        message(b'{"a":' * 10_000),
        message(b'{"nbytes": 5}', b"four"),
        message(b'{"nbytes": "4"}', b"four"),
        message(b" " * 70_000),
    ],
)
def test_what_is_no_frame_is_refused(sent: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        split_frame(sent)


@pytest.mark.parametrize(
    "head",
    [
        {"draft": False, "seq": 3, "nbytes": 0},
        {"draft": True, "seq": 4, "nbytes": 0},
        {"draft": True, "seq": 3, "nbytes": 0, "error": "host_fault"},
        {"draft": True, "seq": [3], "nbytes": 0},
        {"seq": 3, "nbytes": 0},
    ],
)
def test_a_draft_says_nothing_else(head: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        check_draft(message(json.dumps(head).encode()), 3)


@pytest.mark.parametrize("make", [bytes, bytearray], ids=["bytes", "bytearray"])
def test_a_draft_of_the_step_is_its_picture(make: Callable[[bytes], bytes | bytearray]) -> None:
    sent = make(message(b'{"draft": true, "seq": 3, "nbytes": 4}', b"four"))
    assert bytes(check_draft(sent, 3)) == b"four"
