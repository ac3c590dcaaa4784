"""Trees of files that a desktop may have shaped: what they cost, and their removal.

Rule: nothing here recurses, builds a path below `top`, or follows a link, so a tree may be as deep, and its names as long, as the file
system allows; a walk holds two descriptors. Nobody else may change a tree meanwhile. Non-goals: copying (`storage`).
"""

from __future__ import annotations

import itertools
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

INODE_NBYTES = 825
"""Kernel memory of one empty file on a tmpfs (inode, security label, its place in the directory), measured on Linux 6.18."""
NAME_NBYTES = 220
"""Kernel memory of one name of a file (a hard link costs no more than that)."""
XATTR_NBYTES = 48
"""Kernel memory of one extended attribute beside its name and value."""
_INLINE_NAME_NBYTES = 40
_LONG_NAME_HEADER_NBYTES = 17
_SHORT_LINK_NBYTES = 128
_ALLOCATION_SIZES = (8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class TreeUsage:
    """What a tree costs. `nbytes`: blocks of its files, and what the kernel keeps for each file, name and attribute."""

    nbytes: int = 0
    inodes: int = 0
    depth: int = 0
    """Names in the longest chain of directories below the top."""
    longest_path_nbytes: int = 0
    """Length of the longest path below the top."""


@dataclass
class _Count:
    nbytes: int = 0
    inodes: int = 0
    longest_name_nbytes: int = 0
    linked: set[tuple[int, int]] = field(default_factory=set)
    """(device, inode) of files that have several names."""

    def add(self, name: str, place: str, found: os.stat_result) -> None:
        """One more name; its file is counted with the first of its names."""
        self.nbytes += NAME_NBYTES
        name_nbytes = len(os.fsencode(name))
        self.longest_name_nbytes = max(self.longest_name_nbytes, name_nbytes)
        if name_nbytes >= _INLINE_NAME_NBYTES:
            self.nbytes += _allocated(name_nbytes + _LONG_NAME_HEADER_NBYTES)
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            file = (found.st_dev, found.st_ino)
            if file in self.linked:
                return
            self.linked.add(file)
        self.inodes += 1
        self.nbytes += INODE_NBYTES + found.st_blocks * 512
        if stat.S_ISLNK(found.st_mode) and found.st_size < _SHORT_LINK_NBYTES:
            self.nbytes += _allocated(found.st_size + 1)
        with suppress(OSError):  # a file system without attributes
            for attribute in os.listxattr(place, follow_symlinks=False):
                value = os.getxattr(place, attribute, follow_symlinks=False)
                self.nbytes += _allocated(XATTR_NBYTES + len(value)) + _allocated(len(os.fsencode(attribute)) + 1)


def usage(top: Path) -> TreeUsage:
    """Count a tree, `top` itself excluded. Raises OSError."""
    count, depth, longest = _Count(), 0, 0
    above: list[tuple[int, int]] = []
    """(device, inode) of the directories between the top and the current one."""
    prefix_nbytes = [0]
    current = os.open(top, _OPEN)
    try:
        waiting = [_scan(current, count)]
        while waiting:
            if count.longest_name_nbytes:
                depth = max(depth, len(waiting))
                longest = max(longest, prefix_nbytes[-1] + count.longest_name_nbytes)
                count.longest_name_nbytes = 0
            if waiting[-1]:
                here, name = os.fstat(current), waiting[-1].pop()
                above.append((here.st_dev, here.st_ino))
                prefix_nbytes.append(prefix_nbytes[-1] + len(os.fsencode(name)) + 1)
                _exchange(current, name, None)
                waiting.append(_scan(current, count))
            else:
                waiting.pop()
                prefix_nbytes.pop()
                if above:
                    _exchange(current, "..", above.pop())
    finally:
        os.close(current)
    return TreeUsage(count.nbytes, count.inodes, depth, longest)


def _scan(directory: int, count: _Count) -> list[str]:
    """Count the entries of an open directory; returns the names of the directories in it."""
    below = []
    with os.scandir(directory) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            count.add(entry.name, f"/proc/self/fd/{directory}/{entry.name}", found)
            if stat.S_ISDIR(found.st_mode):
                below.append(entry.name)
    return below


def _exchange(current: int, name: str, expected: tuple[int, int] | None) -> None:
    """Open a neighbour of an open directory under the same number. Raises OSError when it is not the expected one."""
    found = os.open(name, _OPEN, dir_fd=current)
    try:
        told = os.fstat(found)
        if expected is not None and (told.st_dev, told.st_ino) != expected:
            raise OSError("a directory was moved while its tree was counted")
        os.dup2(found, current, inheritable=False)
    finally:
        os.close(found)


def remove(top: Path) -> None:
    """Remove a tree; nothing happens when there is none. Raises OSError when something stays.

    A directory below the first level is moved to it before it is emptied, so that depth costs nothing.
    """
    try:
        root = os.open(top, _OPEN)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(top)
        return
    try:
        numbers = itertools.count()
        while names := _directories_left(root):
            for name in names:
                _empty(root, name, numbers)
                os.rmdir(name, dir_fd=root)
    finally:
        os.close(root)
    os.rmdir(top)


def _directories_left(directory: int) -> list[str]:
    """Remove the files of an open directory; returns the names of its directories."""
    left = []
    for name, is_directory in _entries(directory):
        if is_directory:
            left.append(name)
        else:
            os.unlink(name, dir_fd=directory)
    return left


def _empty(root: int, name: str, numbers: itertools.count[int]) -> None:
    """Empty one directory in `root`: its files go, its directories move up into `root`."""
    directory = os.open(name, _OPEN, dir_fd=root)
    try:
        for below in _directories_left(directory):
            _move_up(directory, below, root, numbers)
    finally:
        os.close(directory)


def _move_up(directory: int, name: str, root: int, numbers: itertools.count[int]) -> None:
    while True:
        free = f"{next(numbers):x}"
        try:
            os.stat(free, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, free, src_dir_fd=directory, dst_dir_fd=root)
            return


def _entries(directory: int) -> list[tuple[str, bool]]:
    """(name, whether it is a directory) of everything in an open directory."""
    with os.scandir(directory) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _allocated(nbytes: int) -> int:
    """What the kernel sets aside for an object of this size."""
    return next((size for size in _ALLOCATION_SIZES if nbytes <= size), -(-nbytes // 4096) * 4096)
