"""The locks of a run folder: one launcher and its components work on it, and others can ask whether somebody does.

Role: `run_lock` is the launcher's, `component_lock` that of each of its components; `is_locked` asks, `components_ended` waits. Rule: to
ask takes no lock, so that somebody who looks at a run never refuses it a start; the locks belong to open files (open file description
locks of Linux), so that they end with their processes, however these end. Components outlive a launcher that was killed: the trainer
finishes its step. Non-goals: the files of the folder (`dart_train.run.state`).
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dart_server.wire import Clock
from dart_train.config import RecipeError
from dart_train.run.paths import RunPaths

FLOCK_FIELDS = "hhqqi0q"
"""C's `struct flock` on 64 bits: type, start is relative to, start, length, process."""
LAUNCHER, COMPONENTS = (0, 1), (1, 1)
"""Start and length of what each locks, in bytes of the file."""
WHOLE_FILE = (0, 0)
COMPONENTS_END_S = 120.0
"""How long a launcher waits for the components of one that was killed."""
POLL_S = 0.2


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
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _fields(fcntl.F_WRLCK, LAUNCHER))
        except BlockingIOError:
            raise RecipeError(f"another dart-train is running in {paths.root}: wait for it or stop it first") from None
        yield


def is_locked(paths: RunPaths) -> bool:
    """Say whether a process works on a run.

    Args:
        paths: The run folder.

    Returns:
        Whether its launcher or one of its components holds a lock.
    """
    return _is_held(paths, WHOLE_FILE)


@contextmanager
def component_lock(file: Path) -> Iterator[int]:
    """Take the lock of a component that is about to be started, for it to inherit.

    Args:
        file: The lock file.

    Yields:
        The descriptor that the component is to inherit; the lock is then held as long as the component lives.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _fields(fcntl.F_RDLCK, COMPONENTS))
        yield descriptor
    finally:
        os.close(descriptor)


async def components_ended(paths: RunPaths, clock: Clock, note: Callable[[str], None]) -> None:
    """Wait until no component of an earlier launcher works on a run, `COMPONENTS_END_S` at most; the lock of the run folder is held.

    Args:
        paths: The run folder.
        clock: Clock of the limit.
        note: Told why there is a wait, where there is one.

    Raises:
        RecipeError: One still works after that.
    """
    if _is_held(paths, COMPONENTS):
        note("waiting for the processes of a run that was killed: the trainer finishes its step")
    give_up_s = clock.monotonic() + COMPONENTS_END_S
    while _is_held(paths, COMPONENTS):
        if clock.monotonic() >= give_up_s:
            raise RecipeError(
                f"processes of a dart-train that was killed still work in {paths.root}: wait until they have ended, or end those that "
                f"`fuser {paths.lock}` lists"
            )
        await clock.sleep(POLL_S)


def _is_held(paths: RunPaths, part: tuple[int, int]) -> bool:
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        asked = _fields(fcntl.F_WRLCK, part)
        found = struct.unpack(FLOCK_FIELDS, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    finally:
        os.close(descriptor)
    return bool(found[0] != fcntl.F_UNLCK)


def _fields(kind: int, part: tuple[int, int]) -> bytes:
    return struct.pack(FLOCK_FIELDS, kind, os.SEEK_SET, *part, 0)
