"""The system's clock, for everything in the client packages that waits or measures, and waiting with a limit on any clock.

Role: `SYSTEM_CLOCK`, and `wait_for`, `wait_first` and `timeout`, which need a clock's `sleep` only, so that they hold in virtual time, too.
Rule: in `dart_agent` and `dart_train` nothing else reads the time, sleeps or limits a wait. Non-goals: the protocol
(`dart_server.wire.Clock`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

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


SYSTEM_CLOCK: Clock = SystemClock()


def block(delay_s: float) -> None:
    """Wait in the calling thread, which no event loop runs in.

    Args:
        delay_s: How long, in seconds.
    """
    time.sleep(delay_s)


async def wait_for(clock: Clock, timeout_s: float, work: Awaitable[T]) -> T:
    """Wait for a result, at most for a time of the given clock.

    Args:
        clock: The clock that the limit is measured by.
        timeout_s: The limit, in seconds.
        work: What is waited for; it is cancelled, and its end waited for, when it is late or the caller is cancelled.

    Returns:
        Its result.

    Raises:
        TimeoutError: It did not end in time.
    """
    task = asyncio.ensure_future(work)
    try:
        await wait_first(clock, timeout_s, [task])
        if task.done():
            return task.result()
        raise TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def wait_first(
    clock: Clock, timeout_s: float | None, futures: Iterable[asyncio.Future[Any]]
) -> set[asyncio.Future[Any]]:
    """Wait until the first of some futures is done, at most for a time of the given clock; none of them is cancelled.

    Args:
        clock: The clock that the limit is measured by.
        timeout_s: The limit, in seconds; None: no limit.
        futures: At least one future.

    Returns:
        Those that are done; none where the time was over first.
    """
    waited = set(futures)
    alarm = None if timeout_s is None else asyncio.ensure_future(clock.sleep(timeout_s))
    try:
        await asyncio.wait(waited if alarm is None else {*waited, alarm}, return_when=asyncio.FIRST_COMPLETED)
        return {future for future in waited if future.done()}
    finally:
        if alarm is not None:
            alarm.cancel()


@asynccontextmanager
async def timeout(clock: Clock, timeout_s: float) -> AsyncIterator[None]:
    """Limit what runs in the context to a time of the given clock.

    Args:
        clock: The clock that the limit is measured by.
        timeout_s: The limit, in seconds.

    Yields:
        Nothing.

    Raises:
        TimeoutError: The body was not done in time; it was cancelled.
    """
    async with asyncio.timeout(None) as limit:

        async def expire() -> None:
            await clock.sleep(timeout_s)
            limit.reschedule(asyncio.get_running_loop().time())

        alarm = asyncio.ensure_future(expire())
        try:
            yield
        finally:
            alarm.cancel()
