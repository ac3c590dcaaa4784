"""Asking the farm again.

Role: `RetryPolicy`, which says whether and when a request that failed is repeated, and `repeated`, which does it. Rule: only
requests that mean the same when they come twice are given to it (reads, heartbeats, and claims under one client request id), so
that nothing is ever done double; the farm's `Retry-After` is honoured, and a wait that would be longer than the caller's
patience is not begun. Non-goals: knowing requests.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from dart_envs.errors import (
    FarmDatabaseUnavailableError,
    FarmDrainingError,
    FarmError,
    FarmUnreachableError,
    QuotaExceededError,
    TooManyRequestsError,
)
from dart_server.wire import Clock

_T = TypeVar("_T")
RETRYABLE_ERRORS = (
    FarmUnreachableError,
    QuotaExceededError,
    TooManyRequestsError,
    FarmDrainingError,
    FarmDatabaseUnavailableError,
)
OUTAGE_ERRORS = (FarmUnreachableError, FarmDatabaseUnavailableError)
"""The farm, or its database, is away, as while it is started again."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how patiently. `attempts` 1 repeats nothing.

    Without a `Retry-After` the pauses double from `initial_backoff_s` up to `max_backoff_s`, each shortened by up to a half at
    random.
    """

    attempts: int = 4
    initial_backoff_s: float = 0.2
    max_backoff_s: float = 5.0
    max_retry_after_s: float = 60.0

    def backoff_s(self, error: FarmError, attempt: int, *, wait_out_outage: bool = False) -> float | None:
        """Seconds until the next attempt after `attempt` ones have failed, the last with `error`; None: do not try again.

        `wait_out_outage`: an outage is waited out, however many attempts that takes, unless nothing is to be repeated at all."""
        waited_out = wait_out_outage and self.attempts > 1 and isinstance(error, OUTAGE_ERRORS)
        if not isinstance(error, RETRYABLE_ERRORS) or (attempt >= self.attempts and not waited_out):
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.max_retry_after_s else None
        if isinstance(error, QuotaExceededError):
            return None
        backoff_s: float = min(self.initial_backoff_s * 2 ** (attempt - 1), self.max_backoff_s)
        return backoff_s * random.uniform(0.5, 1.0)


async def call_with_retries(
    request: Callable[[], Awaitable[_T]],
    retries: RetryPolicy,
    clock: Clock,
    *,
    retry_timeout_s: float = float("inf"),
    outage_timeout_s: float = 0.0,
    before_retry: Callable[[FarmError], Awaitable[None]] | None = None,
) -> _T:
    """What the request answers, asked again as `retries` says while the pauses fit into `retry_timeout_s`; for `outage_timeout_s` from
    now through every outage of the farm. Raises its last error."""
    began_s = clock.monotonic()
    deadline_s = began_s + retry_timeout_s
    attempt = 1
    while True:
        try:
            return await request()
        except FarmError as error:
            backoff_s = retries.backoff_s(
                error, attempt, wait_out_outage=clock.monotonic() < began_s + outage_timeout_s
            )
            if backoff_s is None or clock.monotonic() + backoff_s > deadline_s:
                raise
            attempt += 1
            await clock.sleep(backoff_s)
            if before_retry is not None:
                await before_retry(error)
