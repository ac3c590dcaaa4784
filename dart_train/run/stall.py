"""The limit of every wait of a run: how long nothing may happen.

Role: `StallWatch` measures how long a sign of progress has not changed. Rule: a wait ends with an error that says what was waited for and
why, never with endless waiting; the limit is `limits.stall_minutes` of the recipe. Non-goals: what the signs are (the orchestrator).
"""

from __future__ import annotations

from dart_server.wire import Clock

FIX = "look into the logs; where it may take longer, raise limits.stall_minutes"


class StallWatch:
    """Notices that nothing happens any more.

    Args:
        clock: The clock that the limit is measured by.
        limit_s: How long nothing may happen, in seconds.
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._seen: object = None
        self._since_s = clock.monotonic()

    def is_stalled(self, sign: object) -> bool:
        """Compare a sign of progress with the last one.

        Args:
            sign: Anything that changes where there is progress.

        Returns:
            True where it has not changed for longer than the limit.
        """
        if sign != self._seen:
            self._seen, self._since_s = sign, self._clock.monotonic()
        return self.waited_s > self._limit_s

    @property
    def waited_s(self) -> float:
        """Seconds since the sign changed."""
        return self._clock.monotonic() - self._since_s
