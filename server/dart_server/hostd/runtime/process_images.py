"""The images of saved processes, for a desktop with another range of user ids than that of the saved one.

CRIU keeps all ids as the desktop's processes see them, and the range once, in the image of the user namespace. So a copy needs that one
file written anew; the others are the same files by other names. A snapshot has hundreds of them, so a copy that is not used any more is
kept beside the images, and the next desktop takes it over. Non-goals: any other change to what CRIU wrote.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dart_server.hostd.linux import user_ids

MAX_SPARES = 4
"""Copies that a snapshot keeps: as many as a helper restores desktops at the same time."""

_SPARE = "spare-"
_USER_NAMESPACE = "userns-"
_MAGIC_NBYTES = 8
_VARINT, _BYTES = 0, 2
_UID_MAP, _GID_MAP = 1, 2
_FIRST, _LOWER_FIRST, _COUNT = 1, 2, 3


def for_range(images: Path, names: Iterable[str], copy: Path, first_id: int) -> None:
    """Make `copy`, beside `images`, with the range that begins at `first_id`. Raises OSError.

    Args:
        images: What CRIU wrote.
        names: Names of its files.
        copy: A directory that is not there.
        first_id: Where the desktop's range of user ids begins.
    """
    taken_over = _take_spare(copy)
    if not taken_over:
        copy.mkdir(mode=0o711)
    for name in names:
        if name.startswith(_USER_NAMESPACE):
            with suppress(FileNotFoundError):
                (copy / name).unlink()
            (copy / name).write_bytes(_with_range((images / name).read_bytes(), first_id))
        elif not taken_over:
            os.link(images / name, copy / name)


def keep(copy: Path) -> None:
    """Keep a copy that no restore reads any more, if there is room for it and its snapshot is still there."""
    with suppress(FileNotFoundError):
        if len(_spares(copy.parent)) < MAX_SPARES:
            copy.rename(copy.with_name(f"{_SPARE}{copy.name}"))


def _take_spare(copy: Path) -> bool:
    """Take over a copy that was kept; of two who want one, one gets it."""
    for spare in _spares(copy.parent):
        with suppress(FileNotFoundError):
            spare.rename(copy)
            return True
    return False


def _spares(place: Path) -> list[Path]:
    return [place / name for name in os.listdir(place) if name.startswith(_SPARE)]


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
