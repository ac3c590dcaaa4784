"""Who still reads a published version, so that nothing is removed under a reader.

Role: `hold` for readers, `try_remove` for whoever prunes, `make_leasable` for the publisher. Rule: a reader has a shared lock (flock) on
the file `.lease` in the version's directory, the pruner takes an exclusive one; the kernel frees the lock of a reader that is killed. A
directory without that file is nobody's to prune, and holding it costs nothing. Non-goals: which versions are too old
(`dart_train.model.weights`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from dart_agent.errors import WeightUpdateError

LEASE_FILE = ".lease"


class WeightLease:
    """The right to read a directory until `release`; also a context manager.

    Attributes:
        directory: The directory.
    """

    def __init__(self, directory: Path, descriptor: int | None) -> None:
        self.directory = directory
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """The directory may be removed from now on; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # Closing alone would leave the lock to a child that was forked and has not yet begun its own program.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def make_leasable(directory: Path) -> None:
    """Called by the publisher before the directory gets its name.

    Args:
        directory: The directory.
    """
    (directory / LEASE_FILE).touch(mode=0o644)


def hold(directory: Path) -> WeightLease:
    """Keep a directory from being removed.

    Args:
        directory: The directory of a version.

    Returns:
        The lease; nothing is removed until it is released or this process ends.

    Raises:
        WeightUpdateError: The directory is gone, or is being removed.
    """
    file = directory / LEASE_FILE
    gone = WeightUpdateError(f"the weights in {directory} were removed: take the newest version")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if directory.is_dir():
            return WeightLease(directory, None)
        raise gone from None
    except OSError as error:
        raise WeightUpdateError(f"the weights in {directory} cannot be read: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # The pruner may have renamed the directory before the lock was taken; another version may have its name now.
        if not os.path.samestat(os.fstat(descriptor), os.stat(file)):
            raise FileNotFoundError(file)
    except OSError:
        os.close(descriptor)
        raise gone from None
    return WeightLease(directory, descriptor)


def try_remove(directory: Path) -> bool:
    """Remove a directory that nobody holds.

    Args:
        directory: The directory of a version.

    Returns:
        Whether it is gone; False while a reader holds it.
    """
    file = directory / LEASE_FILE
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        shutil.rmtree(directory, ignore_errors=True)
        return True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        hidden = directory.with_name(f".{directory.name}-removed-{os.getpid()}")
        directory.rename(hidden)
        shutil.rmtree(hidden)
        return True
    finally:
        os.close(descriptor)
