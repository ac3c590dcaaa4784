"""Permits for what few may do at once, where no owner keeps the others waiting.

Role: `FairPermits`. Rule: the owners that wait are served one after the other, one request each; within an owner who came first is first.
Non-goals: weights and priorities (`pool.fair_queue`), what a permit is for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dart_server.errors import ApiError
from dart_server.wire import ErrorCode


class FairPermits:
    """At most `parallel` permits at once."""

    def __init__(self, parallel: int) -> None:
        self._free = parallel
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By owner, the next one first."""

    @asynccontextmanager
    async def permit(self, owner: str, *, timeout_s: float) -> AsyncIterator[None]:
        """A permit for a request of an owner. Raises `ApiError` (host_fault) when none comes in time."""
        if self._free and not self._waiting:
            self._free -= 1
        else:
            await self._wait(owner, timeout_s)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, owner: str, timeout_s: float) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(called)
        try:
            async with asyncio.timeout(timeout_s):
                await called
        except BaseException as error:  # cancelled, too, a permit that came meanwhile goes to the next; raised again
            if called.done() and not called.cancelled():
                self._pass_on()
            else:
                self._leave(owner, called)
            if isinstance(error, TimeoutError):
                raise ApiError(
                    ErrorCode.HOST_FAULT, f"the host looked into other desktops for {timeout_s:g} s"
                ) from error
            raise

    def _leave(self, owner: str, called: asyncio.Future[None]) -> None:
        if called in (waiting := self._waiting.get(owner, deque())):
            waiting.remove(called)
            if not waiting:
                del self._waiting[owner]

    def _pass_on(self) -> None:
        """Give a permit back: to the next owner, who then goes behind the others; keep it where nobody waits."""
        while self._waiting:
            owner, waiting = self._waiting.popitem(last=False)
            called = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            if not called.done():
                called.set_result(None)
                return
        self._free += 1
