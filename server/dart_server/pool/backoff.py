"""Failures of what is made ahead of need, and when it is tried again.

Rule: after each failure in a row the next try waits twice as long, up to a limit, and until one has worked only one is made at a time: a
thing that is broken heals by itself once it is mended, and costs little until then. Non-goals: claims, which are always tried at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from dart_server.wire import Clock

INITIAL_DELAY_S = 5.0
MAX_DELAY_S = 600.0
MAX_ENTRIES = 1000


@dataclass(slots=True)
class _FailureRecord:
    failures: int
    not_before_s: float
    reason: str


class Backoff:
    """Troubles by what they are with."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[Hashable, _FailureRecord] = {}

    def failed(self, key: Hashable, reason: str) -> None:
        """One more try did not work."""
        failures = self._failures[key].failures + 1 if key in self._failures else 1
        wait_s = min(MAX_DELAY_S, INITIAL_DELAY_S * 2.0 ** min(failures - 1, 30))
        self._failures.pop(key, None)
        self._failures[key] = _FailureRecord(failures, self._clock.monotonic() + wait_s, reason)
        if len(self._failures) > MAX_ENTRIES:
            self._failures.pop(next(iter(self._failures)))

    def succeeded(self, key: Hashable) -> None:
        """It is well again."""
        self._failures.pop(key, None)

    def has_failed(self, key: Hashable) -> bool:
        """Whether the latest try failed: one at a time, then."""
        return key in self._failures

    def is_waiting(self, key: Hashable) -> bool:
        """Whether it has to wait before it is tried again."""
        record = self._failures.get(key)
        return record is not None and self._clock.monotonic() < record.not_before_s

    def reasons(self) -> list[str]:
        """What went wrong with everything that is in trouble."""
        return [text for key in self._failures if (text := self.reason(key)) is not None]

    def reason(self, key: Hashable) -> str | None:
        """What went wrong, and how long nothing will be tried, in words; None when all is well."""
        record = self._failures.get(key)
        if record is None:
            return None
        wait_s = max(0.0, record.not_before_s - self._clock.monotonic())
        times = "once" if record.failures == 1 else f"{record.failures} times in a row"
        return f"failed {times}, tried again in {wait_s:.0f} s: {record.reason}"
