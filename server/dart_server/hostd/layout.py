"""Names and places: everything dart-hostd makes carries one prefix and lies in one directory.

`Layout` is computed once, from root's command line or for an ordinary user (`layout_of_user`). What root makes for an ordinary user lies in
`RUN_DIR`, where only root may change anything: a directory of the user's is a place in which he can exchange what root works on.
Mounts of desktops exist only inside the helper's own mount namespace and vanish with it; what the host can see is the socket, the log, and
the control groups named `prefix`.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from dart_server.hostd.linux.credentials import HostUser

RUN_DIR = Path("/run/dart-hostd")
"""Sockets and state of the helpers that work for ordinary users; root's own, and open to all for looking up a socket."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one helper keeps its things; `owner_uid` is the user it works for."""

    owner_uid: int
    state_dir: Path
    runtime_dir: Path
    images_dir: Path
    store_dir: Path
    """Snapshots and written files are kept here when this is on a disk; on a tmpfs the helper mounts its own."""
    user: HostUser | None = None
    """The ordinary user with whose rights the paths that he named are opened; None where root works for itself."""
    user_store: Path | None = None
    """The directory that this user named for `store_dir`."""
    name: str = ""
    """The prefix where it is not that of `state_dir`."""

    @property
    def prefix(self) -> str:
        """Ownership prefix: differs for every (user, state directory) pair."""
        if self.name:
            return self.name
        digest = hashlib.sha256(os.fsencode(self.state_dir.resolve())).hexdigest()[:8]
        return f"dart-{self.owner_uid}-{digest}"

    @property
    def socket(self) -> Path:
        """The helper's listening socket."""
        return self.runtime_dir / "hostd.sock"

    @property
    def lock(self) -> Path:
        """Held while a helper works on this state directory."""
        return self.state_dir / "hostd.lock"

    @property
    def failure_log(self) -> Path:
        """CRIU's log of the latest checkpoint or restore that failed."""
        return self.state_dir / "criu-failure.log"

    @property
    def live(self) -> Path:
        """Mount point of the private tmpfs that holds all desktops, layers and snapshots."""
        return self.state_dir / "live"

    @property
    def disk(self) -> Path:
        """Where snapshots and written files go when they are kept on disk instead of memory."""
        return self.store_dir / self.prefix


def layout_of_user(
    owner_uid: int, runtime_dir: Path, images_dir: Path, store_dir: Path, user: HostUser | None = None
) -> Layout:
    """Return where the helper of a farm keeps its things, by the farm's own runtime directory.

    For root that is a part of this directory; for an ordinary user a directory of root's that is named after it.
    """
    own = Layout(owner_uid, runtime_dir / "hostd", runtime_dir, images_dir, store_dir)
    if owner_uid == 0:
        return own
    place = RUN_DIR / own.prefix
    store = place / "state" / "store"
    return Layout(owner_uid, place / "state", place, images_dir, store, user, store_dir, own.prefix)


def ownership_problem(place: Path, owner_uid: int) -> str | None:
    """Why others could put something of theirs in a place of this user's, None when they cannot.

    Every directory up to the root must belong to the user or to root, and be closed to others' writing or sticky, as /tmp is. Of a place
    that does not exist yet those above it are looked at.
    """
    place = place.absolute()
    while not place.exists():
        if place.is_symlink():
            return f"{place} is a link that leads nowhere"
        place = place.parent
    for directory in (place.resolve(), *place.resolve().parents):
        status = directory.stat()
        if not stat.S_ISDIR(status.st_mode):
            return f"{directory} is no directory"
        if status.st_uid not in (0, owner_uid):
            return f"{directory} belongs to another user"
        open_to = stat.S_IWOTH | (0 if status.st_gid in _own_groups(owner_uid) else stat.S_IWGRP)
        if status.st_mode & open_to and not status.st_mode & stat.S_ISVTX:
            return f"{directory} may be written by others"
    return None


def _own_groups(owner_uid: int) -> set[int]:
    """Root's group, the user's own, and those that this process was given."""
    try:
        return {0, pwd.getpwuid(owner_uid).pw_gid, *os.getgroups()}
    except KeyError:
        return {0, *os.getgroups()}
