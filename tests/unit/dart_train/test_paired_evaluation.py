"""Paired statistics against hand-computed numbers."""

from __future__ import annotations

import math

import pytest

from dart_train.report.paired_evaluation import compare_evaluations, gain


def test_gain_of_known_pairs() -> None:
    # differences 1, 0, 0, 1: mean 0.5, sample variance 1/3
    result = gain([(0.0, 1.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    assert result.before_percent == pytest.approx(25.0)
    assert result.after_percent == pytest.approx(75.0)
    assert result.gain_points == pytest.approx(50.0)
    assert result.gain_lower_points == pytest.approx(50.0 - 100 * 1.959964 * math.sqrt(1 / 3 / 4), abs=1e-3)


def test_an_interval_stays_within_what_a_gain_can_be() -> None:
    one = gain([(0.0, 1.0)])
    assert (one.gain_points, one.gain_lower_points, one.gain_upper_points) == (100.0, -100.0, 100.0)


def test_items_without_a_verdict_are_left_out_and_counted() -> None:
    before = {("basics/a/1", 0): 0.0, ("basics/a/2", 0): None, ("basics/b/1", 0): 1.0}
    after = {("basics/a/1", 0): 1.0, ("basics/a/2", 0): 1.0, ("basics/b/1", 0): 1.0, ("basics/b/2", 0): 0.0}
    verdict = compare_evaluations(before, after)
    assert verdict is not None
    assert verdict.unpaired == 2
    assert verdict.overall.episodes == 2
    assert verdict.families["a"].gain_points == pytest.approx(100.0)
    assert verdict.families["b"].gain_points == pytest.approx(0.0)


def test_a_run_without_change_has_not_learned() -> None:
    same = {(f"basics/a/{i}", 0): float(i % 2) for i in range(20)}
    verdict = compare_evaluations(same, same)
    assert verdict is not None
    assert not verdict.learned(0.0)


def test_a_clear_gain_has_learned() -> None:
    before = {(f"basics/a/{i}", 0): float(i % 4 == 0) for i in range(100)}
    after = {(f"basics/a/{i}", 0): float(i % 4 != 1) for i in range(100)}
    verdict = compare_evaluations(before, after)
    assert verdict is not None
    assert verdict.learned(20.0)
    assert not verdict.learned(60.0)


def test_nothing_to_pair_is_no_verdict() -> None:
    assert compare_evaluations({("basics/a/1", 0): None}, {("basics/a/1", 0): 1.0}) is None
    assert compare_evaluations({}, {}) is None
