"""The system's clock, for everything in the client packages that waits or measures.

The protocol is `dart_server.wire.Clock`.
"""

from __future__ import annotations

import asyncio
import time

from dart_server.wire import Clock


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
