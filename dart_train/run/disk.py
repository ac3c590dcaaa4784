"""The disk of a run: measured again and again; while it is nearly full, no work begins.

Role: `DiskGuard` feeds `dart_train.run.decisions.disk` and executes its commands; `Pauses` asks the data manager and writes files for
whoever must outlast a pause. Rule: what runs goes on to its end, because it would be lost otherwise; a component that ends while the disk
is full waits for space before it is started again, and so does the mark of a stage.
Non-goals: the check before a start (`preflight`), removing anything.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from dart_agent.errors import StoreError
from dart_server.wire import Clock
from dart_train.run.decisions.disk import (
    DiskEvent,
    DiskSeen,
    DiskState,
    HoldWork,
    ReleaseWork,
    WriteDone,
    WriteRefused,
    decide,
)

T = TypeVar("T")

LOOK_S = 5.0
"""Seconds between two looks."""
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says where there is no space for a file."""


def free_disk_bytes(folder: Path) -> int:
    """Measure the free space for a folder.

    Args:
        folder: The folder; it exists.

    Returns:
        Bytes.
    """
    return shutil.disk_usage(folder).free


class DiskGuard:
    """Watches the disk of a run folder.

    Args:
        folder: The folder.
        min_free_gib: Free space below which the run pauses, in GiB; 0: it never pauses.
        hold: Tells the data manager why no work begins; None: it may begin.
        tell: Tells a person when the run pauses and when it goes on, with why it pauses now.
        clock: Clock of the pauses.

    Attributes:
        reason: Why the run pauses; None: it goes on.
    """

    def __init__(
        self,
        folder: Path,
        min_free_gib: float,
        hold: Callable[[str | None], Awaitable[object]],
        tell: Callable[[str, str | None], None],
        clock: Clock,
    ) -> None:
        self.reason: str | None = None
        self._folder = folder
        self._state = DiskState(str(folder), min_free_gib)
        self._hold = hold
        self._tell = tell
        self._clock = clock
        self._held = False

    def look(self) -> bool:
        """Measure, and tell what changed.

        Returns:
            Whether the run pauses.
        """
        self._take(DiskSeen(self._clock.monotonic(), free_disk_bytes(self._folder)))
        return self.reason is not None

    def _take(self, event: DiskEvent) -> None:
        """Decide on an event, and tell what changed."""
        lines = []
        for command in decide(self._state, event):
            if isinstance(command, HoldWork):
                self.reason = command.reason
            elif isinstance(command, ReleaseWork):
                self.reason = None
            else:
                lines.append(command.line)
        for line in lines:
            self._tell(line, self.reason)

    async def watch(self) -> None:
        """Hold and release work until cancelled."""
        while True:
            if self.look() or self._held:
                held = self.reason
                try:
                    await self._hold(held)
                    self._held = held is not None
                except StoreError:  # the data manager is away, and begins nothing meanwhile
                    self._held = True
            await self._clock.sleep(LOOK_S)

    async def until_space(self) -> None:
        """Wait until the run does not pause."""
        while self.look():
            await self._clock.sleep(LOOK_S)

    async def until_written(self, write: Callable[[], None]) -> None:
        """Write a file without which the run cannot go on; where there is no space, the run pauses until there is.

        Args:
            write: Writes it as a whole, or leaves what was there.

        Raises:
            OSError: It cannot be written for another reason.
        """
        while True:
            try:
                write()
            except OSError as error:
                if error.errno not in FULL_DISK:
                    raise
                cause = os.strerror(error.errno or 0)
                self._take(WriteRefused(self._clock.monotonic(), free_disk_bytes(self._folder), cause))
                await self._clock.sleep(LOOK_S)
            else:
                self._take(WriteDone(self._clock.monotonic()))
                return


class Pauses:
    """The pauses of one run.

    Args:
        clock: Clock of the time between two attempts.
        disk: The disk because of which the run pauses; None: it never pauses.
        tell: Shows a person why the run pauses.
        poll_s: Seconds between two attempts.

    Attributes:
        repeated: How often a question was asked again.
    """

    def __init__(
        self,
        clock: Clock,
        disk: DiskGuard | None = None,
        tell: Callable[[str], None] = lambda reason: None,
        poll_s: float = 1.0,
    ) -> None:
        self.repeated = 0
        self._clock = clock
        self._disk = disk
        self._tell = tell
        self._poll_s = poll_s

    @property
    def reason(self) -> str | None:
        """Why the run pauses now; None: it goes on."""
        return None if self._disk is None else self._disk.reason

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask the data manager; a question that it cannot answer while the run pauses is asked again.

        Args:
            call: Asks.

        Returns:
            The answer.

        Raises:
            StoreError: There is none, and the run does not pause.
        """
        while True:
            reason = self.reason
            try:
                return await call()
            except StoreError:
                reason = self.reason or reason
                if reason is None:
                    raise
                self.repeated += 1
                self._tell(reason)
                await self._clock.sleep(self._poll_s)

    async def write(self, write: Callable[[], None]) -> None:
        """Write a file; where there is no space, the run pauses until there is.

        Args:
            write: Writes it as a whole, or leaves what was there.

        Raises:
            OSError: It cannot be written for another reason, or the run never pauses.
        """
        if self._disk is None:
            write()
        else:
            await self._disk.until_written(write)
