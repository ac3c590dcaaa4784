"""Asking the farm again.

Role: `Retries`, which says whether and when a request that failed is repeated, and `repeated`, which does it. Rule: only
requests that mean the same when they come twice are given to it (reads, heartbeats, and claims under one client request id), so
that nothing is ever done double; the farm's `Retry-After` is honoured, and a wait that would be longer than the caller's
patience is not begun. Non-goals: knowing requests.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from dart_envs.clock import Clock
from dart_envs.errors import Draining, FarmError, LedgerAway, QuotaExceeded, TooManyRequests, Unreachable

_T = TypeVar("_T")
REPEATABLE = (Unreachable, QuotaExceeded, TooManyRequests, Draining, LedgerAway)
OUTAGES = (Unreachable, LedgerAway)
"""The farm, or its ledger, is away, as while it is started again."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and how patiently. `attempts` 1 repeats nothing.

    Without a `Retry-After` the pauses double from `first_pause_s` up to `longest_pause_s`, each shortened by up to a half at
    random.
    """

    attempts: int = 4
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    longest_retry_after_s: float = 60.0

    def pause_s(self, error: FarmError, attempt: int, *, lasting: bool = False) -> float | None:
        """Seconds until the next attempt after `attempt` ones have failed, the last with `error`; None: do not try again.

        `lasting`: an outage is waited out, however many attempts that takes, unless nothing is to be repeated at all."""
        waited_out = lasting and self.attempts > 1 and isinstance(error, OUTAGES)
        if not isinstance(error, REPEATABLE) or (attempt >= self.attempts and not waited_out):
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.longest_retry_after_s else None
        if isinstance(error, QuotaExceeded):
            return None
        pause_s: float = min(self.first_pause_s * 2 ** (attempt - 1), self.longest_pause_s)
        return pause_s * random.uniform(0.5, 1.0)


async def repeated(
    request: Callable[[], Awaitable[_T]],
    retries: Retries,
    clock: Clock,
    *,
    patience_s: float = float("inf"),
    outage_s: float = 0.0,
    before_again: Callable[[FarmError], Awaitable[None]] | None = None,
) -> _T:
    """What the request answers, asked again as `retries` says while the pauses fit into `patience_s`; for `outage_s` from now through
    every outage of the farm. Raises its last error."""
    began_s = clock.monotonic()
    gives_up_s = began_s + patience_s
    attempt = 1
    while True:
        try:
            return await request()
        except FarmError as error:
            pause_s = retries.pause_s(error, attempt, lasting=clock.monotonic() < began_s + outage_s)
            if pause_s is None or clock.monotonic() + pause_s > gives_up_s:
                raise
            attempt += 1
            await clock.sleep(pause_s)
            if before_again is not None:
                await before_again(error)
