"""Questions and files of a run that may pause.

Role: `Pauses` asks the data manager and writes files for whoever must outlast a pause. Rule: during a pause the data manager may be away,
and no file may be written; both are tried again until the run goes on. Non-goals: when a run pauses (`disk`), limits of waits (`waiting`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dart_agent.errors import StoreError
from dart_server.wire import Clock
from dart_train.run.disk import DiskGuard

T = TypeVar("T")


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
