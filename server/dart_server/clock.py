"""The farm's clock, wall-clock conversion, and waiting with a time limit.

Code that schedules or expires takes a `dart_server.wire.Clock`; no other module of the package reads the time or sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TypeVar

from dart_server.wire import Clock

T = TypeVar("T")


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Return seconds of the system's monotonic clock."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since 1970-01-01 UTC."""
        return time.time()

    async def sleep(self, delay_s: float) -> None:
        """Wait on the running event loop for `delay_s` seconds."""
        await asyncio.sleep(delay_s)


def utc(seconds: float) -> datetime:
    """A wall-clock reading as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


async def wait_for(clock: Clock, timeout_s: float, work: Awaitable[T]) -> T:
    """The result of `work`, or TimeoutError after `timeout_s` of the given clock; `work` is cancelled when it is late or the caller is."""
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep(timeout_s))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError
    finally:
        alarm.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
