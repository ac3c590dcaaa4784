"""The lock of a run folder: one process works on it, and others can ask whether one does.

Role: `run_lock` holds, `is_locked` asks. Rule: to ask takes no lock, so that somebody who looks at a run never refuses it a start; the lock
belongs to the open file (an open file description lock of Linux), so that it ends with its process, however that ends. Non-goals: the
files of the folder (`dart_train.run.state`).
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from dart_train.config import RecipeError
from dart_train.run.paths import RunPaths

FLOCK_FIELDS = "hhqqi0q"
"""C's `struct flock` on 64 bits: type, start is relative to, start, length, process."""


@contextmanager
def run_lock(paths: RunPaths) -> Iterator[None]:
    """Hold the lock of a run folder, so that one process works on it.

    Args:
        paths: The run folder.

    Yields:
        Nothing; the lock is held as long as the context lasts.

    Raises:
        RecipeError: Another process holds the lock.
    """
    paths.root.mkdir(parents=True, exist_ok=True)
    with paths.lock.open("w", encoding="utf-8") as handle:
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _whole_file())
        except BlockingIOError:
            raise RecipeError(f"another dart-train is running in {paths.root}: wait for it or stop it first") from None
        yield


def is_locked(paths: RunPaths) -> bool:
    """Say whether a process works on a run.

    Args:
        paths: The run folder.

    Returns:
        Whether its lock is held.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        found = struct.unpack(FLOCK_FIELDS, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole_file()))
    finally:
        os.close(descriptor)
    return bool(found[0] != fcntl.F_UNLCK)


def _whole_file() -> bytes:
    return struct.pack(FLOCK_FIELDS, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
