"""The pace of claims: a few at a time, in the order in which they came.

Role: of a burst the first are answered while the last still wait in line. Begun together all would be answered together, at the end of the
burst, and clients that hold their desktops equally long would come back together for ever. Rule: a turn lasts while the farm itself works
on the claim; one that begins to wait, for a desktop or for a database that is away, is over, and ending one twice is no error. Nobody
passes another. Non-goals: who gets a desktop (`pool.turns`), limits per key (`door.limits`).
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 8
"""Claims that the farm works on at a time: enough for a common commit, few enough that the first of a burst need not wait for many."""


class Begun:
    """One claim's turn."""

    __slots__ = ("_pace",)

    def __init__(self, pace: Pace) -> None:
        self._pace: Pace | None = pace

    def over(self) -> None:
        """Let the next one begin."""
        pace, self._pace = self._pace, None
        if pace is not None:
            pace.pass_on()


class Pace:
    """The line of claims that were not begun yet."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = at_once
        self._line: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> Begun:
        """Wait in line, then begin."""
        if self._free > 0 and not self._line:
            self._free -= 1
            return Begun(self)
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self.pass_on()
            raise
        return Begun(self)

    def pass_on(self) -> None:
        """One turn is over: it is the next one's who still waits."""
        while self._line:
            called = self._line.popleft()
            if not called.done():
                called.set_result(None)
                return
        self._free += 1
