"""Advantages against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trainer_harness import batch_of_members

from dart_train.config import TrainSection
from dart_train.objectives.advantages import group_advantages
from dart_train.objectives.aggregation import Denominators, aggregate
from dart_train.objectives.settings import AdvantageKind, AdvantageOver, Aggregation, LossSettings
from dart_train.trainer.batches.rows import build_rows
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


def mean_advantage_in_the_loss(kind: AdvantageKind, over: AdvantageOver, aggregation: Aggregation) -> float:
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
    kind: AdvantageKind, over: AdvantageOver, aggregation: Aggregation
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
