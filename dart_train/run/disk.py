"""The disk of a run: measured again and again; while it is nearly full, no work begins.

Role: `DiskGuard` feeds `dart_train.run.decisions.disk` and executes its commands. Rule: what runs goes on to its end, because it would be
lost otherwise; a component that ends while the disk is full waits for space before it is started again. Non-goals: the check before a
start (`preflight`), removing anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from dart_agent.errors import StoreError
from dart_server.wire import Clock
from dart_train.run.decisions.disk import DiskSeen, DiskState, HoldWork, ReleaseWork, decide

LOOK_S = 5.0
"""Seconds between two looks."""


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
        lines = []
        for command in decide(self._state, DiskSeen(self._clock.monotonic(), free_disk_bytes(self._folder))):
            if isinstance(command, HoldWork):
                self.reason = command.reason
            elif isinstance(command, ReleaseWork):
                self.reason = None
            else:
                lines.append(command.line)
        for line in lines:
            self._tell(line, self.reason)
        return self.reason is not None

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
