"""The curation rules against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_train.curation.backpressure import may_open_group
from dart_train.curation.experience_pool import ExperiencePoolSettings, StoredSuccess, select_success
from dart_train.curation.group_filter import uninformative_reason
from dart_train.curation.length_budget import LengthBudgetSettings, length_budget
from dart_train.curation.rollout_budget import RolloutBudgetSettings, evidence_size, rollout_budget
from dart_train.curation.staleness import token_staleness, trainable_ranges
from dart_train.curation.step_filter import select_high_entropy
from dart_train.curation.task_sampler import TaskSampler, TaskSamplerSettings, family_weights, learnability
from dart_train.curation.token_filter import select_high_entropy_tokens
from dart_train.curation.weighted_draw import WeightedDraw


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
        ([0.5, 0.5], "all_failed"),
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


@pytest.mark.parametrize(
    ("successes", "failures", "expected"), [(0, 0, 8), (0, 32, 8), (4, 4, 8), (8, 0, 4), (24, 8, 7), (32, 0, 3)]
)
def test_the_smooth_rule_has_no_threshold_and_needs_no_full_group(successes: int, failures: int, expected: int) -> None:
    settings = RolloutBudgetSettings(enabled=True, rule="smooth")
    assert rollout_budget(8, [1.0] * successes + [0.0] * failures, settings) == expected
    assert (evidence_size(8, settings), evidence_size(8, RolloutBudgetSettings())) == (32, 8)


def test_the_smooth_rule_never_grows_with_the_success_rate() -> None:
    settings = RolloutBudgetSettings(enabled=True, rule="smooth")
    sizes = [rollout_budget(8, [1.0] * count + [0.0] * (32 - count), settings) for count in range(33)]
    assert sizes == sorted(sizes, reverse=True)


def test_length_budget() -> None:
    settings = LengthBudgetSettings(enabled=True, margin_steps=2, min_successes=3)
    assert length_budget(30, [3, 9, 4], settings) == 11
    assert length_budget(10, [3, 9, 4], settings) == 10
    assert length_budget(30, [3, 9], settings) == 30
    assert length_budget(30, [3, 9, 4], LengthBudgetSettings(min_successes=3)) == 30


def test_a_short_habit_cannot_hide_a_longer_way_for_good() -> None:
    settings = LengthBudgetSettings(enabled=True, min_successes=1, full_length_fraction=0.25)
    chance = Random(0)
    budgets = Counter(length_budget(30, [3], settings, chance=chance.random()) for _ in range(1000))
    assert budgets.keys() == {4, 30}
    assert budgets[30] == pytest.approx(250, abs=50)
    assert length_budget(30, [3], settings, recent_rewards=[0.0] * 8) == 30
    assert length_budget(30, [3], settings, recent_rewards=[0.0] * 7 + [1.0]) == 4
    as_in_the_paper = LengthBudgetSettings(enabled=True, margin_steps=0, min_successes=1, full_length_fraction=0)
    assert length_budget(30, [3, 9], as_in_the_paper, recent_rewards=[0.0] * 8, chance=0.0) == 9


def pooled(*ages: int, content: str | None = None, uses: int = 0) -> list[StoredSuccess]:
    return [StoredSuccess(f"r{age}", content or f"tokens of r{age}", age, uses) for age in ages]


def chosen(
    successes: list[StoredSuccess], settings: ExperiencePoolSettings, taken: set[str] | None = None
) -> str | None:
    found = select_success(successes, settings, taken or set())
    return None if found is None else found.rollout_id


def test_the_pool_gives_the_newest_success_that_is_young_enough() -> None:
    settings = ExperiencePoolSettings(enabled=True, max_age=5)
    assert chosen(pooled(7, 5, 2), settings) == "r5"
    assert chosen(pooled(-1, 6), settings) is None
    assert chosen(pooled(0), ExperiencePoolSettings()) is None
    assert chosen(pooled(700), ExperiencePoolSettings(enabled=True, max_age=None)) == "r700"


def test_a_success_is_used_a_limited_number_of_times_whatever_rollout_sampled_it() -> None:
    settings = ExperiencePoolSettings(enabled=True, max_uses=2)
    assert chosen(pooled(1, uses=2) + pooled(3), settings) == "r3"
    twins = pooled(1, content="same") + pooled(2, content="same", uses=2)
    assert chosen(twins + pooled(3), settings) == "r3"
    assert chosen(twins, ExperiencePoolSettings(enabled=True, max_uses=None)) == "r1"


def test_nothing_is_twice_in_a_batch() -> None:
    settings = ExperiencePoolSettings(enabled=True, max_uses=None)
    assert chosen(pooled(1, 2), settings, {"tokens of r1"}) == "r2"
    assert chosen(pooled(1, content="same") + pooled(2, content="same"), settings, {"same"}) is None


def test_step_filter_keeps_the_undecided_share() -> None:
    assert select_high_entropy([0.1, 0.2, 0.3, 0.4, 0.5], 0.8) == [False, True, True, True, True]
    assert select_high_entropy([0.3, 0.3], 0.5) == [True, True]
    assert select_high_entropy([0.3, 0.1], 1.0) == [True, True]
    with pytest.raises(ValueError, match="fraction"):
        select_high_entropy([0.3], 0.0)


@given(
    entropies=st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.30000000000000004, 0.5]), min_size=1, max_size=40),
    percent=st.integers(1, 100),
)
def test_the_filter_keeps_exactly_the_share_and_what_ties_with_its_lowest(entropies: list[float], percent: int) -> None:
    kept = select_high_entropy(entropies, percent / 100)
    least = -(-percent * len(entropies) // 100)
    chosen = sorted((value for value, keep in zip(entropies, kept, strict=True) if keep), reverse=True)
    assert len(chosen) >= least
    assert all(value == chosen[least - 1] for value in chosen[least:])
    assert chosen == sorted(entropies, reverse=True)[: len(chosen)]
    assert chosen[-1] not in [value for value, keep in zip(entropies, kept, strict=True) if not keep]


def test_a_share_of_many_steps_is_not_lost_to_rounding() -> None:
    assert sum(select_high_entropy([float(number) for number in range(100)], 0.29)) == 29
    assert sum(select_high_entropy([float(number) for number in range(10)], 0.7)) == 7


def test_the_token_filter_takes_its_threshold_over_the_batch_and_over_what_may_train() -> None:
    rows = [np.array([0.9, 0.1, 0.2, 5.0]), np.array([0.8, 0.7])]
    assert select_high_entropy_tokens(rows, [((0, 3),), ((0, 2),)], 0.4) == [((0, 1),), ((0, 1),)]
    assert select_high_entropy_tokens(rows, [((0, 2), (3, 4)), ((0, 2),)], 0.6) == [((0, 1), (3, 4)), ((0, 1),)]
    assert select_high_entropy_tokens(rows, [((0, 4),), ()], 1.0) == [((0, 4),), ()]
    assert select_high_entropy_tokens([np.full(3, 0.5)], [((0, 3),)], 0.1) == [((0, 3),)]


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
    settings = TaskSamplerSettings(rule="family-difficulty", floor=0.25)
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


def test_learnability_is_greatest_where_half_succeed_and_where_nothing_is_known() -> None:
    assert learnability([]) == 1
    assert learnability([1.0, 0.0] * 16) == pytest.approx(4 * 17 * 17 / (34 * 35) + 1 / 99)
    assert learnability([0.0] * 32) == learnability([1.0] * 32) == pytest.approx(4 * 33 / (34 * 35) + 1 / 99)
    assert learnability([0.0] * 8) > learnability([0.0] * 32)


def test_learnability_draws_tasks_that_are_neither_solved_nor_hopeless() -> None:
    settings = TaskSamplerSettings(rule="learnability", floor=0.1)
    tasks = {"easy": ["s/easy/1", "s/easy/2"], "hard": ["s/hard/1"]}
    sampler, random = TaskSampler(tasks, settings), Random(0)
    weights = {"s/easy/1": 0.5 * (0.1 + learnability([1.0] * 32)), "s/easy/2": 0.5 * (0.1 + 1), "s/hard/1": 0.1 + 1}
    sampler.observe("s/easy/1", [1.0] * 32)
    sampler.observe("s/other/1", [1.0])
    draws = Counter(sampler.choose({}, random) for _ in range(4000))
    for task_id, weight in weights.items():
        assert draws[task_id] == pytest.approx(4000 * weight / sum(weights.values()), abs=150)


@given(
    weights=st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=20),
    changes=st.lists(st.tuples(st.integers(0, 19), st.sampled_from([0.0, 0.5, 2.0])), max_size=10),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_weighted_draw_is_that_of_the_running_sums(
    weights: list[float], changes: list[tuple[int, float]], chance: float
) -> None:
    draw = WeightedDraw(weights)
    for item, weight in changes:
        if item < len(weights):
            draw.change(item, weight)
            weights[item] = weight
    if not any(weights):
        with pytest.raises(ValueError, match="zero"):
            draw.draw(chance)
        return
    sums = np.cumsum(weights)
    assert draw.total == sums[-1]
    assert draw.draw(chance) == int(np.searchsorted(sums, chance * sums[-1], side="right"))
