"""Advantages against numbers worked out by hand, and all of them against exact sums, over shapes, masks and extreme rewards."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_objectives import advantages, aggregate_by_trajectory
from trainer_harness import batch_of_members

from dart_train.config import TrainSection
from dart_train.objectives.advantages import EPSILON, AdvantageError, group_advantages, load_advantage
from dart_train.objectives.aggregation import Denominators, aggregate
from dart_train.objectives.settings import AdvantageOver, Aggregation, LossSettings
from dart_train.trainer.batches.rows import TrainRow, build_rows, select_steps, select_tokens
from dart_train.trainer.config import TrainerConfig


def test_grpo_divides_by_the_unbiased_deviation() -> None:
    deviation = np.sqrt(((1 - 0.25) ** 2 + 3 * 0.25**2) / 3)
    assert group_advantages([1, 0, 0, 0], "grpo") == pytest.approx(
        np.array([0.75, -0.25, -0.25, -0.25]) / deviation, rel=1e-5
    )


def test_without_deviation_and_leave_one_out() -> None:
    assert group_advantages([1, 0, 0, 0], "no_std") == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert group_advantages([1, 0, 0, 0], "leave_one_out") == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])


def test_equal_rewards_give_no_advantage() -> None:
    assert group_advantages([0.5, 0.5], "grpo") == pytest.approx([0, 0])


LENGTHS = [5, 5, *[30] * 6]
REWARDS = [1.0, 1.0, *[0.0] * 6]


def mean_advantage_in_the_loss(kind: str, over: AdvantageOver, aggregation: Aggregation) -> float:
    """What the loss makes of the advantages alone, with rows of different numbers of tokens."""
    batch = batch_of_members(REWARDS, LENGTHS)
    rows = build_rows(batch, kind, over)
    mask_BT = torch.zeros(len(rows), 9, dtype=torch.bool)
    for index in range(len(rows)):
        mask_BT[index, : 1 + index % 9] = True
    values_BT = torch.tensor([row.advantage for row in rows]).unsqueeze(-1).expand(mask_BT.shape)
    shares_B = torch.tensor([row.trajectory_share for row in rows])
    whole = Denominators(int(mask_BT.sum()), len(rows), float(shares_B.sum()))
    assert whole.trajectories == pytest.approx(len(REWARDS))
    return float(aggregate(values_BT, mask_BT, shares_B, LossSettings(aggregation=aggregation), whole))


@pytest.mark.parametrize(
    ("kind", "over", "aggregation"),
    [
        ("grpo", "group_steps", "seq_mean_token_mean"),
        ("no_std", "group_steps", "seq_mean_token_mean"),
        ("grpo", "group_trajectories", "trajectory_mean"),
        ("no_std", "group_trajectories", "trajectory_mean"),
        ("leave_one_out", "group_trajectories", "trajectory_mean"),
    ],
)
def test_advantages_cancel_in_the_loss_under_the_matching_aggregation(
    kind: str, over: AdvantageOver, aggregation: Aggregation
) -> None:
    assert mean_advantage_in_the_loss(kind, over, aggregation) == pytest.approx(0, abs=1e-6)


def test_the_defaults_of_recipe_and_trainer_match() -> None:
    fields = TrainerConfig.model_fields
    default = mean_advantage_in_the_loss(
        fields["advantage"].default, fields["advantage_over"].default, LossSettings().aggregation
    )
    assert default == pytest.approx(0, abs=1e-6)
    section = TrainSection()
    assert (section.advantage, section.advantage_over, section.aggregation) == (
        fields["advantage"].default,
        fields["advantage_over"].default,
        LossSettings().aggregation,
    )


def test_centred_over_members_long_failures_outweigh_short_successes() -> None:
    assert mean_advantage_in_the_loss("grpo", "group_trajectories", "seq_mean_token_mean") == pytest.approx(
        -0.43, abs=0.005
    )


def test_over_steps_by_hand() -> None:
    steps = np.array([1.0] * 10 + [0.0] * 180)
    wanted = (np.array([1.0, 0.0]) - steps.mean()) / steps.std(ddof=1)
    assert group_advantages(REWARDS, "grpo", LENGTHS)[[0, -1]] == pytest.approx(wanted, rel=1e-4)
    assert group_advantages([1, 0], "grpo", [0, 0]) == pytest.approx([0, 0])


def test_leave_one_out_over_steps_is_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match="whole trajectories"):
        group_advantages(REWARDS, "leave_one_out", LENGTHS)
    with pytest.raises(ValueError, match='set advantage_over = "group_trajectories"'):
        TrainSection(advantage="leave_one_out")


def test_one_reward_is_no_group() -> None:
    with pytest.raises(ValueError, match="two"):
        group_advantages([1], "grpo")


def own_module(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    module = ModuleType("my_advantages")
    for name, function in functions.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "my_advantages", module)
    load_advantage.cache_clear()


def test_an_advantage_of_ones_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over steps it gets the number of steps of each member, else None; what it does to its arguments changes nothing."""
    seen: list[Any] = []

    def ranks(rewards_G: Any, steps_G: Any) -> Any:
        seen.append(None if steps_G is None else steps_G.tolist())
        found = np.argsort(np.argsort(rewards_G)).astype(float)
        rewards_G[:] = 0.0
        return found - found.mean()

    own_module(monkeypatch, ranks=ranks)
    section = TrainSection(advantage="my_advantages:ranks")
    rewards = [0.2, 0.9, 0.5]
    assert group_advantages(rewards, section.advantage).tolist() == [-1.0, 1.0, 0.0]
    assert group_advantages(np.array(rewards), section.advantage, [3, 1, 4]).tolist() == [-1.0, 1.0, 0.0]
    assert seen == [None, [3.0, 1.0, 4.0]]
    batch = batch_of_members(rewards, [1, 1, 1])
    assert {row.rollout_id: row.advantage for row in build_rows(batch, section.advantage)} == {
        "roll_0": -1.0, "roll_1": 1.0, "roll_2": 0.0
    }  # fmt: skip


def test_an_advantage_that_cannot_be_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own_module(
        monkeypatch,
        CONSTANT=3,
        short=lambda rewards_G, steps_G: rewards_G[:1],
        holes=lambda rewards_G, steps_G: rewards_G / 0,
        fails=lambda rewards_G, steps_G: {}[0.0],
    )
    for name, reason in (
        (
            "grop",
            "there is no advantage 'grop': use one of grpo, no_std, leave_one_out, or your own as module:function",
        ),
        ("my_advantages:nope", "the advantage 'my_advantages:nope' cannot be loaded: AttributeError"),
        (".my_advantages:short", "cannot be loaded: TypeError"),
        ("my_advantages:CONSTANT", "the advantage 'my_advantages:CONSTANT' is no function: it is of the type int"),
    ):
        with pytest.raises(ValueError, match=reason):
            TrainSection(advantage=name)
    for name in ("short", "holes"):
        with np.errstate(all="ignore"), pytest.raises(AdvantageError, match="let it give a finite number for each"):
            group_advantages([1.0, 0.0], f"my_advantages:{name}")
    with pytest.raises(AdvantageError, match=r"failed for the rewards \[1.0, 0.0\]: KeyError"):
        group_advantages([1.0, 0.0], "my_advantages:fails")


KINDS: tuple[tuple[str, AdvantageOver], ...] = (
    ("grpo", "group_steps"),
    ("grpo", "group_trajectories"),
    ("no_std", "group_steps"),
    ("no_std", "group_trajectories"),
    ("leave_one_out", "group_trajectories"),
)
REWARD = st.one_of(
    st.sampled_from([0.0, 1.0]),
    st.floats(0, 1),
    st.sampled_from([1e-12, 1e-9, 1e-6, 1 - 1e-9, 1 - 1e-12]),
    st.floats(-1e6, 1e6),
)


@given(
    kind_over=st.sampled_from(KINDS),
    members=st.lists(st.tuples(REWARD, st.integers(0, 40), st.booleans()), min_size=2, max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_every_advantage_is_that_of_exact_sums(
    kind_over: tuple[str, AdvantageOver], members: list[tuple[float, int, bool]]
) -> None:
    """Of each member all rows, or all but one, are left out of the batch; that must not move the baseline."""
    kind, over = kind_over
    rewards, lengths = [reward for reward, _, _ in members], [length for _, length, _ in members]
    batch = batch_of_members(rewards, lengths)
    whole = {f"roll_{index}" for index, (_, _, all_rows) in enumerate(members) if all_rows}
    batch.rows[:] = [row for row in batch.rows if row.rollout_id in whole or row.step.index == 0]
    wanted = dict(
        zip(
            [member.rollout_id for member in batch.groups[0].members],
            advantages(rewards, kind, lengths if over == "group_steps" else None),
            strict=True,
        )
    )
    rounding = 64 * float(np.finfo(np.float64).eps) * max(map(abs, rewards)) / (EPSILON if kind == "grpo" else 1)
    for row in build_rows(batch, kind, over):
        assert row.advantage == pytest.approx(wanted[row.rollout_id], rel=1e-6, abs=rounding)
    direct = group_advantages(rewards, kind, lengths if over == "group_steps" else None)
    assert direct == pytest.approx(np.array(list(wanted.values())), rel=1e-6, abs=rounding)


def aggregated(rows: list[TrainRow], aggregation: Aggregation) -> tuple[float, float]:
    """What the loss makes of a value per row, and what the reference makes of it."""
    length = max(row.positions for row in rows)
    mask_BT = torch.zeros(len(rows), length, dtype=torch.bool)
    values_BT = torch.zeros(len(rows), length, dtype=torch.float64)
    values: dict[tuple[str, int], list[float]] = {}
    for index, row in enumerate(rows):
        for start, end in row.trainable:
            mask_BT[index, start:end] = True
        values_BT[index] = torch.arange(length, dtype=torch.float64) + 10 * index + row.advantage
        values[(row.rollout_id, row.step.index)] = values_BT[index][mask_BT[index]].tolist()
    shares_B = torch.tensor([row.trajectory_share for row in rows], dtype=torch.float64)
    whole = Denominators(int(mask_BT.sum()), len(rows), sum(row.trajectory_share for row in rows))
    chosen = LossSettings(aggregation=aggregation, constant_length=7)
    return float(aggregate(values_BT, mask_BT, shares_B, chosen, whole)), aggregate_by_trajectory(
        values, aggregation, chosen.constant_length
    )


@given(
    lengths=st.lists(st.integers(1, 10), min_size=2, max_size=5),
    step_fraction=st.floats(0.05, 1),
    token_fraction=st.floats(0.05, 1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize("aggregation", ["trajectory_mean", "constant_length"])
def test_a_trajectory_counts_once_whatever_curation_leaves_of_it(
    aggregation: Aggregation, lengths: list[int], step_fraction: float, token_fraction: float, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    rows = build_rows(batch_of_members([float(index % 2) for index in range(len(lengths))], lengths, tokens=4), "grpo")
    entropies_T = {row.key: chance.random(row.positions) for row in rows}
    means = {key: float(each_T.mean()) for key, each_T in entropies_T.items()}
    kept, _ = select_steps(rows, means, step_fraction)
    narrowed, _ = select_tokens(kept, entropies_T, token_fraction)
    for left in (rows, kept, narrowed):
        found, wanted = aggregated(left, aggregation)
        assert found == pytest.approx(wanted, rel=1e-9)
