"""SQLite's checkpoints, beside the writer: its log is carried into the database by a thread and a connection of their own.

Role: a checkpoint waits for the disk. Left to SQLite it is made by the very commit that fills the log, and everybody who waits for that
commit waits for the disk too (p99 of a commit on a quiet disk: 16 ms; 1 ms with the checkpoints beside it). Rule: first comes a checkpoint
that holds nobody up; only a log that has grown long is begun anew, by one that holds writers up for the few pages that were added
meanwhile. What fails is told once and tried again after more commits; nothing is lost by it, the log only grows. Non-goals: PostgreSQL,
which has a process for this; other processes at the same database, for which SQLite's own rule stays in force.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

log = logging.getLogger(__name__)
EVERY_COMMITS = 64
"""Of a busy farm's commits these fill about 4 MiB of the log."""
LONG_PAGES = 4096
"""The log is begun anew from here (16 MiB)."""
AUTOCHECKPOINT_PAGES = 16 * LONG_PAGES
"""A log of this length (256 MiB) is carried over by the commit that finds it, should ours have failed for so long."""
BUSY_S = 0.1
"""How long beginning anew waits for those who read, and so may hold writers up; it is tried again after more commits."""


class CheckpointThread:
    """Those of one database file, by its absolute path, from `start` to `stop`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._commits = 0
        self._wake = threading.Event()
        self._ended = False
        self._failing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to wait for commits."""
        self._thread = threading.Thread(target=self._run, name="dart-checkpoints", daemon=True)
        self._thread.start()

    def note_commit(self) -> None:
        """The writer has made one more commit."""
        self._commits += 1
        if self._commits >= EVERY_COMMITS:
            self._commits = 0
            self._wake.set()

    def stop(self) -> None:
        """End, after the checkpoint that is being made. Idempotent."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._ended:
                return
            try:
                self.checkpoint()
                self._failing = False
            except sqlite3.Error as error:
                if not self._failing:
                    log.warning("the database's log cannot be carried into its database now: %s", error)
                self._failing = True

    def checkpoint(self) -> None:
        """Carry over what was committed so far. Raises `sqlite3.Error`."""
        # A connection of its own each time: the file may be another one since the last.
        with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, timeout=BUSY_S)) as connection:
            _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages >= LONG_PAGES:
                connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
