"""What a run could leave on its host: processes, sockets, leases, shared memory, halves of files.

Role: `left_over` returns one sentence per thing. Rule: looks, removes nothing; only what belongs to the run's own folders is seen, but for
shared memory, where whatever is new and used by no living process counts. Non-goals: desktops of the host (simulated ones have none).
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, suppress
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.training_chaos.strikes import commands

KEPT = ("farm.db*", "farm.key", "farm.secret", "farm.lock", "farm.start.lock", "farm.log")
"""What may stay in the runtime directory: the farm's database, its keys, empty locks, its log."""
SHARED_MEMORY = Path("/dev/shm")


def left_over(runtime_dir: Path, folder: Path, shared_memory_before: set[str]) -> list[str]:
    """Find what a run has left.

    Args:
        runtime_dir: Its runtime directory.
        folder: Its run folder.
        shared_memory_before: Entries of shared memory before the run.

    Returns:
        One sentence per thing.
    """
    return [
        *(f"process {pid} is left: {command[:120]}" for pid, command in commands(runtime_dir)),
        *(
            f"{path} is left"
            for path in sorted(runtime_dir.rglob("*"))
            if not any(fnmatch(path.name, kept) for kept in KEPT)
        ),
        *_farm_rows(runtime_dir / "farm.db"),
        *(f"{path} is left" for path in _halves(folder)),
        *(f"shared memory {name} is left" for name in sorted(unused_shared_memory() - shared_memory_before)),
    ]


def _farm_rows(database: Path) -> list[str]:
    """Leases and desktops that the farm's database has as living, and snapshots that it has as stored."""
    if not database.exists():
        return ["the farm has no database"]
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        leases = store.execute("select lease_id from leases where state = 'active'").fetchall()
        snapshots = store.execute("select snapshot_id from snapshots where state = 'ready'").fetchall()
    return [f"lease {name} is left" for (name,) in leases] + [f"snapshot {name} is left" for (name,) in snapshots]


def _halves(folder: Path) -> list[Path]:
    """Files of a run folder that were being written or belong to an action under way."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix == ".tmp" or path.name.startswith((".v", ".tmp")) or path.parent.name in ("acting", "rejected")
    )


def unused_shared_memory() -> set[str]:
    """Return the segments of shared memory that no living process maps or has open; a folder there is no segment."""
    # The segments are listed before the processes: one that is made meanwhile does not count, nor does one that is removed meanwhile.
    segments = {entry.name for entry in SHARED_MEMORY.iterdir() if entry.is_file()} if SHARED_MEMORY.is_dir() else set()
    used: set[str] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or is another user's
            used |= set(re.findall(r"/dev/shm/([^/\s]+)", (entry / "maps").read_text(errors="replace")))
            for link in (entry / "fd").iterdir():
                with suppress(OSError):  # the file was closed
                    used |= set(re.findall(r"^/dev/shm/([^/\s]+)", os.readlink(link)))
    return {name for name in segments - used if (SHARED_MEMORY / name).exists()}
