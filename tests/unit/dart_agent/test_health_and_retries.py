"""When a worker is put in, taken out and replaced, and when a request is tried again."""

from __future__ import annotations

import pytest

from dart_agent.inference.decisions import health, retries
from dart_agent.inference.decisions.health import HealthAction, HealthEvent, HealthSettings, HealthState
from dart_agent.inference.decisions.retries import GiveUp, RequestFailure, Retry, RetrySettings

A, M = HealthEvent.ANSWERED, HealthEvent.MISSED


def actions(events: list[HealthEvent], **settings: int) -> list[list[HealthAction]]:
    state, found = HealthState(), []
    for event in events:
        state, done = health.decide(state, event, HealthSettings(**settings))
        found.append(list(done))
    return found


def test_one_missed_probe_moves_nothing_two_take_it_out_three_replace_it() -> None:
    assert actions([A, M, A, M, A]) == [[HealthAction.PUT_IN], [], [], [], []]
    assert actions([A, M, M, M]) == [[HealthAction.PUT_IN], [], [HealthAction.TAKE_OUT], [HealthAction.REPLACE]]
    assert actions([A, M, M, A]) == [[HealthAction.PUT_IN], [], [HealthAction.TAKE_OUT], [HealthAction.PUT_IN]]


def test_it_comes_in_after_so_many_answers_in_a_row() -> None:
    assert actions([A, M, A, A], answers_until_in=2) == [[], [], [], [HealthAction.PUT_IN]]


def test_a_lost_connection_takes_it_out_and_does_not_replace_it() -> None:
    assert actions([A, HealthEvent.CONNECTION_LOST, A]) == [
        [HealthAction.PUT_IN],
        [HealthAction.TAKE_OUT],
        [HealthAction.PUT_IN],
    ]


@pytest.mark.parametrize("event", [HealthEvent.BROKEN, HealthEvent.ENDED])
def test_one_that_is_broken_or_gone_is_replaced_at_once(event: HealthEvent) -> None:
    assert actions([A, event]) == [[HealthAction.PUT_IN], [HealthAction.TAKE_OUT, HealthAction.REPLACE]]
    assert actions([event]) == [[HealthAction.REPLACE]]


def test_a_replaced_worker_has_all_its_probes_again() -> None:
    assert actions([A, M, M, M, M, M, M])[-3:] == [[], [], [HealthAction.REPLACE]]


def test_delays_grow_with_the_attempts_up_to_a_limit_and_are_spread() -> None:
    settings = RetrySettings(base_delay_s=0.1, max_delay_s=0.3, max_attempts=9)
    longest = [retries.decide(RequestFailure.ENGINE, failed, 0.0, settings, 1.0) for failed in (1, 2, 3, 4)]
    assert longest == [Retry(0.1), Retry(0.2), Retry(0.3), Retry(0.3)]
    assert retries.decide(RequestFailure.ENGINE, 2, 0.0, settings, 0.0) == Retry(0.0)


def test_a_wrong_request_too_many_failures_and_a_passed_deadline_end_it() -> None:
    settings = RetrySettings(deadline_s=10.0, max_attempts=3)
    assert isinstance(retries.decide(RequestFailure.REJECTED, 1, 0.0, settings, 0.5), GiveUp)
    assert retries.decide(RequestFailure.ENGINE, 3, 0.0, settings, 0.5) == GiveUp("3 attempts failed")
    assert retries.decide(RequestFailure.BUSY, 0, 10.0, settings, 0.5) == GiveUp("its deadline of 10 s has passed")
    assert isinstance(retries.decide(RequestFailure.BUSY, 0, 9.0, settings, 0.5), Retry)
