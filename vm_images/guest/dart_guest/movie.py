"""Writes a film: JPEG pictures in an MP4 file.

Role: the container format, so that a recording needs no encoder in the image and hardly any time of the desktop's.
Rule: pictures go to the file as they come; the index is written at the end (`finish`). A picture that equals the one before only
lasts longer. Format: ISO/IEC 14496-12 boxes; sample entry `mp4v` with object type 0x6C (JPEG) of ISO/IEC 14496-1.
Legend: times are ticks of 1/1000 s since the first picture.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

TICKS_PER_S = 1000
JPEG_OBJECT_TYPE = 0x6C
VISUAL_STREAM = 0x11
MATRIX = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
FILE_TYPE = b"isom" + struct.pack(">I", 0x200) + b"isomiso2mp41"


def box(kind: bytes, *parts: bytes) -> bytes:
    """One box."""
    body = b"".join(parts)
    return struct.pack(">I", 8 + len(body)) + kind + body


def full_box(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    """One box of version 0 with flags."""
    return box(kind, struct.pack(">I", flags), *parts)


def descriptor(tag: int, body: bytes) -> bytes:
    """An MPEG-4 descriptor of fewer than 128 bytes."""
    return bytes([tag, len(body)]) + body


class Movie:
    """A film that is being written; width and height in pixels."""

    def __init__(self, path: Path, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.file: BinaryIO = path.open("wb")
        self.file.write(box(b"ftyp", FILE_TYPE))
        self.data_at = self.file.tell()
        # A 64-bit length: it is written over at the end.
        self.file.write(struct.pack(">I4sQ", 1, b"mdat", 0))
        self.sizes: list[int] = []
        self.offsets: list[int] = []
        self.starts: list[int] = []
        self.last: bytes | bytearray = b""

    def add(self, jpeg: bytes | bytearray, at: int) -> None:
        """Show a picture from tick `at` on."""
        if jpeg == self.last:
            return
        self.offsets.append(self.file.tell())
        self.sizes.append(len(jpeg))
        self.starts.append(at)
        self.file.write(jpeg)
        self.last = jpeg

    def finish(self, at: int) -> None:
        """Close the file; the last picture lasts until tick `at`."""
        end = self.file.tell()
        self.file.write(self.index(at))
        self.file.seek(self.data_at + 8)
        self.file.write(struct.pack(">Q", end - self.data_at))
        self.file.close()

    def index(self, at: int) -> bytes:
        """The `moov` box."""
        limits = [*self.starts[1:], max(at, *self.starts[-1:], 0)]
        lasting = [max(1, limit - start) for start, limit in zip(self.starts, limits, strict=False)]
        total = sum(lasting)
        head = full_box(b"mvhd", struct.pack(">4I", 0, 0, TICKS_PER_S, total), struct.pack(">IH10x", 0x10000, 0x100), MATRIX, bytes(24),
                        struct.pack(">I", 2))  # fmt: skip
        track = full_box(b"tkhd", struct.pack(">5I", 0, 0, 1, 0, total), bytes(16), MATRIX,
                         struct.pack(">2I", self.width << 16, self.height << 16), flags=3)  # fmt: skip
        media = box(
            b"mdia",
            full_box(b"mdhd", struct.pack(">4IHH", 0, 0, TICKS_PER_S, total, 0x55C4, 0)),
            full_box(b"hdlr", struct.pack(">I4s12x", 0, b"vide"), b"screen\0"),
            box(
                b"minf",
                full_box(b"vmhd", bytes(8), flags=1),
                box(b"dinf", full_box(b"dref", struct.pack(">I", 1), full_box(b"url ", flags=1))),
                self.samples(lasting),
            ),
        )
        return box(b"moov", head, box(b"trak", track, media))

    def samples(self, lasting: list[int]) -> bytes:
        """The `stbl` box: what the pictures are, how long each lasts, how long and where each is in the file."""
        count = len(self.sizes)
        decoder = descriptor(0x04, struct.pack(">BB3x2I", JPEG_OBJECT_TYPE, VISUAL_STREAM, 0, 0))
        stream = full_box(b"esds", descriptor(0x03, struct.pack(">HB", 1, 0) + decoder + descriptor(0x06, b"\2")))
        entry = box(b"mp4v", struct.pack(">6xH16x2H2II", 1, self.width, self.height, 0x480000, 0x480000, 0),
                    struct.pack(">H32xHh", 1, 24, -1), stream)  # fmt: skip
        return box(
            b"stbl",
            full_box(b"stsd", struct.pack(">I", 1), entry),
            full_box(b"stts", struct.pack(">I", count), *(struct.pack(">2I", 1, ticks) for ticks in lasting)),
            full_box(b"stsc", struct.pack(">4I", 1, 1, 1, 1) if count else struct.pack(">I", 0)),
            full_box(b"stsz", struct.pack(f">2I{count}I", 0, count, *self.sizes)),
            full_box(b"co64", struct.pack(f">I{count}Q", count, *self.offsets)),
        )
