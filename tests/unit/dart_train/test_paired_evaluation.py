"""Paired statistics against hand-computed numbers."""

from __future__ import annotations

import math

import pytest

from dart_train.evaluation.paired_evaluation import compare_evaluations, gain, tango_interval


def test_gain_of_known_pairs() -> None:
    result = gain([(0.0, 1.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    assert result.before_percent == pytest.approx(25.0)
    assert result.after_percent == pytest.approx(75.0)
    assert result.gain_points == pytest.approx(50.0)


def test_partial_rewards_have_the_interval_of_the_normal_approximation() -> None:
    # differences 0.5 and 0, ten each: mean 0.25, sample variance 20/19 / 16
    result = gain([(0.0, 0.5), (0.5, 0.5)] * 10)
    half = 100 * 1.959964 * math.sqrt(20 / 19 / 16 / 20)
    assert (result.gain_lower_points, result.gain_upper_points) == pytest.approx((25 - half, 25 + half), abs=1e-3)


def test_means_of_partial_rewards_are_not_called_success() -> None:
    first = {("basics/a/0000", 0): 0.0, ("basics/a/0001", 0): 1.0}
    whole, partial = compare_evaluations(first, first), compare_evaluations(first, {**first, ("basics/a/0000", 0): 0.5})
    assert whole is not None
    assert partial is not None
    assert (whole.measure, partial.measure) == ("success", "mean reward")


def test_partial_rewards_of_which_few_changed_have_no_interval() -> None:
    few = gain([(0.0, 0.5)] * 9 + [(0.5, 0.5)] * 21)
    assert few.gain_points == pytest.approx(15.0)
    assert (few.gain_lower_points, few.gain_upper_points) == (None, None)
    assert few.describe_interval() == "no 95 % interval: too few tasks changed"
    before = {(f"basics/a/{i}", 0): 0.5 for i in range(4)}
    verdict = compare_evaluations(before, {item: 1.0 for item in before})
    assert verdict is not None
    assert not verdict.learned(0.0)


@pytest.mark.parametrize(
    ("gained", "lost", "pairs", "z", "lower", "upper"),
    [
        # M. W. Fagerland et al. (2014), BMC Medical Research Methodology 14, 2: hyper-responsiveness before and after a transplantation
        (1, 7, 21, 1.959964, -0.517, -0.026),
        # R, PropCIs::scoreci.mp(25, 28, 618, 0.90)
        (28, 25, 618, 1.644854, -0.0148, 0.0247),
    ],
)
def test_the_score_interval_is_the_published_one(
    gained: int, lost: int, pairs: int, z: float, lower: float, upper: float
) -> None:
    digits = 3 if abs(lower) > 0.1 else 4
    found = tango_interval(gained, lost, pairs, z)
    assert tuple(round(end, digits) for end in found) == (lower, upper)


@pytest.mark.parametrize(("gained", "lost", "pairs"), [(0, 0, 30), (1, 0, 30), (3, 8, 40), (30, 0, 30), (1, 0, 1)])
def test_the_ends_of_the_score_interval_are_where_the_score_is_the_quantile(gained: int, lost: int, pairs: int) -> None:
    """An independent computation: the constrained maximum of the likelihood is searched for."""

    def squared_score(difference: float) -> float:
        low, high = max(0.0, -difference), (1 - difference) / 2

        def log_likelihood(q: float) -> float:
            terms = ((gained, q + difference), (lost, q), (pairs - gained - lost, 1 - 2 * q - difference))
            return sum(count * math.log(max(share, 1e-300)) for count, share in terms if count)

        for _ in range(200):
            first, second = low + (high - low) / 3, high - (high - low) / 3
            low, high = (first, high) if log_likelihood(first) < log_likelihood(second) else (low, second)
        variance = (2 * low + difference - difference**2) / pairs
        return float(((gained - lost) / pairs - difference) ** 2 / variance)

    estimate = (gained - lost) / pairs
    for end in tango_interval(gained, lost, pairs):
        if abs(end) < 0.999999:
            assert squared_score(end) == pytest.approx(1.959964**2, rel=1e-4)
    lower, upper = tango_interval(gained, lost, pairs)
    assert -1 <= lower <= estimate <= upper <= 1
    assert upper - lower > 0.01, "no number of tasks is certainty"


def test_an_interval_has_width_where_nothing_changed() -> None:
    same = gain([(0.0, 0.0)] * 21 + [(1.0, 1.0)] * 9)
    share = 100 * 1.959964**2 / (30 + 1.959964**2)
    assert (same.gain_lower_points, same.gain_upper_points) == pytest.approx((-share, share), abs=1e-3)
    assert same.describe_interval() == "95 % interval -11.4 to +11.4"


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
