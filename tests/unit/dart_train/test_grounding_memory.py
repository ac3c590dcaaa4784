"""What takes less memory gives the same training: several passes, recomputed activations, frozen weights in bfloat16, smaller images."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rank_processes import in_two_processes  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from dart_agent.errors import ConfigError  # noqa: E402
from dart_agent.grounding.head import ActionHead  # noqa: E402
from dart_agent.grounding.model import HEAD_PREFIX, load_grounding_model  # noqa: E402
from dart_train.grounding.__main__ import main  # noqa: E402
from dart_train.grounding.batches import SampleSet  # noqa: E402
from dart_train.grounding.config import VerifierConfig  # noqa: E402
from dart_train.grounding.fit import GroundingTrainer, load_start_model, train_grounding  # noqa: E402
from dart_train.grounding.reward import PointRewardTrainer  # noqa: E402
from dart_train.grounding.supervised import ALONE, SupervisedTrainer  # noqa: E402
from dart_train.grounding.verifier import VerifierTrainer  # noqa: E402
from dart_train.model.policy_model import load_model  # noqa: E402
from dart_train.trainer.ranks import Ranks  # noqa: E402
from tests.unit.dart_train.test_grounding_training import config  # noqa: E402
from tests.unit.dart_train.test_point_reward import make_config as reward_config  # noqa: E402


def labels_trainer(folder: Path, ranks: Ranks = ALONE, **changes: Any) -> SupervisedTrainer[Any]:
    settings = config(folder, **({"stage": "all", "images_per_update": 3, "dropout": 0.1} | changes))
    return GroundingTrainer(settings, SampleSet(settings.samples), load_start_model(settings), ranks)


def reward_trainer(folder: Path, ranks: Ranks = ALONE, **changes: Any) -> SupervisedTrainer[Any]:
    settings = reward_config(folder, **({"images_per_update": 3, "entropy_weight": 0.1} | changes))
    return PointRewardTrainer(settings, SampleSet(settings.samples), load_start_model(settings), ranks)


def verifier_settings(folder: Path, **changes: Any) -> VerifierConfig:
    given = config(folder, images_per_update=3).model_dump(exclude={"optimizer"})
    return VerifierConfig.model_validate(
        {key: value for key, value in given.items() if key in VerifierConfig.model_fields} | changes
    )


def verifier_trainer(folder: Path, ranks: Ranks = ALONE, **changes: Any) -> SupervisedTrainer[Any]:
    settings = verifier_settings(folder, **changes)
    return VerifierTrainer(settings, SampleSet(settings.samples), load_model(settings.start_model), ranks)


def updated(trainer: SupervisedTrainer[Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Losses and gradients of the first update."""
    losses = trainer.update(0)
    return losses, {name: whole(one.grad).clone() for name, one in trainer.trained().items()}


def whole(tensor: Any) -> Any:
    """A tensor of which this process may have a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check_same(one: tuple[dict[str, float], dict[str, Any]], other: tuple[dict[str, float], dict[str, Any]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in one[1].values())
    for name, gradient in one[1].items():
        assert torch.allclose(gradient, other[1][name], rtol=1e-3, atol=2e-6), name


@pytest.mark.parametrize("make", [labels_trainer, reward_trainer, verifier_trainer])
@pytest.mark.parametrize("rows", [1, 2])
def test_several_passes_are_one(make: Callable[..., SupervisedTrainer[Any]], rows: int, tmp_path: Path) -> None:
    """Refusals are among the samples, so that the passes have different numbers of targets."""
    whole, parts = make(tmp_path), make(tmp_path, rows_per_pass=rows)
    assert len(whole.passes(whole.rows(0))) == 1
    assert len(parts.passes(parts.rows(0))) > 1
    check_same(updated(whole), updated(parts))


@pytest.mark.parametrize("make", [labels_trainer, verifier_trainer])
def test_recomputed_activations_are_the_same(make: Callable[..., SupervisedTrainer[Any]], tmp_path: Path) -> None:
    found = []
    for recompute in (False, True):
        trainer = make(tmp_path, gradient_checkpointing=recompute)
        calls: list[int] = []
        backbone = trainer._modules["backbone"]
        backbone.model.language_model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        found.append(updated(trainer))
        assert len(calls) == (2 if recompute else 1)
    check_same(*found)


MAKERS: dict[str, tuple[Callable[..., SupervisedTrainer[Any]], dict[str, Any], bool]] = {
    "labels": (labels_trainer, {"dropout": 0.0}, True),
    "labels, passes": (labels_trainer, {"dropout": 0.0, "rows_per_pass": 1, "gradient_checkpointing": True}, True),
    "labels, clipped": (labels_trainer, {"dropout": 0.0, "optimizer": {"grad_clip": 0.01}}, True),
    "head": (labels_trainer, {"dropout": 0.0, "stage": "head"}, False),
    "adapter": (labels_trainer, {"dropout": 0.0, "lora": {"rank": 2}}, False),
    "reward": (reward_trainer, {"stage": "all"}, True),
    "verifier": (verifier_trainer, {"rows_per_pass": 1}, True),
}
"""Trainers, their settings, and whether two processes share the backbone. Three images are an uneven number of passes."""


def train_together(folder: Path, ranks: Ranks) -> None:
    """The first update of each training, and a whole training with checkpoints."""
    for name, (make, changes, shared) in MAKERS.items():
        torch.manual_seed(ranks.rank)  # an adapter begins with random weights: those of the first process
        trainer = make(folder, ranks, **changes)
        parts = {isinstance(one, DTensor) for key, one in trainer.trained().items() if key.startswith("backbone.")}
        assert parts == {shared and ranks.size > 1}, name
        found = updated(trainer)
        if ranks.first:
            torch.save(found, folder / f"{name}-{ranks.size}.pt")
    for stage in ("head", "all"):
        settings = config(folder, name=f"{stage}-{ranks.size}", updates=3, checkpoint_every=1, stage=stage)
        train_grounding(settings, ranks=ranks)


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    config(tmp_path)  # makes model and samples
    train_together(tmp_path, ALONE)
    in_two_processes(partial(train_together, tmp_path))
    for name in MAKERS:
        check_same(*(torch.load(tmp_path / f"{name}-{size}.pt") for size in (1, 2)))
    for stage in ("head", "all"):
        check_whole_trainings(tmp_path, stage)


def check_whole_trainings(folder: Path, stage: str) -> None:
    alone, together = (
        [json.loads(line) for line in (folder / f"{stage}-{size}.jsonl").read_text().splitlines()] for size in (1, 2)
    )
    assert [line["update"] for line in together] == [1, 2, 3], "the first process alone writes"
    for one, other in zip(alone, together, strict=True):
        assert other["pointer_loss"] == pytest.approx(one["pointer_loss"], rel=0.1), "but for dropout"
    weights = [load_file(folder / f"{stage}-{size}" / "model.safetensors") for size in (1, 2)]
    assert {name: one.shape for name, one in weights[0].items()} == {
        name: one.shape for name, one in weights[1].items()
    }
    assert load_grounding_model(folder / f"{stage}-2").head is not None
    states = folder / f"{stage}-2-states"
    assert {path.name for path in (states / "update00000002").glob("*.distcp")} == {"__0_0.distcp", "__1_0.distcp"}
    again = config(folder, name=f"{stage}-alone", updates=4, checkpoints=states, stage=stage)
    lines: list[int] = []
    train_grounding(again, lambda line: lines.append(line["update"]))
    assert lines == [3, 4], "another number of processes goes on"


def round_weights(folder: Path) -> None:
    """Leave nothing in the start model's weights that bfloat16 cannot hold."""
    path = folder / "start" / "model.safetensors"
    weights = {name: tensor.bfloat16().float() for name, tensor in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize("exact", [True, False])
def test_frozen_weights_are_bfloat16_where_no_bit_is_lost(exact: bool, tmp_path: Path) -> None:
    settings = config(tmp_path, updates=1, dtype="bfloat16", optimizer={"learning_rate": 1e-2})
    if exact:
        round_weights(tmp_path)
    start = load_file(tmp_path / "start" / "model.safetensors")
    trained = train_grounding(settings)
    kept = {one.dtype for one in trained.backbone.model.parameters() if not one.requires_grad}
    assert kept == {torch.bfloat16 if exact else torch.float32}
    assert {one.dtype for one in trained.head.parameters()} == {torch.float32}
    written = load_file(settings.out_dir / "model.safetensors")
    embedding = next(name for name in written if "embed_tokens" in name)
    assert written[embedding].dtype == torch.float32
    assert not torch.equal(written[embedding][-5:], start[embedding].mean(dim=0).expand(5, -1)), "new rows are trained"
    for name, tensor in written.items():
        if name in start and "embed_tokens" not in name:
            assert torch.equal(tensor.float()[: len(start[name])], start[name]), name
    assert any(name.startswith(HEAD_PREFIX) for name in written)
    again = load_grounding_model(settings.out_dir)
    assert {one.dtype for one in again.backbone.parameters()} == {torch.float32}


def test_adapters_learn_on_frozen_weights_in_bfloat16(tmp_path: Path) -> None:
    settings = config(
        tmp_path, stage="all", lora={"rank": 2}, dtype="bfloat16", gradient_checkpointing=True, rows_per_pass=1
    )
    round_weights(tmp_path)
    trainer = GroundingTrainer(settings, SampleSet(settings.samples), load_start_model(settings))
    assert {one.dtype for one in trainer.trained().values()} == {torch.float32}
    _, gradients = updated(trainer)
    assert sum(float(one.abs().max()) > 0 for name, one in gradients.items() if "lora_B" in name) > 4


def test_the_head_is_not_rounded_where_products_are_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the loss of offsets nor the points that are sampled: it points in float32 when the model is used."""
    seen: list[Any] = []
    for name in ("all_offset_logits", "offset_logits"):
        compute = getattr(ActionHead, name)
        monkeypatch.setattr(
            ActionHead, name, lambda *given, compute=compute: seen.append(found := compute(*given)) or found
        )
    for make in (labels_trainer, reward_trainer):
        before = len(seen)
        make(tmp_path, dtype="bfloat16").update(0)
        assert len(seen) > before
    assert {one.dtype for one in seen} == {torch.float32}


def test_an_image_that_comes_twice_in_an_update_has_points_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    trainer = reward_trainer(tmp_path, images_per_update=8, rows_per_pass=3)
    play = PointRewardTrainer._play

    def noted(self: Any, rows: Any, output: Any, generator: Any, given: Any) -> Any:
        seeds.extend(given)
        return play(self, rows, output, generator, given)

    monkeypatch.setattr(PointRewardTrainer, "_play", noted)
    trainer.update(0)
    assert len(trainer.samples.batch(0, 8, 1, 0)) == 8  # type: ignore[attr-defined]
    assert len(set(seeds)) == len(seeds) == 8


def test_what_adapters_learnt_is_not_rounded_away(tmp_path: Path) -> None:
    settings = config(
        tmp_path, updates=1, stage="all", lora={"rank": 2}, dtype="bfloat16", optimizer={"learning_rate": 1e-5}
    )
    round_weights(tmp_path)
    trained = train_grounding(settings)
    start, written = (load_file(folder / "model.safetensors") for folder in (tmp_path / "start", settings.out_dir))
    name = next(name for name in written if ".q_proj.weight" in name)
    assert written[name].dtype == torch.float32
    kept, lost = written[name] != start[name], written[name].bfloat16() == start[name].bfloat16()
    assert float((kept & lost).float().mean()) > 0.8, "most of the change is below what bfloat16 can hold"
    assert trained.head is not None


def test_a_state_of_an_earlier_release_goes_on_in_float32(tmp_path: Path) -> None:
    first = config(tmp_path, updates=2)
    train_grounding(first)
    noted = first.checkpoints / "settings.json"
    content = json.loads(noted.read_text())
    assert content.pop("dtype") == "float32"
    noted.write_text(json.dumps(content))
    train_grounding(config(tmp_path, name="more", checkpoints=first.checkpoints, dtype="auto"))
    with pytest.raises(ConfigError, match=r"\(dtype differ\)"):
        train_grounding(config(tmp_path, name="other", checkpoints=first.checkpoints, dtype="bfloat16"))


def test_bfloat16_products_are_near_those_of_float32(tmp_path: Path) -> None:
    whole, rounded = (updated(labels_trainer(tmp_path, dtype=dtype)) for dtype in ("float32", "bfloat16"))
    assert rounded[0] == pytest.approx(whole[0], rel=0.02)
    assert rounded[0] != whole[0]
    assert all(gradient.dtype == torch.float32 for gradient in rounded[1].values())


def test_larger_images_are_shrunk_and_the_model_keeps_the_limit(tmp_path: Path) -> None:
    small = config(tmp_path, updates=1, max_pixels=64 * 32)
    trainer = GroundingTrainer(small, SampleSet(small.samples), load_start_model(small))
    packed, _ = trainer.forward(trainer.batch(0))
    assert {(grid.columns, grid.rows) for grid in packed.grids} == {(2, 1)}
    train_grounding(small)
    size = load_grounding_model(small.out_dir).processor.image_processor.size
    assert size["longest_edge"] == 64 * 32


def test_a_limit_below_the_processors_least_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = config(tmp_path, max_pixels=8)
    with pytest.raises(ConfigError, match="max_pixels is 8, but the model's processor enlarges images to"):
        train_grounding(settings)
    path = tmp_path / "config.json"
    path.write_text(settings.model_dump_json())
    assert main(["--config", str(path)]) == 2
    assert "raise it" in capsys.readouterr().err


def test_how_much_memory_is_taken_may_change_on_the_way(tmp_path: Path) -> None:
    first = config(tmp_path, updates=2)
    train_grounding(first)
    more = config(tmp_path, name="more", checkpoints=first.checkpoints, rows_per_pass=1, gradient_checkpointing=True)
    train_grounding(more)
    with pytest.raises(ConfigError, match=r"\(max_pixels differ\)"):
        train_grounding(config(tmp_path, name="other", checkpoints=first.checkpoints, max_pixels=64 * 32))
