"""The rearranged vision tower computes what transformers' own does, with gradients, for every family and mixture of sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_checkpoints import KINDS, write_checkpoint
from torch import Tensor

from dart_train.model import fast_vision
from dart_train.model.fast_vision import AttentionPlan, optimize_vision
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs


@pytest.fixture(scope="module", params=KINDS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.set_num_threads(1)
    found = load_model(write_checkpoint(request.param, tmp_path_factory.mktemp("vision") / request.param))
    found.model.double()
    return found


def features(model: Any, pixels: Tensor, grid: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Features of pictures, and the gradient of every weight of the tower for the sum of their squares."""
    tower = model.model.visual
    tower.zero_grad(set_to_none=True)
    found = tower(pixels.double(), grid_thw=grid).pooler_output
    (found**2).sum().backward()
    return found.detach(), {name: one.grad.clone() for name, one in tower.named_parameters() if one.grad is not None}


# In Qwen2.5-VL a window is 112 pixels wide: these have whole windows, and parts of one at both borders.
@pytest.mark.parametrize("sizes", [[(252, 308)], [(336, 336), (336, 336)], [(252, 308), (392, 224), (252, 308)]])
def test_features_and_gradients_are_those_of_transformers(
    loaded: LoadedModel, sizes: list[tuple[int, int]], tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    pictures = [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for width, height in sizes]
    pixels, grid = pixel_inputs(loaded.processor, pictures)
    loaded.save(tmp_path / "copy")
    other = load_model(tmp_path / "copy").model.double()
    assert optimize_vision(other)
    plain, plain_gradients = features(loaded.model, pixels, grid)
    fast, fast_gradients = features(other, pixels, grid)
    # Rotary embeddings are computed in float32 by both.
    torch.testing.assert_close(fast, plain, rtol=1e-6, atol=1e-8)
    assert plain_gradients.keys() == fast_gradients.keys()
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(fast_gradients[name], gradient, rtol=1e-5, atol=1e-7 * float(gradient.abs().max()))


def test_one_call_for_each_size(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def counted(query: Tensor, *rest: Any, **options: Any) -> Tensor:
        calls.append(tuple(query.shape[i] for i in (0, 2)))
        return attend(query, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    plans: list[AttentionPlan] = []
    make = AttentionPlan.of

    def noted(borders: Tensor, patches: int) -> AttentionPlan:
        plans.append(make(borders, patches))
        return plans[-1]

    monkeypatch.setattr(fast_vision.AttentionPlan, "of", noted)
    loaded.save(tmp_path / "copy")
    other = load_model(tmp_path / "copy").model
    optimize_vision(other)
    width, height = (252, 308) if loaded.model.config.model_type != "qwen3_vl" else (256, 320)
    pixels, grid = pixel_inputs(loaded.processor, [np.zeros((height, width, 3), np.uint8)] * 2)
    with torch.no_grad():
        other.model.visual(pixels, grid_thw=grid)
    patches = int(grid[0].prod())
    whole = (2, patches)
    if loaded.model.config.model_type == "qwen2_5_vl":
        # Per picture 18 x 22 patches: 2 x 2 whole windows of 8 x 8, 2 of 2 x 8 at the right, 2 of 8 x 6 below, 1 of 2 x 6.
        assert sorted(calls[:4]) == sorted([(8, 64), (4, 16), (4, 48), (2, 12)])
        assert calls[4:] == [whole]
        assert len(plans) == 2
    else:
        assert calls == [whole] * 2
        assert len(plans) == 1


def test_sizes_that_lie_together_are_not_moved() -> None:
    for borders in ([0, 4, 8, 10], [0, 4, 8], [0, 0, 4]):
        assert AttentionPlan.of(torch.tensor(borders), borders[-1]).order is None
    mixed = AttentionPlan.of(torch.tensor([0, 2, 5, 7]), 7)
    assert mixed.sizes == ((2, 2), (3, 1))
    assert mixed.order is not None
    assert mixed.inverse is not None
    assert mixed.order.tolist() == [0, 1, 5, 6, 2, 3, 4]
    assert mixed.order[mixed.inverse].tolist() == list(range(7))


def test_flash_attention_is_left_alone(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded.save(tmp_path / "copy")
    other = load_model(tmp_path / "copy").model
    monkeypatch.setattr(other.model.visual.config, "_attn_implementation_internal", "flash_attention_2")
    assert optimize_vision(other)
    assert "forward" not in vars(other.model.visual.blocks[0].attn)
    assert "forward" in vars(other.model.visual.patch_embed)
