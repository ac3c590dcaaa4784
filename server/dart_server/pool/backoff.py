"""Failures of what is made ahead of need, and when it is tried again.

Rule: after each failure in a row the next try waits twice as long, up to a limit, and until one has worked only one is made at a time: a
thing that is broken heals by itself once it is mended, and costs little until then. Non-goals: claims, which are always tried at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from dart_server.wire import Clock

FIRST_S = 5.0
LONGEST_S = 600.0
REMEMBERED = 1000


@dataclass(slots=True)
class _Trouble:
    failures: int
    not_before_s: float
    reason: str


class Backoff:
    """Troubles by what they are with."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._troubles: dict[Hashable, _Trouble] = {}

    def failed(self, what: Hashable, reason: str) -> None:
        """One more try did not work."""
        failures = self._troubles[what].failures + 1 if what in self._troubles else 1
        wait_s = min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 30))
        self._troubles.pop(what, None)
        self._troubles[what] = _Trouble(failures, self._clock.monotonic() + wait_s, reason)
        if len(self._troubles) > REMEMBERED:
            self._troubles.pop(next(iter(self._troubles)))

    def worked(self, what: Hashable) -> None:
        """It is well again."""
        self._troubles.pop(what, None)

    def troubled(self, what: Hashable) -> bool:
        """Whether the latest try failed: one at a time, then."""
        return what in self._troubles

    def held(self, what: Hashable) -> bool:
        """Whether it has to wait before it is tried again."""
        trouble = self._troubles.get(what)
        return trouble is not None and self._clock.monotonic() < trouble.not_before_s

    def reasons(self) -> list[str]:
        """What went wrong with everything that is in trouble."""
        return [text for what in self._troubles if (text := self.reason(what)) is not None]

    def reason(self, what: Hashable) -> str | None:
        """What went wrong, and how long nothing will be tried, in words; None when all is well."""
        trouble = self._troubles.get(what)
        if trouble is None:
            return None
        wait_s = max(0.0, trouble.not_before_s - self._clock.monotonic())
        times = "once" if trouble.failures == 1 else f"{trouble.failures} times in a row"
        return f"failed {times}, tried again in {wait_s:.0f} s: {trouble.reason}"
