"""The pace of claims: a few at a time, in the order in which they came.

Role: of a burst the first are answered while the last still wait in line. Permit together all would be answered together, at the end of the
burst, and clients that hold their desktops equally long would come back together for ever. Rule: a turn lasts while the farm itself works
on the claim; one that begins to wait, for a desktop or for a database that is away, is over, and ending one twice is no error. Nobody
passes another. Non-goals: who gets a desktop (`pool.fair_queue`), limits per key (`http.ingress.limits`).
"""

from __future__ import annotations

import asyncio
from collections import deque

MAX_CONCURRENT_CLAIMS = 8
"""Claims that the farm works on at a time: enough for a common commit, few enough that the first of a burst need not wait for many."""


class Permit:
    """One claim's turn."""

    __slots__ = ("_limiter",)

    def __init__(self, limiter: AdmissionLimiter) -> None:
        self._limiter: AdmissionLimiter | None = limiter

    def release(self) -> None:
        """Let the next one begin."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter._admit_next()


class AdmissionLimiter:
    """The line of claims that were not begun yet."""

    def __init__(self, at_once: int = MAX_CONCURRENT_CLAIMS) -> None:
        self._free = at_once
        self._line: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> Permit:
        """Wait in line, then begin."""
        if self._free > 0 and not self._line:
            self._free -= 1
            return Permit(self)
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._admit_next()
            raise
        return Permit(self)

    def _admit_next(self) -> None:
        """One turn is over: it is the next one's who still waits."""
        while self._line:
            called = self._line.popleft()
            if not called.done():
                called.set_result(None)
                return
        self._free += 1
