"""Intervals against published tables, exact enumeration, and their coverage by simulation."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest

from dart_envs.evaluation.report import wilson_interval
from dart_train.evaluation.statistics import (
    Estimate,
    mean_over_seeds,
    pass_rate,
    student_t_quantile,
    success_rate,
)


@pytest.mark.parametrize(
    ("degrees", "published"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_quantiles_of_students_t_are_those_of_the_tables(degrees: int, published: float) -> None:
    assert student_t_quantile(degrees) == pytest.approx(published, abs=6e-4)


def test_wilsons_interval_solves_its_equation() -> None:
    """Its ends are the shares p with |share - p| = z · sqrt(p (1 - p) / n)."""
    for share, size in ((0.3, 20.0), (0.95, 41.5), (0.0, 8.0), (1.0, 8.0)):
        for end in wilson_interval(share, size):
            assert abs(share - end) == pytest.approx(1.959963984540054 * math.sqrt(end * (1 - end) / size), abs=1e-9)


def test_one_episode_per_task_gives_wilsons_interval() -> None:
    rewards = {f"s/f/{number}": [float(number < 13)] for number in range(40)}
    found = success_rate(rewards)
    assert found is not None
    assert (found.value, found.lower, found.upper) == pytest.approx((13 / 40, *wilson_interval(13 / 40, 40)))
    assert found.count == 40


def test_copies_of_an_episode_narrow_nothing() -> None:
    once = {f"s/f/{number}": [float(number < 13)] for number in range(40)}
    assert success_rate({task: rewards * 8 for task, rewards in once.items()}) == success_rate(once)


def test_a_task_that_is_always_solved_counts_once() -> None:
    found = success_rate({"s/f/0": [1.0] * 100})
    assert found is not None
    assert found.lower == pytest.approx(wilson_interval(1.0, 1)[0])


def test_partial_credit_is_no_success() -> None:
    found = success_rate({"s/f/0": [0.99, 1.0], "s/f/1": [0.5, 0.0]})
    assert found is not None
    assert found.value == 0.25


def test_pass_at_k_is_the_mean_over_all_choices_of_k() -> None:
    rewards = {"s/f/0": [1.0, 0, 0, 1, 0], "s/f/1": [0.0] * 5, "s/f/2": [1.0, 1, 1, 0, 0]}
    for k in (1, 2, 3, 5):
        enumerated = [
            sum(any(choice) for choice in combinations(each, k)) / math.comb(5, k) for each in rewards.values()
        ]
        found = pass_rate(rewards, k)
        assert found is not None
        assert found.value == pytest.approx(sum(enumerated) / 3)
    assert pass_rate(rewards, 6) is None


def test_one_seed_has_no_interval_and_three_have_a_wide_one() -> None:
    assert mean_over_seeds([0.4]) == Estimate(0.4, None, None, 1)
    found = mean_over_seeds([0.4, 0.5, 0.6])
    assert (found.value, found.lower, found.upper) == pytest.approx(
        (0.5, 0.5 - 4.3027 * 0.1 / 3**0.5, 0.5 + 0.24841), abs=1e-4
    )


@pytest.mark.parametrize(("k", "samples"), [(1, 1), (1, 8), (4, 8)])
def test_intervals_cover_the_truth_where_tasks_differ(k: int, samples: int) -> None:
    """Chances of tasks from Beta(1/2, 1): 2,000 evaluations of 40 tasks; the standard error of the coverage is 0.5 points."""
    draw = random.Random(7)
    truth = sum(1 - (1 - ((number + 0.5) / 20_000) ** 2) ** k for number in range(20_000)) / 20_000
    covered = 0
    for _ in range(2_000):
        chances = [draw.betavariate(0.5, 1.0) for _ in range(40)]
        rewards = {str(task): [float(draw.random() < p) for _ in range(samples)] for task, p in enumerate(chances)}
        found = pass_rate(rewards, k)
        assert found is not None
        assert found.lower is not None
        assert found.upper is not None
        covered += found.lower <= truth <= found.upper
    assert 0.93 <= covered / 2_000 <= 0.975


def test_treating_repeats_as_independent_would_not_cover_the_truth() -> None:
    """The reason for the rule: the same evaluations of 8 repeats with an interval over episodes."""
    draw = random.Random(7)
    covered = 0
    for _ in range(500):
        chances = [draw.betavariate(0.5, 1.0) for _ in range(40)]
        share = sum(draw.random() < p for p in chances for _ in range(8)) / 320
        lower, upper = wilson_interval(share, 320)
        covered += lower <= 1 / 3 <= upper
    assert covered / 500 < 0.8
