"""The temporary folder of a measurement, and the end of those that were killed.

Role: `scratch_folder`. Rule: a measurement holds a lock in its folder, which ends with its process, however that ends; the next measurement
removes every folder whose lock nobody holds. A folder gets its name when its lock is held, so that nobody removes one that is just being
made. Non-goals: what is in it (`command`).
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX, NEW_PREFIX = "dart-train-bench-", "dart-train-new-bench-"
LOCK = "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for temporary files, and remove those of measurements that were killed.

    Yields:
        The folder, which is removed at the end.
    """
    remove_left_folders()
    made = Path(tempfile.mkdtemp(prefix=NEW_PREFIX))
    with (made / LOCK).open("w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder = made.rename(made.with_name(made.name.replace(NEW_PREFIX, PREFIX)))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_left_folders() -> None:
    """Remove the folders of killed measurements; those of other users stay."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            with lock.open("r+", encoding="utf-8") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # it is in use, another user's, or just gone
            continue
