"""Work that goes on while nobody waits for it.

Rule: an error in it is logged, never lost; it is nobody's request, so it takes over nothing of the one that happened to start it.
Non-goals: its order, its number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context

log = logging.getLogger(__name__)


class BackgroundTaskSet:
    """A set of running tasks of one kind."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Begin, and return at once."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work of the pool failed", exc_info=task.exception())

    async def wait_any(self) -> None:
        """Wait until one of them has ended; there must be one."""
        await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    def cancel(self) -> None:
        """Ask all to end."""
        for task in self._tasks:
            task.cancel()

    async def wait_all(self) -> None:
        """Wait until all that run now have ended, however they do."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
