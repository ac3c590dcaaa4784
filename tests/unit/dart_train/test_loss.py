"""The loss against numbers worked out by hand, and against a slow reference written here in plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dart_train.trainer.config import LossSettings
from dart_train.trainer.loss import (
    Denominators,
    aggregate,
    clipped_surrogate,
    kl_k3,
    policy_loss,
    truncated_importance_weight,
)


def log(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def test_clip_is_asymmetric_and_only_binds_where_it_hurts() -> None:
    ratio_BT = torch.tensor([[0.5, 1.0, 1.5], [0.5, 1.0, 1.5]], dtype=torch.float64)
    value_BT = clipped_surrogate(ratio_BT, torch.tensor([2.0, -2.0], dtype=torch.float64), 0.2, 0.28)
    assert value_BT.tolist() == [[1.0, 2.0, pytest.approx(2.56)], [pytest.approx(-1.6), -2.0, -3.0]]


def test_dual_clip_bounds_negative_advantages_only() -> None:
    ratio_BT = torch.tensor([[10.0], [10.0]], dtype=torch.float64)
    value_BT = clipped_surrogate(ratio_BT, torch.tensor([1.0, -1.0], dtype=torch.float64), 0.2, 0.28, dual_clip=3.0)
    assert value_BT.flatten().tolist() == [pytest.approx(1.28), -3.0]


def test_importance_weight_is_truncated_and_has_no_gradient() -> None:
    old_BT = log([[0.5, 0.1, 0.4]]).requires_grad_()
    weight_BT = truncated_importance_weight(old_BT, log([[0.25, 0.2, 0.1]]), cap=2.0)
    assert weight_BT.tolist() == [[pytest.approx(2.0), pytest.approx(0.5), pytest.approx(2.0)]]
    assert not weight_BT.requires_grad
    assert truncated_importance_weight(old_BT, log([[0.25, 0.2, 0.1]]), cap=None).tolist() == [[1.0, 1.0, 1.0]]


def test_k3_by_hand() -> None:
    ratio = 0.25 / 0.5
    expected = ratio - math.log(ratio) - 1
    assert float(kl_k3(log([[0.5]]), log([[0.25]]))) == pytest.approx(expected)
    assert float(kl_k3(log([[0.5]]), log([[0.5]]))) == 0.0


def test_aggregation_modes_by_hand() -> None:
    values_BT = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]])
    mask_BT = torch.tensor([[True, True, True], [True, False, False]])
    whole = Denominators(tokens=4, rows=2)
    assert float(aggregate(values_BT, mask_BT, "token_mean", whole)) == pytest.approx(16 / 4)
    assert float(aggregate(values_BT, mask_BT, "seq_mean_token_mean", whole)) == pytest.approx((2 + 10) / 2)


def reference_loss(data: dict[str, Any], settings: LossSettings) -> float:
    """One token at a time, in plain floats."""
    rows = []
    for b, advantage in enumerate(data["advantages"]):
        tokens = []
        for t, trains in enumerate(data["mask"][b]):
            if not trains:
                continue
            new, old, rollout, ref = (data[name][b][t] for name in ("new", "old", "rollout", "ref"))
            ratio = math.exp(new - old)
            clipped = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
            surrogate = min(ratio * advantage, clipped * advantage)
            weight = min(math.exp(old - rollout), settings.tis_cap or math.inf) if settings.tis_cap else 1.0
            kl = math.exp(ref - new) - (ref - new) - 1
            tokens.append(
                -weight * surrogate
                + settings.kl_coefficient * kl
                - settings.entropy_coefficient * data["entropy"][b][t]
            )
        rows.append(tokens)
    if settings.aggregation == "token_mean":
        flat = [token for tokens in rows for token in tokens]
        return sum(flat) / len(flat)
    return sum(sum(tokens) / len(tokens) for tokens in rows if tokens) / sum(bool(tokens) for tokens in rows)


def example(seed: int, rows: int = 5, length: int = 7) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(scale: float) -> torch.Tensor:
        return torch.randn(rows, length, generator=generator, dtype=torch.float64) * scale

    old = -1 + draw(0.3)
    data = {
        "old": old,
        "new": old + draw(0.3),
        "rollout": old + draw(0.5),
        "ref": old + draw(0.3),
        "entropy": draw(1).abs(),
    }
    data["mask"] = draw(1) > 0
    data["mask"][:, 0] = True
    data["advantages"] = draw(1)[:, 0]
    return data


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tis_cap": 1.0},
        {"tis_cap": None},
        {"kl_coefficient": 0.1},
        {"entropy_coefficient": 0.05},
        {"clip_low": 0.1, "clip_high": 0.1, "kl_coefficient": 0.2, "entropy_coefficient": 0.01},
    ],
)
def test_against_the_slow_reference(aggregation: str, options: dict[str, Any]) -> None:
    settings = LossSettings.model_validate({"aggregation": aggregation} | options)
    for seed in range(5):
        data = example(seed)
        whole = Denominators(tokens=int(data["mask"].sum()), rows=5)
        terms = policy_loss(
            data["new"], data["old"], data["rollout"], data["entropy"], data["advantages"], data["mask"], settings, whole,
            data["ref"],
        )  # fmt: skip
        assert float(terms.loss) == pytest.approx(reference_loss({k: v.tolist() for k, v in data.items()}, settings))


def loss_of(data: dict[str, torch.Tensor], rows: slice, whole: Denominators, settings: LossSettings) -> torch.Tensor:
    part = {name: values[rows] for name, values in data.items()}
    return policy_loss(
        part["new"], part["old"], part["rollout"], part["entropy"], part["advantages"], part["mask"], settings, whole
    ).loss


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_micro_batches_add_up_to_the_mini_batch(aggregation: str) -> None:
    settings = LossSettings.model_validate({"aggregation": aggregation})
    data = example(3)
    whole = Denominators(tokens=int(data["mask"].sum()), rows=5)
    parts = loss_of(data, slice(0, 2), whole, settings) + loss_of(data, slice(2, 5), whole, settings)
    assert float(parts) == pytest.approx(float(loss_of(data, slice(0, 5), whole, settings)))


def test_on_policy_gradient_is_reinforce_weighted_by_the_importance_weight() -> None:
    data = example(1)
    new_BT = data["old"].clone().requires_grad_()
    whole = Denominators(tokens=int(data["mask"].sum()), rows=5)
    settings = LossSettings(aggregation="token_mean", tis_cap=1.5)
    terms = policy_loss(
        new_BT, new_BT.detach(), data["rollout"], data["entropy"], data["advantages"], data["mask"], settings, whole
    )
    terms.loss.backward()  # type: ignore[no-untyped-call]
    weight_BT = (data["old"] - data["rollout"]).exp().clamp(max=1.5)
    expected_BT = -weight_BT * data["advantages"].unsqueeze(-1) * data["mask"] / whole.tokens
    assert new_BT.grad is not None
    assert torch.allclose(new_BT.grad, expected_BT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("poisoned", ["new", "old", "rollout", "ref", "entropy"])
def test_masked_positions_poison_neither_loss_nor_gradient(poisoned: str, value: float) -> None:
    settings = LossSettings(kl_coefficient=0.1, entropy_coefficient=0.05)
    results = []
    for poison in (False, True):
        data = example(2)
        data["mask"][0, 1:] = False
        if poison:
            data[poisoned][0, 1:] = value
        leaves = [data[name].requires_grad_() for name in ("new", "entropy")]
        terms = policy_loss(
            data["new"], data["old"], data["rollout"], data["entropy"], data["advantages"], data["mask"], settings,
            Denominators(tokens=int(data["mask"].sum()), rows=5), data["ref"],
        )  # fmt: skip
        terms.loss.backward()  # type: ignore[no-untyped-call]
        results.append((float(terms.loss.detach()), terms.sums, [leaf.grad.tolist() for leaf in leaves]))  # type: ignore[union-attr]
    assert results[0] == results[1]


def test_only_tokens_whose_gradient_the_clip_removes_count_as_clipped() -> None:
    ratios = torch.tensor([[0.5, 1.0, 1.5, 4.0]] * 3, dtype=torch.float64)
    new_BT = ratios.log().requires_grad_()
    zeros_BT = torch.zeros_like(ratios)
    terms = policy_loss(
        new_BT, zeros_BT, zeros_BT, zeros_BT, torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64),
        torch.ones_like(ratios, dtype=torch.bool), LossSettings(dual_clip=3.0), Denominators(12, 3),
    )  # fmt: skip
    terms.loss.backward()  # type: ignore[no-untyped-call]
    assert new_BT.grad is not None
    assert (new_BT.grad == 0).tolist() == [[False, False, True, True], [True, False, False, True], [True] * 4]
    assert terms.sums["clip_fraction"] == 3  # 1.5 and 4 above, where A > 0; 0.5 below, where A < 0
    assert terms.sums["dual_clip_fraction"] == 1  # 4, where A < 0
    assert terms.sums["outside_range_fraction"] == 9


def test_metric_sums_by_hand() -> None:
    new_BT, old_BT, rollout_BT = log([[0.6, 0.5]]), log([[0.4, 0.5]]), log([[0.1, 0.5]])
    terms = policy_loss(
        new_BT, old_BT, rollout_BT, torch.tensor([[0.7, 0.1]]), torch.tensor([1.0]),
        torch.tensor([[True, True]]), LossSettings(tis_cap=2.0), Denominators(2, 1),
    )  # fmt: skip
    assert terms.sums["clip_fraction"] == 1
    assert terms.sums["tis_capped_fraction"] == 1
    assert terms.sums["tis_weight"] == pytest.approx(3.0)
    assert terms.sums["mismatch_k1"] == pytest.approx(-math.log(4))
    assert terms.sums["mismatch_k3"] == pytest.approx(4 - math.log(4) - 1)
    assert terms.sums["entropy"] == pytest.approx(0.8)
