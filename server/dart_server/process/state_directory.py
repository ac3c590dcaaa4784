"""The state directory: what must outlive the farm, the host's temporary files and a boot.

Rule: it is private, one farm at a time uses it, and what a farm of an older layout left in its runtime directory is moved here before
anything reads it. Non-goals: what the files hold.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from dart_server.errors import FarmConfigError
from dart_server.settings import FarmSettings
from dart_server.wire.paths import KEY_FILE

log = logging.getLogger(__name__)
DATABASE_FILES = ("farm.db-wal", "farm.db-shm", "farm.db")
"""The database's own file comes last: until it is there, the move is not done and is tried again."""
SECRET_FILES = (KEY_FILE, "farm.secret")


def private_directory(path: Path, variable: str) -> Path:
    """The directory, made 0700 when missing. Raises `FarmConfigError`, naming the variable, when it is another user's or open to others."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise FarmConfigError(
            f"{path} cannot be made: {error.strerror}. Set {variable} to a directory of your own."
        ) from error
    if status.st_uid != os.getuid():
        raise FarmConfigError(f"{path} belongs to another user. Set {variable} to a directory of your own.")
    if status.st_mode & 0o077:
        raise FarmConfigError(f"{path} is open to other users. Run `chmod 700 {path}`.")
    return path


def make_directories(settings: FarmSettings) -> None:
    """Runtime and state directory, private. Raises `FarmConfigError`."""
    private_directory(settings.runtime_dir, "DART_RUNTIME_DIR")
    private_directory(settings.state_dir, "DART_STATE_DIR")


def migrate_legacy_layout(settings: FarmSettings) -> list[str]:
    """Move what an older farm kept in the runtime directory; names of what was moved. Only while no farm runs there."""
    old, new = settings.runtime_dir, settings.state_dir
    if old == new:
        return []
    moved = []
    if not (new / "farm.db").exists():
        moved += [name for name in DATABASE_FILES if _move(old / name, new / name)]
    moved += [name for name in SECRET_FILES if not (new / name).exists() and _move(old / name, new / name)]
    if moved:
        log.info("moved %s from %s to %s", ", ".join(moved), old, new)
    return moved


def _move(source: Path, target: Path) -> bool:
    if not source.exists():
        return False
    # Whole or not at all: the directories may lie on different file systems.
    half = target.with_name(target.name + ".part")
    shutil.copy2(source, half)
    os.replace(half, target)
    source.unlink()
    return True
