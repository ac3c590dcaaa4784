"""Repetition of failed requests to the farm.

`RetryPolicy` says whether and when a failed request is repeated, and `call_with_retries` repeats it. Only requests
that mean the same when they arrive twice are given to it: reads, heartbeats, and claims under one client request id.
So nothing is done twice. The farm's `Retry-After` is respected, and a pause that would end after the caller's time
limit is not begun. This module does not know the requests.
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
    """How often and when a failed request is repeated.

    Without a `Retry-After`, each pause is twice the last one, up to a limit, and is shortened at random by at most a
    half.

    Attributes:
        attempts: Number of attempts; 1 repeats nothing.
        initial_backoff_s: Seconds before the second attempt.
        max_backoff_s: Limit of a pause, in seconds.
        max_retry_after_s: The longest `Retry-After` that is waited for, in seconds.
    """

    attempts: int = 4
    initial_backoff_s: float = 0.2
    max_backoff_s: float = 5.0
    max_retry_after_s: float = 60.0

    def backoff_s(self, error: FarmError, attempt: int, *, wait_out_outage: bool = False) -> float | None:
        """Return the pause until the next attempt.

        Args:
            error: Why the last attempt failed.
            attempt: Number of attempts that have failed.
            wait_out_outage: Whether an outage is waited out for any number of attempts, unless `attempts` is 1.

        Returns:
            Seconds, or None to stop.
        """
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
    """Make a request, and repeat it as the policy says.

    Args:
        request: Makes the request.
        retries: The policy.
        clock: The clock that waits and measures.
        retry_timeout_s: Seconds until no more pause is begun.
        outage_timeout_s: Seconds for which outages of the farm are waited out.
        before_retry: Called with the last error before each repetition.

    Returns:
        The result of the request.

    Raises:
        FarmError: The last error of the request.
    """
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
