"""The images of saved processes, for a desktop with another range of user ids than that of the saved one.

CRIU keeps all ids as the desktop's processes see them, and the range once, in the image of the user namespace. So a copy needs that one
file written anew; the others are the same files by other names. Non-goals: any other change to what CRIU wrote.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from dart_server.hostd.linux import user_ids

_MAGIC_NBYTES = 8
_VARINT, _BYTES = 0, 2
_UID_MAP, _GID_MAP = 1, 2
_FIRST, _LOWER_FIRST, _COUNT = 1, 2, 3


def for_range(images: Path, target: Path, first_id: int) -> None:
    """Make `target` a copy of `images` with the range that begins at `first_id`. Raises OSError."""
    target.mkdir(mode=0o711)
    with os.scandir(images) as entries:
        for entry in entries:
            if entry.name.startswith("userns-"):
                (target / entry.name).write_bytes(_with_range(Path(entry.path).read_bytes(), first_id))
            else:
                os.link(entry.path, target / entry.name)


def _with_range(image: bytes, first_id: int) -> bytes:
    """Magic numbers, the length of the one message, and the message: an extent of user ids and the same of group ids."""
    numbers = ((_FIRST, 0), (_LOWER_FIRST, first_id), (_COUNT, user_ids.COUNT))
    extent = b"".join(_varint(field << 3 | _VARINT) + _varint(value) for field, value in numbers)
    message = b"".join(_varint(field << 3 | _BYTES) + _varint(len(extent)) + extent for field in (_UID_MAP, _GID_MAP))
    return image[:_MAGIC_NBYTES] + struct.pack("=I", len(message)) + message


def _varint(number: int) -> bytes:
    """A number in protobuf's form: seven bits per byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
