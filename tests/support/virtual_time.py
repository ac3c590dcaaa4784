"""Virtual time for tests of whole components: an event loop whose time jumps to the next timer when there is nothing else to do.

Role: `run_in_virtual_time(body)` runs a coroutine function with a `VirtualClock`; hours pass in milliseconds, in the same order every
time. Rule: while a thread of an executor works, time stands still and the loop waits for it; a wait that nothing could ever end is an
error (`EndlessWait`), never a test that hangs. Non-goals: sockets and processes, whose time is the machine's.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH_S = 1_000_000.0
"""Wall-clock time at the start, in seconds since 1970."""
THREAD_POLL_S = 0.5
"""Longest real wait for a thread before it is looked at again; its end interrupts the wait."""


class EndlessWait(RuntimeError):
    """Every task waits, and neither a timer nor a thread is left that could wake one."""


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Does not wait for timers: it moves the time to them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> Any:
        if self.threads:
            return super().select(THREAD_POLL_S if timeout is None or timeout > 0 else 0)
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise EndlessWait
        self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which begins at 0."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> Any:
        self._virtual.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended, context=contextvars.Context())
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        self._virtual.threads += 1  # it waits for a thread that is not one of the executor's
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._virtual.threads -= 1

    def _thread_ended(self, _future: object) -> None:
        self._virtual.threads -= 1


class VirtualClock:
    """The clock of a `VirtualLoop`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return EPOCH_S + self._loop.time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


def run_in_virtual_time(body: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine function that gets a clock; raises EndlessWait where it could never end."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(body(VirtualClock(loop)))


class SettableClock:
    """A clock that a test sets: `now_s` is its monotonic reading, and a sleep moves it on at once."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return EPOCH_S + self.now_s

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)
        self.now_s += delay_s
