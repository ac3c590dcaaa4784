"""The remote framebuffer protocol (RFC 6143), as far as a live view needs it: bytes in, messages out, and back.

Rule: pure; every length is checked before it is believed, and what the protocol does not have ends the view (`ProtocolError`).
Non-goals: passwords (the farm has asked who it is before), the clipboard, screens that change their size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

VERSION = b"RFB 003.008\n"
NO_SECURITY = 1
MAX_ENCODINGS = 1024
MAX_CUT_TEXT_BYTES = 256 * 1024


class Encoding(IntEnum):
    """Encodings that a view may be sent in."""

    RAW = 0
    TIGHT = 7


class ProtocolError(Exception):
    """The viewer broke the protocol."""


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """32 bits per pixel, 8 per colour, least significant byte first; shifts in bits."""

    red_shift: int = 16
    green_shift: int = 8
    blue_shift: int = 0

    def packed(self) -> bytes:
        return struct.pack(
            ">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, self.red_shift, self.green_shift, self.blue_shift
        )


@dataclass(frozen=True, slots=True)
class SetEncodings:
    """What the viewer can read, in the order that it likes them."""

    encodings: tuple[int, ...]

    @property
    def quality(self) -> int | None:
        """JPEG quality in percent, None when the viewer does not want JPEG."""
        if Encoding.TIGHT not in self.encodings:
            return None
        levels = [level + 32 for level in self.encodings if -32 <= level <= -23]
        return 30 + 7 * levels[0] if levels else None


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """The viewer wants a picture: what changed since the last, or all of it."""

    incremental: bool


@dataclass(frozen=True, slots=True)
class KeyInput:
    """A key went down or up; `keysym` is X's."""

    down: bool
    keysym: int


@dataclass(frozen=True, slots=True)
class PointerInput:
    """The pointer is at (x, y) with these buttons down; bit 0 is the left one, bits 3 to 6 the wheel up, down, left, right."""

    buttons: int
    x: int
    y: int


Message = PixelFormat | SetEncodings | UpdateRequest | KeyInput | PointerInput


class ViewerReader:
    """Understands what a viewer says, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._handshake_steps = 0
        """Steps of the handshake that are done: version, security, init."""

    @property
    def handshake_done(self) -> bool:
        """Whether the handshake is over."""
        return self._handshake_steps == 3

    def feed_handshake(self, data: bytes) -> list[bytes]:
        """Feed bytes of the handshake; the answers that are due, of which the last, `ServerInit`, is the caller's. Raises
        `ProtocolError`."""
        self._unread += data
        answers: list[bytes] = []
        while not self.handshake_done:
            if self._handshake_steps == 0 and len(self._unread) >= len(VERSION):
                if bytes(self._unread[: len(VERSION)]) != VERSION:
                    raise ProtocolError("only version 3.8 of the protocol is spoken here")
                del self._unread[: len(VERSION)]
                answers.append(bytes([1, NO_SECURITY]))
            elif self._handshake_steps == 1 and self._unread:
                if self._unread.pop(0) != NO_SECURITY:
                    raise ProtocolError("an unknown kind of security was chosen")
                answers.append(struct.pack(">I", 0))
            elif self._handshake_steps == 2 and self._unread:
                self._unread.pop(0)
            else:
                break
            self._handshake_steps += 1
        return answers

    def feed(self, data: bytes) -> Iterator[Message]:
        """Feed bytes after the handshake; the messages that are complete. Raises `ProtocolError`."""
        self._unread += data
        while (length := self._length()) is not None and len(self._unread) >= length:
            message = bytes(self._unread[:length])
            del self._unread[:length]
            understood = _parse_message(message)
            if understood is not None:
                yield understood

    def _length(self) -> int | None:
        """How many bytes the next message has; None while its head is not complete."""
        unread = self._unread
        if not unread:
            return None
        fixed = {0: 20, 3: 10, 4: 8, 5: 6}.get(unread[0])
        if fixed is not None:
            return fixed
        if unread[0] == 2:
            if len(unread) < 4:
                return None
            (count,) = struct.unpack_from(">H", unread, 2)
            if count > MAX_ENCODINGS:
                raise ProtocolError(f"{count} encodings are more than are read here")
            return 4 + 4 * int(count)
        if unread[0] == 6:
            if len(unread) < 8:
                return None
            (nbytes,) = struct.unpack_from(">i", unread, 4)
            if abs(nbytes) > MAX_CUT_TEXT_BYTES:
                raise ProtocolError(f"a clipboard of {abs(nbytes)} bytes is more than is read here")
            return 8 + abs(int(nbytes))
        raise ProtocolError(f"there is no message of type {unread[0]}")


def _parse_message(message: bytes) -> Message | None:
    match message[0]:
        case 0:
            bits, _, big_endian, true_colour, red, green, blue, *shifts = struct.unpack(">BBBBHHHBBB", message[4:17])
            whole = all(shift in (0, 8, 16, 24) for shift in shifts) and len(set(shifts)) == 3
            if bits != 32 or big_endian or not true_colour or (red, green, blue) != (255, 255, 255) or not whole:
                raise ProtocolError("only 32 bits per pixel are sent here")
            return PixelFormat(*shifts)
        case 2:
            return SetEncodings(struct.unpack(f">{(len(message) - 4) // 4}i", message[4:]))
        case 3:
            return UpdateRequest(bool(message[1]))
        case 4:
            (keysym,) = struct.unpack_from(">I", message, 4)
            return KeyInput(bool(message[1]), keysym)
        case 5:
            return PointerInput(*struct.unpack_from(">BHH", message, 1))
        case _:
            return None


def server_init(width: int, height: int, name: str) -> bytes:
    """The screen's size and the view's name."""
    title = name.encode()
    return struct.pack(">HH", width, height) + PixelFormat().packed() + struct.pack(">I", len(title)) + title


@dataclass(frozen=True, slots=True)
class Rectangle:
    """One part of an update; sizes in pixels, `data` as the encoding wants it."""

    x: int
    y: int
    width: int
    height: int
    encoding: Encoding
    data: bytes


def framebuffer_update(rectangles: Sequence[Rectangle]) -> bytes:
    """One update message."""
    parts = [struct.pack(">BxH", 0, len(rectangles))]
    for one in rectangles:
        parts.append(struct.pack(">HHHHi", one.x, one.y, one.width, one.height, one.encoding))
        parts.append(one.data)
    return b"".join(parts)


MAX_JPEG_BYTES = 2**22 - 1


def tight_jpeg(data: bytes) -> bytes:
    """A JPEG file as the Tight encoding has it. Raises ValueError for one that does not fit its length field."""
    length = len(data)
    if length > MAX_JPEG_BYTES:
        raise ValueError(f"a JPEG of {length} bytes does not fit")
    head = bytearray([0x90])
    while True:
        more = length > 0x7F and len(head) < 3
        head.append((length & 0x7F) | 0x80 if more else length & 0xFF)
        length >>= 7
        if not more:
            return bytes(head) + data
