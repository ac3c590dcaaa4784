"""The remote framebuffer protocol, its tiles, and keys: pure parts of a live view."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dart_server.dashboard import rfb, tiles
from dart_server.dashboard.control import InputTranslator, coalesce
from dart_server.dashboard.keysyms import key_name

SET_FORMAT = b"\0\0\0\0" + rfb.PixelFormat().packed()
ENCODINGS = struct.pack(">BxH3i", 2, 3, 7, 0, -24)
UPDATE = struct.pack(">BBHHHH", 3, 1, 0, 0, 10, 10)
KEY = struct.pack(">BBxxI", 4, 1, 0x61)
POINTER = struct.pack(">BBHH", 5, 1, 30, 40)
CUT = struct.pack(">Bxxxi", 6, 5) + b"words"
ALL = SET_FORMAT + ENCODINGS + UPDATE + KEY + CUT + POINTER


def greeted() -> rfb.ViewerReader:
    reader = rfb.ViewerReader()
    assert reader.feed_handshake(rfb.VERSION) == [bytes([1, 1])]
    assert reader.feed_handshake(b"\x01") == [b"\0\0\0\0"]
    assert reader.feed_handshake(b"\x01") == []
    assert reader.handshake_done
    return reader


@given(st.integers(1, 40))
def test_messages_are_understood_in_any_pieces(size: int) -> None:
    reader, found = greeted(), []
    for begin in range(0, len(ALL), size):
        found += list(reader.feed(ALL[begin : begin + size]))
    assert found == [
        rfb.PixelFormat(),
        rfb.SetEncodings((7, 0, -24)),
        rfb.UpdateRequest(True),
        rfb.KeyInput(True, 0x61),
        rfb.PointerInput(1, 30, 40),
    ]
    assert found[1].quality == 86


@pytest.mark.parametrize("begin", [b"RFB 003.003\n", rfb.VERSION + b"\x02"])
def test_another_greeting_is_refused(begin: bytes) -> None:
    with pytest.raises(rfb.ProtocolError):
        rfb.ViewerReader().feed_handshake(begin)


@pytest.mark.parametrize(
    "said",
    [
        bytes([99]),
        struct.pack(">BxH", 2, 5000),
        struct.pack(">Bxxxi", 6, 2**30),
        b"\0\0\0\0" + struct.pack(">BBBBHHHBBB3x", 16, 16, 0, 1, 31, 63, 31, 11, 5, 0),
        b"\0\0\0\0" + struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 8, 8, 0),
    ],
)
def test_what_is_not_the_protocol_ends_the_view(said: bytes) -> None:
    with pytest.raises(rfb.ProtocolError):
        list(greeted().feed(said))


@given(st.binary(max_size=400))
def test_noise_is_understood_or_refused_and_nothing_else(noise: bytes) -> None:
    reader = greeted()
    try:
        found = list(reader.feed(noise))
    except rfb.ProtocolError:
        return
    assert len(found) <= len(noise)


@pytest.mark.parametrize("size", [1, 127, 128, 16383, 16384, 300_000])
def test_a_tight_jpeg_has_its_length_before_it(size: int) -> None:
    data = bytes(size)
    packed = rfb.tight_jpeg(data)
    assert packed[0] == 0x90
    length, used = 0, 0
    for used, byte in enumerate(packed[1:4]):
        length |= (byte & (0x7F if used < 2 else 0xFF)) << 7 * used
        if used < 2 and not byte & 0x80:
            break
    assert length == size
    assert packed[2 + used :] == data
    with pytest.raises(ValueError, match="does not fit"):
        rfb.tight_jpeg(bytes(2**22))


@given(
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.lists(st.tuples(st.integers(0, 299), st.integers(0, 299)), max_size=6),
)
def test_every_changed_pixel_is_in_one_box_and_boxes_do_not_overlap(
    size: tuple[int, int], points: list[tuple[int, int]]
) -> None:
    before = np.zeros((size[1], size[0], 3), np.uint8)
    after = before.copy()
    touched = [(x % size[0], y % size[1]) for x, y in points]
    for x, y in touched:
        after[y, x] = (0, 7, 0)
    covered = np.zeros(before.shape[:2], int)
    for left, top, right, bottom in tiles.changed_boxes(before, after):
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]
        covered[top:bottom, left:right] += 1
        assert any(left <= x < right and top <= y < bottom for x, y in touched)
    assert covered.max(initial=0) <= 1
    assert all(covered[y, x] == 1 for x, y in touched)


def jpeg_of(pixels: tiles.Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def test_a_small_change_is_a_small_update_and_a_large_one_the_picture_itself() -> None:
    before = np.full((480, 640, 3), 200, np.uint8)
    after = before.copy()
    after[100:110, 100:110] = (255, 0, 0)
    (small,) = tiles.update_rectangles(before, after, b"", rfb.PixelFormat(), 80)
    assert (small.x, small.y, small.width, small.height, small.encoding) == (64, 64, 64, 64, rfb.Encoding.TIGHT)
    whole = jpeg_of(after)
    (large,) = tiles.update_rectangles(None, after, whole, rfb.PixelFormat(), 80)
    assert (large.x, large.y, large.width, large.height) == (0, 0, 640, 480)
    assert large.data == rfb.tight_jpeg(whole)
    assert tiles.update_rectangles(after, after, whole, rfb.PixelFormat(), 80) == []
    assert len(rfb.framebuffer_update([small])) == 4 + 12 + len(small.data)


def test_plain_pixels_follow_the_viewers_format() -> None:
    pixels = np.array([[[1, 2, 3]]], np.uint8)
    (part,) = tiles.update_rectangles(None, pixels, b"", rfb.PixelFormat(0, 8, 16), None)
    assert part.data == bytes([1, 2, 3, 0])
    (part,) = tiles.update_rectangles(None, pixels, b"", rfb.PixelFormat(16, 8, 0), None)
    assert part.data == bytes([3, 2, 1, 0])


@pytest.mark.parametrize(
    ("keysym", "name"),
    [
        (0x61, "a"), (0x41, "A"), (0x20, " "), (0xE9, "é"), (0xFF0D, "enter"), (0xFFE1, "shiftleft"), (0xFFC1, "f4"),
        (0x010020AC, "€"), (0x20AC, "€"), (0x06C1, "а"), (0x07E1, "α"), (0x07F3, "ς"), (0x01B1, "ą"), (0x0101F600, "😀"),
        (0xFF7E, None), (0x0100D800, None), (0x01000085, None), (0, None),
    ],
)  # fmt: skip
def test_keysyms_are_the_guests_names(keysym: int, name: str | None) -> None:
    assert key_name(keysym) == name


def test_hands_turn_masks_into_presses_and_remember_what_is_down() -> None:
    hands = InputTranslator()
    assert hands.events(rfb.PointerInput(1, 5, 6)) == [{"type": "move", "x": 5, "y": 6}, {"type": "down", "button": 1}]
    assert hands.events(rfb.PointerInput(1, 7, 6)) == [{"type": "move", "x": 7, "y": 6}]
    assert hands.events(rfb.PointerInput(4, 7, 6))[1:] == [
        {"type": "up", "button": 1},
        {"type": "down", "button": 3},
    ]
    assert hands.events(rfb.PointerInput(4 | 16, 7, 6))[1:] == [{"type": "scroll", "dx": 0, "dy": -1}]
    assert hands.events(rfb.KeyInput(True, 0xFFE1)) == [{"type": "key_down", "key": "shiftleft"}]
    assert hands.events(rfb.KeyInput(True, 0xFFE1)) == []
    assert hands.events(rfb.KeyInput(True, 0x41)) == [{"type": "key_down", "key": "A"}]
    assert [event["type"] for event in hands.events(rfb.KeyInput(True, 0x41))] == ["key_up", "key_down"]
    assert hands.events(rfb.KeyInput(False, 0x42)) == []
    assert hands.release() == [
        {"type": "key_up", "key": "A"},
        {"type": "key_up", "key": "shiftleft"},
        {"type": "up", "button": 3},
    ]
    assert hands.release() == []


def test_moves_and_scrolls_in_a_row_are_one() -> None:
    moves = [{"type": "move", "x": x, "y": 1} for x in range(5)]
    press = {"type": "down", "button": 1}
    scroll = {"type": "scroll", "dx": 0, "dy": 1}
    assert coalesce([*moves, press, moves[0], scroll, scroll]) == [
        moves[-1],
        press,
        moves[0],
        {"type": "scroll", "dx": 0, "dy": 2},
    ]
