"""The clock that everything in this package schedules by.

Role: one protocol, so that tests decide what time it is. Rule: code that waits or measures takes a `Clock`;
nothing here knows what it is used for. Non-goals: time-outs of single network calls (those belong to the
transport).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds, two ways, and a sleep."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Let `delay_s` seconds pass."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


SYSTEM_CLOCK: Clock = SystemClock()
