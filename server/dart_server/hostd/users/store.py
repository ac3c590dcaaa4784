"""A directory of an ordinary user's for snapshots and written files on a disk, used without trust in that user.

The user may exchange what lies in his directory at any time. Root's part of it is one subdirectory, which nobody else can enter. It is
opened once, checked, and bound to a place among root's own directories. All work goes through that place.
Non-goals: a user's limits on his disk.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dart_server.hostd.errors import HostdHostFault
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import syscalls, trees
from dart_server.hostd.linux.credentials import as_user, is_mounted_here, open_directory


def mount(layout: Layout) -> None:
    """Make root's part of the user's directory and bind it to `layout.store_dir`. Raises HostdHostFault, OSError."""
    if layout.user_store is None or layout.user is None:
        return
    user, place = layout.user, layout.user_store
    as_user(user, lambda: place.mkdir(mode=0o700, parents=True, exist_ok=True))
    top = open_directory(user, place)
    try:
        if not is_mounted_here(top):
            raise HostdHostFault(
                f"{place} is mounted for some programs only", hint="set DART_SNAPSHOT_DIR to another one"
            )
        status = os.fstat(top)
        if status.st_uid != user.uid and not status.st_mode & stat.S_ISVTX:
            raise HostdHostFault(
                f"{place} belongs to another user", hint="set DART_SNAPSHOT_DIR to a directory of your own"
            )
        try:
            os.mkdir(layout.prefix, 0o700, dir_fd=top)
        except FileExistsError:
            _clear(top, layout.prefix)
        part = os.open(layout.prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        try:
            status = os.fstat(part)
            if status.st_uid != 0 or stat.S_IMODE(status.st_mode) != 0o700:
                raise HostdHostFault(f"{place / layout.prefix} is not the root helper's", hint="remove it")
            layout.store_dir.mkdir(mode=0o700, exist_ok=True)
            syscalls.mount(f"/proc/self/fd/{part}", layout.store_dir, None, syscalls.MS_BIND)
        finally:
            os.close(part)
    finally:
        os.close(top)


def unmount(layout: Layout) -> None:
    """Undo `mount`; what was written is gone by then."""
    if layout.user_store is None or layout.user is None:
        return
    user, place = layout.user, layout.user_store
    syscalls.umount(layout.store_dir, syscalls.MNT_DETACH)
    try:
        top = open_directory(user, place)
    except OSError:
        return
    try:
        os.rmdir(layout.prefix, dir_fd=top)
    except OSError:
        return  # exchanged by its user, or not empty: it is his directory
    finally:
        os.close(top)


def _clear(top: int, name: str) -> None:
    """Empty what an earlier helper left; anything that is not root's own directory is refused by the caller."""
    part = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        if os.fstat(part).st_uid == 0:
            for entry in os.listdir(part):
                trees.remove(Path(f"/proc/self/fd/{part}") / entry)
    finally:
        os.close(part)
