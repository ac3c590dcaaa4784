"""The clock that every package schedules by.

This module defines the protocol only. Code that waits, expires or measures takes a `Clock`, so that tests and simulations decide what
time it is. Each side has its own implementation: `dart_server.clock.SystemClock` and `dart_envs.clock.SystemClock`.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two readings in seconds, and a sleep."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back; only differences have a meaning."""
        ...

    def time(self) -> float:
        """Return seconds since 1970-01-01 UTC."""
        ...

    async def sleep(self, delay_s: float, /) -> None:
        """Wait for `delay_s` seconds."""
        ...
