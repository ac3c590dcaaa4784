"""Advantages against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dart_train.trainer.advantage import group_advantages


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


def test_one_reward_is_no_group() -> None:
    with pytest.raises(ValueError, match="two"):
        group_advantages([1], "grpo")
