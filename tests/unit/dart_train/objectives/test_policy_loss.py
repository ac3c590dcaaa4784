"""The parts of the loss against numbers worked out by hand; the reference for all of them is in `test_objectives_against_reference`."""

from __future__ import annotations

import math

import pytest
import torch

from dart_train.objectives.aggregation import Denominators, aggregate
from dart_train.objectives.corrections import correct
from dart_train.objectives.divergence import estimate_kl
from dart_train.objectives.grpo import clip_surrogate
from dart_train.objectives.policy_loss import LossTerms, MicroBatch, policy_loss
from dart_train.objectives.settings import Aggregation, CorrectionKind, LossSettings

AGGREGATIONS: tuple[Aggregation, ...] = ("token_mean", "seq_mean_token_mean", "trajectory_mean", "constant_length")


def log(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def test_clip_is_asymmetric_and_only_binds_where_it_hurts() -> None:
    ratio_BT = torch.tensor([[0.5, 1.0, 1.5], [0.5, 1.0, 1.5]], dtype=torch.float64)
    value_BT = clip_surrogate(ratio_BT, column(2, -2), LossSettings()).value_BT
    assert value_BT.tolist() == [[1.0, 2.0, pytest.approx(2.56)], [pytest.approx(-1.6), -2.0, -3.0]]


def test_dual_clip_bounds_negative_advantages_only() -> None:
    ratio_BT = torch.tensor([[10.0], [10.0]], dtype=torch.float64)
    value_BT = clip_surrogate(ratio_BT, column(1, -1), LossSettings(dual_clip=3.0)).value_BT
    assert value_BT.flatten().tolist() == [pytest.approx(1.28), -3.0]


RHO = [[2.0, 0.5, 4.0]]
"""Ratios of the trainer's policy to the sampling one: their product is 4, their geometric mean 4 ** (1 / 3) = 1.587."""


@pytest.mark.parametrize(
    ("kind", "cap", "floor", "wanted"),
    [
        ("none", 2.0, 0.5, [1, 1, 1]),
        ("token_truncate", 2.0, 0.5, [2, 0.5, 2]),
        ("token_truncate", None, 0.5, [1, 1, 1]),
        ("token_mask", 3.0, 0.6, [2, 0, 0]),
        ("token_mask", None, 0.5, [2, 0.5, 4]),
        ("sequence_truncate", 3.0, 0.5, [3, 3, 3]),
        ("sequence_truncate", 5.0, 0.5, [4, 4, 4]),
        ("sequence_mask", 1.6, 0.5, [1, 1, 1]),
        ("sequence_mask", 1.5, 0.5, [0, 0, 0]),
        ("rollout_anchor", 2.0, 0.5, [1, 1, 1]),
    ],
)
def test_weights_by_hand_and_without_gradient(
    kind: CorrectionKind, cap: float | None, floor: float, wanted: list[float]
) -> None:
    rollout_BT = log([[0.25, 0.2, 0.1]])
    old_BT = (rollout_BT + log(RHO)).requires_grad_()
    settings = LossSettings(correction=kind, tis_cap=cap, correction_floor=floor)
    found = correct(old_BT, rollout_BT, torch.ones(1, 3, dtype=torch.bool), settings)
    assert found.weight_BT.tolist() == [[pytest.approx(value) for value in wanted]]
    assert not found.weight_BT.requires_grad
    assert torch.equal(found.anchor_BT, rollout_BT if kind == "rollout_anchor" else old_BT.detach())


def test_weights_of_a_response_leave_masked_tokens_out() -> None:
    old_BT, zeros_BT = log([[2.0, 3.0, 1000.0]]), torch.zeros(1, 3, dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False]])
    found = correct(old_BT, zeros_BT, mask_BT, LossSettings(correction="sequence_truncate", tis_cap=100.0))
    assert found.weight_BT[mask_BT].tolist() == pytest.approx([6, 6])


def test_estimates_of_the_divergence_by_hand() -> None:
    ratio = 0.25 / 0.5
    assert float(estimate_kl(log([[0.5]]), log([[0.25]]))) == pytest.approx(ratio - math.log(ratio) - 1)
    assert float(estimate_kl(log([[0.5]]), log([[0.25]]), "k1")) == pytest.approx(math.log(2))
    assert float(estimate_kl(log([[0.5]]), log([[0.5]]))) == 0.0


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("token_mean", (1 + 2 + 3 + 10 + 4) / 5),
        ("seq_mean_token_mean", (2 + 10 + 4) / 3),
        ("trajectory_mean", ((2 + 10) / 2 + 4) / 2),
        ("constant_length", 20 / (2 * 100)),
    ],
)
def test_aggregations_by_hand(mode: Aggregation, wanted: float) -> None:
    values_BT = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0], [4.0, 99.0, 99.0]])
    mask_BT = torch.tensor([[True, True, True], [True, False, False], [True, False, False]])
    settings = LossSettings(aggregation=mode, constant_length=100)
    shares_B = torch.tensor([0.5, 0.5, 1.0])  # the first two rows are one trajectory
    assert float(aggregate(values_BT, mask_BT, shares_B, settings, Denominators(5, 3, 2))) == pytest.approx(wanted)


def example(seed: int, rows: int = 5, length: int = 7) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(scale: float) -> torch.Tensor:
        return torch.randn(rows, length, generator=generator, dtype=torch.float64) * scale

    old = -1 + draw(0.3)
    data = {
        "old": old,
        "new": old + draw(0.3),
        "rollout": old + draw(0.5),
        "reference": old + draw(0.3),
        "entropy": draw(1).abs(),
        "mask": draw(1) > 0,
        "advantages": draw(1)[:, 0],
        "shares": torch.full((rows,), 0.5, dtype=torch.float64),
    }
    data["mask"][:, 0] = True
    return data


def loss_of(
    data: dict[str, torch.Tensor],
    settings: LossSettings,
    whole: Denominators | None = None,
    rows: slice = slice(None),
    *,
    reference: bool = True,
) -> LossTerms:
    part = {name: values[rows] for name, values in data.items()}
    seen = MicroBatch(
        part["new"], part["old"], part["rollout"], part["entropy"], part["advantages"], part["mask"], part["shares"],
        part["reference"] if reference else None,
    )  # fmt: skip
    return policy_loss(seen, settings, whole or denominators(data))


def denominators(data: dict[str, torch.Tensor]) -> Denominators:
    return Denominators(int(data["mask"].sum()), len(data["mask"]), float(data["shares"].sum()))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_add_up_to_the_mini_batch(aggregation: Aggregation) -> None:
    settings, data = LossSettings(aggregation=aggregation, kl_coefficient=0.1), example(3)
    whole = denominators(data)
    parts = [float(loss_of(data, settings, whole, rows).loss) for rows in (slice(0, 2), slice(2, 5))]
    assert sum(parts) == pytest.approx(float(loss_of(data, settings, whole).loss), rel=1e-12)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("poisoned", ["new", "old", "rollout", "reference", "entropy"])
@pytest.mark.parametrize("surrogate", ["clipped", "sequence_clipped", "weighted", "policy_gradient"])
@pytest.mark.parametrize("correction", ["token_truncate", "sequence_mask"])
def test_masked_positions_poison_neither_loss_nor_gradient(
    poisoned: str, value: float, surrogate: str, correction: CorrectionKind
) -> None:
    settings = LossSettings(surrogate=surrogate, correction=correction, kl_coefficient=0.1, entropy_coefficient=0.05)
    results = []
    for poison in (False, True):
        data = example(2)
        data["mask"][0, 1:] = False
        if poison:
            data[poisoned][0, 1:] = value
        leaves = [data[name].requires_grad_() for name in ("new", "entropy")]
        terms = loss_of(data, settings)
        terms.loss.backward()  # type: ignore[no-untyped-call]
        results.append((float(terms.loss.detach()), terms.sums, [leaf.grad.tolist() for leaf in leaves]))  # type: ignore[union-attr]
    assert results[0] == results[1]


def test_only_tokens_whose_gradient_the_clip_removes_count_as_clipped() -> None:
    ratios = torch.tensor([[0.5, 1.0, 1.5, 4.0]] * 3, dtype=torch.float64)
    zeros_BT = torch.zeros_like(ratios)
    data = dict.fromkeys(("old", "rollout", "reference", "entropy"), zeros_BT) | {
        "new": ratios.log().requires_grad_(),
        "advantages": torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64),
        "mask": torch.ones_like(ratios, dtype=torch.bool),
        "shares": torch.ones(3, dtype=torch.float64),
    }
    terms = loss_of(data, LossSettings(dual_clip=3.0), reference=False)
    terms.loss.backward()  # type: ignore[no-untyped-call]
    gradient_BT = data["new"].grad
    assert gradient_BT is not None
    assert (gradient_BT == 0).tolist() == [[False, False, True, True], [True, False, False, True], [True] * 4]
    assert terms.sums["clip_fraction"] == 3  # 1.5 and 4 above, where A > 0; 0.5 below, where A < 0
    assert terms.sums["dual_clip_fraction"] == 1  # 4, where A < 0
    assert terms.sums["outside_range_fraction"] == 9


def test_metric_sums_by_hand() -> None:
    data = {
        "new": log([[0.6, 0.5]]),
        "old": log([[0.4, 0.5]]),
        "rollout": log([[0.1, 0.5]]),
        "reference": log([[0.3, 0.5]]),
        "entropy": torch.tensor([[0.7, 0.1]]),
        "advantages": torch.tensor([1.0]),
        "mask": torch.tensor([[True, True]]),
        "shares": torch.ones(1),
    }
    sums = loss_of(data, LossSettings(tis_cap=2.0)).sums
    assert sums["clip_fraction"] == 1
    assert sums["tis_capped_fraction"] == 1
    assert sums["tis_weight"] == pytest.approx(3.0)
    assert sums["mismatch_k1"] == pytest.approx(-math.log(4))
    assert sums["mismatch_k3"] == pytest.approx(4 - math.log(4) - 1)
    assert sums["entropy"] == pytest.approx(0.8)
    assert sums["kl_reference"] == pytest.approx(0.5 - math.log(0.5) - 1)
