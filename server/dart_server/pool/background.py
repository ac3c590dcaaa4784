"""Work of the pool that nobody waits for at once. Rule: it is kept until it has ended, and a failure is logged, never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Background:
    """A set of running tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run it beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def wait_for_one(self) -> None:
        """Return when any of the tasks that run now has ended; there must be one."""
        await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def finish(self, *, cancel: bool = False) -> None:
        """Wait for all of them, cancelled first if so wanted. Raises nothing of theirs."""
        if cancel:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work of the pool failed", exc_info=task.exception())
