"""The definitions of utilisation against hand-computed numbers, and the running sums against the intervals."""

from __future__ import annotations

import random

import pytest

from dart_train.utilisation import (
    IntervalUnion,
    MetricSummary,
    SlotActivity,
    StateTimes,
    TrainerActivity,
    WorkerActivity,
    in_use_share,
    per_minute,
    slot_shares,
    state_seconds,
    summarize,
    trainer_shares,
    withheld_fraction,
    worker_shares,
)


def test_environment_utilisation_is_executing_plus_waiting_for_a_running_request() -> None:
    seconds = {
        SlotActivity.RESETTING: 10.0,
        SlotActivity.EXECUTING: 30.0,
        SlotActivity.RUNNING: 50.0,
        SlotActivity.QUEUED: 20.0,
    }
    shares = slot_shares(seconds, slots=2, window_s=100.0)
    assert (shares.resetting, shares.executing, shares.running, shares.queued) == (0.05, 0.15, 0.25, 0.1)
    assert shares.idle == pytest.approx(0.45)
    assert shares.utilisation == pytest.approx(0.40)


def test_a_worker_that_takes_weights_or_is_down_is_not_utilised() -> None:
    shares = worker_shares(
        {WorkerActivity.SERVING: 60.0, WorkerActivity.UPDATING: 20.0, WorkerActivity.DOWN: 10.0}, 2, 50.0
    )
    assert (shares.serving, shares.updating, shares.down, shares.idle) == pytest.approx((0.6, 0.2, 0.1, 0.1))
    assert shares.utilisation == 0.6


def test_trainer_utilisation_is_training_without_publishing() -> None:
    shares = trainer_shares({TrainerActivity.TRAINING: 30.0, TrainerActivity.PUBLISHING: 20.0}, 100.0)
    assert (shares.training, shares.publishing, shares.waiting) == pytest.approx((0.3, 0.2, 0.5))
    assert shares.utilisation == 0.3


def test_states_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="intervals of one resource overlap"):
        slot_shares({SlotActivity.EXECUTING: 80.0, SlotActivity.RUNNING: 40.0}, slots=1, window_s=100.0)
    with pytest.raises(ValueError, match="a window with some time"):
        worker_shares({}, 1, 0.0)


def test_running_sums_equal_the_sums_over_intervals() -> None:
    draw = random.Random(7)
    names = [f"slot-{index}" for index in range(5)]
    begin_s = 40.0
    times = StateTimes(dict.fromkeys(names, SlotActivity.IDLE))
    current = {name: (SlotActivity.IDLE, 0.0) for name in names}
    intervals = []
    now_s, restarted = 0.0, False
    for _ in range(300):
        now_s += draw.expovariate(1.0)
        if now_s >= begin_s and not restarted:
            times.restart(begin_s)
            restarted = True
        name, state = draw.choice(names), draw.choice(list(SlotActivity))
        intervals.append((current[name][0], current[name][1], now_s))
        current[name] = (state, now_s)
        times.change(name, state, now_s)
    intervals += [(state, since, now_s) for state, since in current.values()]
    expected = state_seconds(intervals, [(begin_s, now_s)])
    assert times.seconds(now_s) == pytest.approx(expected)
    assert sum(expected.values()) == pytest.approx(len(names) * (now_s - begin_s))


def test_rates_and_shares_of_nothing_are_zero() -> None:
    assert per_minute(5, 0.0) == 0.0
    assert per_minute(5, 20.0) == 15.0
    assert withheld_fraction(0, 0) == 0.0
    assert withheld_fraction(1, 49) == 0.02
    assert summarize([]) == MetricSummary(0, 0.0, 0.0, 0.0, 0.0)


def test_percentiles_are_nearest_rank() -> None:
    assert summarize(float(value) for value in range(100, 0, -1)) == MetricSummary(100, 50.5, 50.0, 95.0, 100.0)


def test_requests_under_way_at_the_same_time_count_once() -> None:
    first, second = IntervalUnion(), IntervalUnion()
    for begin_s, end_s in ((0.0, 10.0), (8.0, 12.0), (20.0, 22.0), (19.0, 23.0), (11.0, 30.0)):
        first.add(begin_s, end_s)
    second.add(40.0, 50.0)
    assert first.inside_s((5.0, 100.0)) == 25.0
    assert in_use_share([first, second], 2, (5.0, 45.0)) == pytest.approx((25.0 + 5.0) / 80.0)
