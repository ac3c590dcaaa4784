"""Whether a worker gets requests, and when it is replaced.

Role: `decide(state, event, settings) -> (state, actions)` over the probes of one worker. Rule: pure and synchronous; one missed probe moves
nothing (hysteresis), a broken connection of a request takes the worker out at once, and only a worker that stays silent, or says that it is
broken, is replaced. Non-goals: probing (`dart_agent.inference.pool`), restarting (`dart_agent.inference.supervisor`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class HealthEvent(StrEnum):
    """What was seen of a worker.

    ANSWERED, MISSED: a probe. CONNECTION_LOST: a request's connection broke. BROKEN: the worker says that it cannot go on. ENDED: its
    process is gone.
    """

    ANSWERED = "answered"
    MISSED = "missed"
    CONNECTION_LOST = "connection_lost"
    BROKEN = "broken"
    ENDED = "ended"


class HealthAction(StrEnum):
    """What to do with the worker: give it requests, give it none, or end it and start another in its place."""

    PUT_IN = "put_in"
    TAKE_OUT = "take_out"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Hysteresis, in probes.

    Attributes:
        answers_until_in: Answers in a row before a worker that was out gets requests.
        misses_until_out: Missed probes in a row before it gets none.
        misses_until_replaced: Missed probes in a row before it is replaced.
    """

    answers_until_in: int = 1
    misses_until_out: int = 2
    misses_until_replaced: int = 3


@dataclass(frozen=True, slots=True)
class HealthState:
    """What is remembered of one worker.

    Attributes:
        in_service: Whether it gets requests.
        answers: Answered probes in a row.
        misses: Missed probes in a row.
    """

    in_service: bool = False
    answers: int = 0
    misses: int = 0


def decide(
    state: HealthState, event: HealthEvent, settings: HealthSettings
) -> tuple[HealthState, tuple[HealthAction, ...]]:
    """Take note of one observation.

    Args:
        state: What is remembered of the worker.
        event: What was seen.
        settings: Hysteresis.

    Returns:
        What to remember, and what to do, in this order.
    """
    if event is HealthEvent.ANSWERED:
        answered = replace(state, answers=state.answers + 1, misses=0)
        if state.in_service or answered.answers < settings.answers_until_in:
            return answered, ()
        return replace(answered, in_service=True), (HealthAction.PUT_IN,)
    missed = replace(state, answers=0, misses=state.misses + (event is HealthEvent.MISSED))
    out = event is not HealthEvent.MISSED or missed.misses >= settings.misses_until_out
    actions: list[HealthAction] = []
    if state.in_service and out:
        missed = replace(missed, in_service=False)
        actions.append(HealthAction.TAKE_OUT)
    gone = event in (HealthEvent.BROKEN, HealthEvent.ENDED)
    silent = event is HealthEvent.MISSED and missed.misses == settings.misses_until_replaced
    if gone or silent:
        missed = HealthState()
        actions.append(HealthAction.REPLACE)
    return missed, tuple(actions)
