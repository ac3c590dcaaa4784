"""The curation rules against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dart_train.curation.backpressure import may_open_group
from dart_train.curation.experience_pool import ExperiencePoolSettings, select_success
from dart_train.curation.group_filter import uninformative_reason
from dart_train.curation.length_budget import LengthBudgetSettings, length_budget
from dart_train.curation.rollout_budget import RolloutBudgetSettings, rollout_budget
from dart_train.curation.staleness import token_staleness, trainable_ranges
from dart_train.curation.step_filter import select_high_entropy
from dart_train.curation.task_sampler import TaskSampler, TaskSamplerSettings, family_weights


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(10, 0, 5)], [(0, 5)]),
        ([(6, 0, 2), (8, 2, 5)], [(2, 5)]),
        ([(7, 0, 2), (8, 2, 5)], [(0, 5)]),
        ([(8, 0, 1), (5, 1, 3), (9, 3, 4)], [(0, 1), (3, 4)]),
        ([(11, 0, 3)], []),
        ([], []),
    ],
)
def test_staleness_is_gated_per_token(spans: list[tuple[int, int, int]], expected: list[tuple[int, int]]) -> None:
    assert trainable_ranges(spans, trainer_version=10, max_staleness=3) == expected


def test_staleness_zero_is_strictly_on_policy() -> None:
    assert trainable_ranges([(4, 0, 2), (5, 2, 3)], 5, 0) == [(2, 3)]
    assert token_staleness([(4, 0, 2), (5, 2, 3)], 5) == [1, 1, 0]


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([0, 1], None),
        ([0, 0.5, 0], None),
        ([0, 0, 0], "all_failed"),
        ([1, 1], "all_succeeded"),
        ([0.5, 0.5], "no_variance"),
        ([1], "too_few_members"),
        ([], "too_few_members"),
    ],
)
def test_groups_without_variance_are_named(rewards: list[float], reason: str | None) -> None:
    assert uninformative_reason(rewards, 2) == reason


@pytest.mark.parametrize(("successes", "expected"), [(0, 8), (59, 8), (60, 8), (70, 5), (80, 4), (90, 3), (100, 2)])
def test_rollout_budget_follows_the_published_table(successes: int, expected: int) -> None:
    rewards = [1.0] * successes + [0.0] * (100 - successes)
    assert rollout_budget(8, rewards, RolloutBudgetSettings(enabled=True)) == expected


def test_rollout_budget_needs_evidence_and_its_switch() -> None:
    assert rollout_budget(8, [1.0] * 7, RolloutBudgetSettings(enabled=True)) == 8
    assert rollout_budget(8, [1.0] * 8, RolloutBudgetSettings()) == 8
    assert rollout_budget(8, [1.0] * 8, RolloutBudgetSettings(enabled=True, min_rollouts=4)) == 4
    assert rollout_budget(3, [1.0] * 8, RolloutBudgetSettings(enabled=True)) == 2


def test_length_budget() -> None:
    settings = LengthBudgetSettings(enabled=True, margin_steps=2, min_successes=3)
    assert length_budget(30, [3, 9, 4], settings) == 11
    assert length_budget(10, [3, 9, 4], settings) == 10
    assert length_budget(30, [3, 9], settings) == 30
    assert length_budget(30, [3, 9, 4], LengthBudgetSettings(min_successes=3)) == 30


def test_success_pool_takes_the_newest_that_is_young_enough() -> None:
    settings = ExperiencePoolSettings(enabled=True, max_age=5)
    assert select_success([7, 5, 2], settings) == 1
    assert select_success([-1, 6], settings) is None
    assert select_success([0], ExperiencePoolSettings()) is None


def test_step_filter_keeps_the_undecided_share() -> None:
    assert select_high_entropy([0.1, 0.2, 0.3, 0.4, 0.5], 0.8) == [False, True, True, True, True]
    assert select_high_entropy([0.3, 0.3], 0.5) == [True, True]
    assert select_high_entropy([0.3, 0.1], 1.0) == [True, True]
    with pytest.raises(ValueError, match="fraction"):
        select_high_entropy([0.3], 0.0)


def test_backpressure() -> None:
    assert may_open_group(2, 3)
    assert not may_open_group(3, 3)
    assert may_open_group(10**6, None)


TASKS = {"easy": ["s/easy/1", "s/easy/2"], "hard": ["s/hard/1"]}


def draw(settings: TaskSamplerSettings, rates: dict[str, float], count: int = 2000) -> Counter[str]:
    random = Random(0)
    sampler = TaskSampler(TASKS, settings)
    return Counter(sampler.choose(rates, random).split("/")[1] for _ in range(count))


def test_families_are_uniform_unless_weighted() -> None:
    assert draw(TaskSamplerSettings(), {})["easy"] == pytest.approx(1000, abs=100)
    assert draw(TaskSamplerSettings(weights={"easy": 3.0}), {})["easy"] == pytest.approx(1500, abs=100)
    assert draw(TaskSamplerSettings(weights={"easy": 0.0}), {})["easy"] == 0


def test_difficulty_shifts_work_to_where_rewards_vary() -> None:
    settings = TaskSamplerSettings(difficulty_aware=True, floor=0.25)
    weights = family_weights(["easy", "hard", "new"], {"easy": 1.0, "hard": 0.25}, settings)
    assert weights == pytest.approx({"easy": 0.25, "hard": 1.0, "new": 1.25})
    assert draw(settings, {"easy": 1.0, "hard": 0.5})["hard"] == pytest.approx(2000 * 1.25 / 1.5, abs=100)


def test_the_task_run_least_often_is_next() -> None:
    runs = {"s/easy/1": 3, "s/easy/2": 2}
    only_easy = TaskSamplerSettings(weights={"hard": 0.0})
    sampler, random = TaskSampler({"easy": ["s/easy/1", "s/easy/2"], "hard": ["s/hard/1"]}, only_easy, runs), Random(1)
    chosen = [sampler.choose({}, random) for _ in range(5)]
    assert chosen[0] == "s/easy/2"
    assert Counter(chosen[1:]) == {"s/easy/1": 2, "s/easy/2": 2}


def test_all_weights_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match="weights"):
        TaskSampler(TASKS, TaskSamplerSettings(weights={"easy": 0.0, "hard": 0.0})).choose({}, Random(1))
