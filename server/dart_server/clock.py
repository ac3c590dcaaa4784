"""Time as the farm sees it. Rule: whatever schedules or expires takes a `Clock`; nothing else of the package reads the time or sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Two clocks and a sleep: `monotonic()` for deadlines, `time()` (seconds since 1970) for what is written down."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


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
