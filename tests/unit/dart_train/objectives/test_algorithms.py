"""Algorithms by name: what a recipe gets, what it may change, and what is refused with a sentence."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dart_train.config import RecipeError, TrainSection, load_recipe
from dart_train.objectives import algorithms
from dart_train.objectives.aggregation import Denominators
from dart_train.objectives.algorithms import ALGORITHMS, SURROGATES, Algorithm, find_algorithm, load_surrogate
from dart_train.objectives.policy_loss import MicroBatch, policy_loss
from dart_train.objectives.settings import LossSettings
from dart_train.objectives.terms import Surrogate, TokenTerms

DEMO = Path(__file__).parents[4] / "dart_train" / "recipes" / "demo.toml"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_makes_a_recipe(name: str) -> None:
    section = TrainSection(algorithm=name)
    for key, value in ALGORITHMS[name].settings.items():
        assert getattr(section, key) == value
    assert callable(load_surrogate(section.surrogate))


def test_the_default_is_step_wise_grpo() -> None:
    assert TrainSection() == TrainSection(algorithm="grpo")
    assert (TrainSection().advantage_over, TrainSection().aggregation) == ("group_steps", "seq_mean_token_mean")


def test_a_recipe_may_change_what_an_algorithm_sets() -> None:
    section = TrainSection(algorithm="gspo", clip_high=0.01)
    assert (section.surrogate, section.clip_low, section.clip_high) == ("sequence_clipped", 3e-4, 0.01)


def test_an_unknown_algorithm_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ValueError, match="there is no algorithm 'ppo'; there are grpo, grpo-trajectory, dr-grpo, rloo"):
        TrainSection(algorithm="ppo")


def test_none_stands_for_no_bound() -> None:
    section = TrainSection.model_validate({"tis_cap": "none", "dual_clip": "none"})
    assert (section.tis_cap, section.dual_clip) == (None, None)
    assert TrainSection.model_validate(section.model_dump()) == section


def test_a_mask_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="correction_floor is not below tis_cap"):
        TrainSection(correction="token_mask", tis_cap=0.5)


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_dual_clip_is_refused_exactly_with_surrogates_that_do_not_read_it(surrogate: str) -> None:
    new_BT, old_BT = torch.zeros(1, 2), torch.full((1, 2), -3.0)
    terms = TokenTerms(new_BT, old_BT, torch.tensor([-1.0]), torch.ones(1, 2, dtype=torch.bool))
    plain, bounded = (
        load_surrogate(surrogate)(terms, LossSettings(surrogate=surrogate, dual_clip=bound)).value_BT
        for bound in (None, 3.0)
    )
    if not torch.equal(plain, bounded):
        assert TrainSection(surrogate=surrogate, dual_clip=3.0).dual_clip == 3.0
        return
    with pytest.raises(
        ValueError, match=f'dual_clip has no effect on surrogate = "{surrogate}".*: set dual_clip = "none"'
    ):
        TrainSection(surrogate=surrogate, dual_clip=3.0)


def test_dual_clip_is_refused_with_the_algorithm_that_brings_the_surrogate() -> None:
    for name in ("cispo", "rloo"):
        with pytest.raises(ValueError, match=f'algorithm = "{name}"'):
            TrainSection(algorithm=name, dual_clip=3.0)
        assert TrainSection.model_validate({"algorithm": name, "dual_clip": "none"}).dual_clip is None


def half(terms: TokenTerms, settings: LossSettings) -> Surrogate:
    """A surrogate of a user's."""
    nothing_BT = torch.zeros_like(terms.mask_BT)
    return Surrogate(0.5 * terms.advantages_B1 * terms.new_BT, nothing_BT, nothing_BT)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of a user's with a surrogate and two entry points."""
    module: Any = ModuleType("own_losses")
    module.half = half
    module.mine = Algorithm("mine", {"surrogate": "own_losses:half", "aggregation": "token_mean"})
    monkeypatch.setitem(sys.modules, "own_losses", module)
    group = algorithms.ENTRY_POINT_GROUP
    found = [EntryPoint("mine", "own_losses:mine", group), EntryPoint("wrong", "own_losses:half", group)]
    monkeypatch.setattr(algorithms, "entry_points", lambda group: found)
    return "own_losses"


def test_a_package_brings_an_algorithm(package: str) -> None:
    section = TrainSection(algorithm="mine")
    assert (section.surrogate, section.aggregation) == (f"{package}:half", "token_mean")
    assert TrainSection(algorithm="mine", dual_clip=3.0).dual_clip == 3.0, "a surrogate of a user's may read it"
    new_BT = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    old_BT = new_BT.detach()
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    seen = MicroBatch(new_BT, old_BT, old_BT, old_BT * 0, torch.tensor([2.0]), mask_BT, torch.ones(1))
    loss = LossSettings(surrogate=section.surrogate, aggregation=section.aggregation)
    policy_loss(seen, loss, Denominators(2, 1, 1)).loss.backward()  # type: ignore[no-untyped-call]
    assert new_BT.grad is not None
    assert new_BT.grad.tolist() == [[-0.5, -0.5]]


def test_an_entry_point_that_names_no_algorithm_is_refused(package: str) -> None:
    with pytest.raises(ValueError, match=r"the entry point 'wrong' of dart_train\.algorithms names no Algorithm"):
        find_algorithm("wrong")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("no.such.module:mine", "ModuleNotFoundError: No module named 'no'"),
        (
            "dart_train.objectives.grpo:absent",
            "AttributeError: module 'dart_train.objectives.grpo' has no attribute 'absent'",
        ),
    ],
)
def test_an_entry_point_that_cannot_be_loaded_is_refused_in_the_recipe(
    monkeypatch: pytest.MonkeyPatch, place: str, error: str
) -> None:
    broken = EntryPoint("mine", place, algorithms.ENTRY_POINT_GROUP)
    monkeypatch.setattr(algorithms, "entry_points", lambda group: [broken])
    told = f"the algorithm 'mine' of the entry point {place} cannot be loaded: {error}"
    with pytest.raises(ValueError, match=re.escape(told)):
        find_algorithm("mine")
    with pytest.raises(RecipeError, match=re.escape(f"`train`: {told}")):
        load_recipe(DEMO, ("train.algorithm='mine'",))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("clip", "there is no surrogate 'clip': use one of clipped, sequence_clipped, weighted, policy_gradient, or"),
        (
            "no.such.module:f",
            "the surrogate 'no.such.module:f' cannot be loaded: ModuleNotFoundError: No module named 'no'",
        ),
        ("dart_train.objectives.grpo:absent", "cannot be loaded: AttributeError: module .* has no attribute 'absent'"),
    ],
)
def test_a_surrogate_that_does_not_exist_is_refused_in_the_recipe(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TrainSection(surrogate=name)
