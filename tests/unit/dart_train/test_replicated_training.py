"""Two processes that each hold an adapted policy, or share a backbone and each hold its action head, train what one process trains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_sharded_training import config, distance, published, train, train_in_two_processes
from test_trainer_points import batch_with_points
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from trainer_harness import batch_of_trajectories, config_of, tiny_model, trajectory_of

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch, VersionRecord
from dart_agent.inference.weights.digest import weights_digest
from dart_train.model.pointing_model import load_pointing_model
from dart_train.model.weights import cast_to_bfloat16
from dart_train.trainer.ranks import Ranks
from tests.unit.dart_agent.grounding_models import small_model

TOLERANCE = 2e-3
"""Of how far training moved a tensor; in float32, whose sums depend on how the rows are divided."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("replicated")


def batches(root: Path) -> list[Batch]:
    """Two batches: more segments than processes, and fewer."""
    images = ImageStore(root / "images")
    _, loaded = tiny_model(root)
    return [
        batch_of_trajectories(
            [trajectory_of(loaded, images, 10 * number + i, steps) for i, steps in enumerate(lengths)], f"b{number}"
        )
        for number, lengths in enumerate(((3, 2, 2), (1, 1)))
    ]


def changed(found: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    names = [name for name in found if not torch.equal(found[name], start[name].float())]
    return {"found": {name: found[name] for name in names}, "start": {name: start[name].float() for name in names}}


def stored_parts(directory: Path) -> dict[str, Any]:
    """The parts that each tensor of a checkpoint was written in."""
    stored = FileSystemReader(directory).read_metadata().state_dict_metadata
    return {name: item.chunks for name, item in stored.items() if isinstance(item, TensorStorageMetadata)}


def check_same(alone: Any, together: Any, version: int, start: dict[str, torch.Tensor]) -> None:
    one = changed(published(alone, version), start)
    other = {name: published(together, version)[name] for name in one["found"]}
    assert distance(one["found"], other, one["start"]) <= TOLERANCE


def test_two_processes_train_the_adapter_that_one_trains_and_go_on_alone(root: Path) -> None:
    made = batches(root)
    start = load_file(tiny_model(root)[0] / "model.safetensors")
    options = {"lora": {"rank": 4}, "optimizer": {"learning_rate": 1e-2, "grad_clip": 0.5}}
    alone, together = (config(root, name, **options) for name in ("alone", "together"))
    train(alone, made, Ranks())
    train_in_two_processes(together, made)
    for version in (1, 2):
        check_same(alone, together, version, start)
        moved = changed(published(together, version), start)["found"]
        assert moved
        assert not any("visual" in name for name in moved)
    shutil.rmtree(together.checkpoints / "update00000002")
    shutil.rmtree(together.weights / "v2")
    first = together.weights / "v1"
    train(together, made[1:], Ranks(), VersionRecord(version=1, path=str(first), digest=weights_digest(first)))
    check_same(alone, together, 2, start)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rounded"),
    [({}, False), ({"freeze_vision": True}, True), ({"lora": {"rank": 4}}, False)],
    ids=["all", "loaded-in-bfloat16", "adapter"],
)
def test_two_processes_train_the_action_head_that_one_trains(
    root: Path, options: dict[str, Any], rounded: bool
) -> None:
    """A published checkpoint is loaded in its own type where processes share it, and trained in float32, with what is frozen of it."""
    adapted = "lora" in options
    folder = root / ("adapted" if adapted else f"pointing-{rounded}")
    model = small_model("qwen3_vl", folder, offset_parts=2)
    model.save(folder / "model")
    if rounded:
        cast_to_bfloat16(folder / "model")
    images = ImageStore(root / "images")
    made = [batch_with_points(load_pointing_model(folder / "model"), images)]
    assert any(row.step.pointers for row in made[0].rows)
    start = load_file(folder / "model" / "model.safetensors")
    alone, together = (
        config_of(
            folder / name, folder / "model", images=root / "images", pointer=True, micro_batch_tokens=70,
            optimizer={"learning_rate": 1e-3, "grad_clip": 0.5}, **options,
        )
        for name in ("alone", "together")
    )  # fmt: skip
    train(alone, made, Ranks())
    train_in_two_processes(together, made)
    check_same(alone, together, 1, start)
    assert {tensor.dtype for tensor in published(together, 1).values()} == {torch.float32}
    config_files = [json.loads((each.weights / "v1" / "config.json").read_text()) for each in (alone, together)]
    assert config_files[0] == config_files[1]
    parts = stored_parts(together.checkpoints / "update00000001")
    backbone = {len(parts[name]) for name in parts if "language_model" in name and name.startswith("model.")}
    assert backbone == ({1} if adapted else {2}), "all of a backbone is sharded, and an adapter is not"
    assert {len(parts[name]) for name in parts if "pointer_head" in name and name.startswith("model.")} == {1}
    assert any("pointer_head" in name for name in changed(published(together, 1), start)["found"])
