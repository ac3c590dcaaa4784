"""Whether a failed request is tried again, and after how long.

Role: `decide(failure, failed, elapsed_s, settings, chance) -> Retry | GiveUp`. Rule: pure. The delay is exponential with full jitter:
uniform in [0, min(cap, base x 2^failures)] (Brooker 2015, "Exponential Backoff And Jitter", AWS Architecture Blog), the chance is given. A
request that can never be answered, and one whose deadline would pass, is given up. Non-goals: sending (`dart_agent.inference.pool`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RequestFailure(StrEnum):
    """Why one attempt failed.

    REJECTED: the request is wrong, every worker would refuse it. CONNECTION: the worker is gone. BUSY: it drains or is full. ENGINE: its
    engine failed on this request. ABORTED: the engine stopped before the answer was complete. TIMEOUT: no answer in time.
    """

    REJECTED = "rejected"
    CONNECTION = "connection"
    BUSY = "busy"
    ENGINE = "engine"
    ABORTED = "aborted"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Limits of one request.

    Attributes:
        deadline_s: Seconds for all attempts together.
        attempt_timeout_s: Seconds for one attempt.
        max_attempts: Most attempts that an engine may fail; refusals of busy workers do not count.
        base_delay_s: Longest delay before the second attempt, in seconds; doubled with every attempt.
        max_delay_s: Longest delay, in seconds.
    """

    deadline_s: float = 600.0
    attempt_timeout_s: float = 300.0
    max_attempts: int = 5
    base_delay_s: float = 0.1
    max_delay_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not try again."""

    reason: str


def decide(
    failure: RequestFailure, failed: int, elapsed_s: float, settings: RetrySettings, chance: float
) -> Retry | GiveUp:
    """Decide what follows a failed attempt.

    Args:
        failure: Why it failed.
        failed: Attempts that failed so far, this one included; refusals of busy workers left out.
        elapsed_s: Seconds since the request was made.
        settings: Limits.
        chance: Uniform in [0, 1).

    Returns:
        When to try again, or why not.
    """
    if failure is RequestFailure.REJECTED:
        return GiveUp("every worker would refuse it")
    if failed >= settings.max_attempts:
        return GiveUp(f"{failed} attempts failed")
    delay_s = chance * min(settings.max_delay_s, settings.base_delay_s * 2 ** max(0, failed - 1))
    if elapsed_s + delay_s >= settings.deadline_s:
        return GiveUp(f"its deadline of {settings.deadline_s:g} s has passed")
    return Retry(delay_s)
