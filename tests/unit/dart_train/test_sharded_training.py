"""Two processes that share a policy (FSDP2 over gloo) train what one process trains, in float64."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rank_processes import in_two_processes
from safetensors.torch import load_file
from test_trainer_process import RecordingClient
from torch.distributed.tensor import DTensor
from trainer_harness import batch_of_trajectories, config_of, tiny_model, trajectory_of

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch, VersionRecord
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.types import StepRecord
from dart_train.model.policy_model import LoadedModel, load_model
from dart_train.model.sharding import split_shards, widen
from dart_train.trainer.batches.rows import build_rows
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.follower import announce
from dart_train.trainer.process import TrainerProcess, run_follower
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.trained_policy import TrainedPolicy
from dart_train.trainer.trainer import BatchFailed, Trainer

TOLERANCE = 1e-6


def without_images(step: StepRecord) -> StepRecord:
    words = tuple(token for token in step.prompt_ids_P[:3])
    return replace(step, prompt_ids_P=words, image_sha256=(), image_hw=())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def batches(root: Path) -> list[Batch]:
    """Three batches: more segments than ranks, fewer, and one whose rows have no image."""
    images = ImageStore(root / "images")
    _, loaded = tiny_model(root)
    made = []
    for number, lengths in enumerate(((3, 2, 2), (2, 2), (1, 1))):
        trajectories = [trajectory_of(loaded, images, 10 * number + i, steps) for i, steps in enumerate(lengths)]
        if number == 2:
            trajectories[0] = [without_images(trajectories[0][0])]
        made.append(batch_of_trajectories(trajectories, f"b{number}"))
    return made


def config(root: Path, name: str, **changes: Any) -> TrainerConfig:
    options: dict[str, Any] = {
        "images": root / "images",
        "micro_batch_tokens": 70,
        "high_entropy_step_fraction": 0.8,
        "minibatches": 2,
        "optimizer": {"learning_rate": 1e-3, "grad_clip": 0.5},
        "loss": {"kl_coefficient": 0.1, "entropy_coefficient": 0.01},
        "gradient_checkpointing": True,
    }
    return config_of(root / name, tiny_model(root)[0], **(options | changes))


def train(
    settings: TrainerConfig,
    batches: list[Batch],
    ranks: Ranks,
    latest: VersionRecord | None = None,
    failed: tuple[str, ...] = (),
) -> None:
    if ranks.first:
        client = RecordingClient(ImageStore(settings.images), batches)
        client.latest = latest
        process = TrainerProcess(settings, cast(DataManagerClient, client), ranks=ranks, load=load_double)
        asyncio.run(process.run())
        assert tuple(batch_id for batch_id, _ in client.failures) == failed
        announce(ranks, "end")
    else:
        run_follower(settings, ranks, load_double)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_frozen_is_widened_where_layers_compute_in_float32(frozen: bool) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to(torch.bfloat16)
    module[0].requires_grad_(False)
    widen(module, frozen=frozen)
    assert module[0].weight.dtype == (torch.float32 if frozen else torch.bfloat16)
    assert (module[1].weight.dtype, module[1].weight.requires_grad) == (torch.float32, True)
    assert not module[0].weight.requires_grad


def load_double(*args: Any, **options: Any) -> LoadedModel:
    """A policy in float64."""
    found = load_model(*args, **options)
    return replace(found, model=found.model.double())


def train_part(
    settings: TrainerConfig, batches: list[Batch], failed: tuple[str, ...], explodes: bool, ranks: Ranks
) -> None:
    if explodes:
        explode_once_on_the_first_rank()
    train(settings, batches, ranks, failed=failed)


def explode_once_on_the_first_rank() -> None:
    """Let the first gradient of this process be large, where it is the first one."""
    clip, calls = TrainedPolicy.clip_gradient, 0

    def explode(trained: TrainedPolicy) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return clip(trained) * (1e9 if calls == 1 and trained.ranks.first else 1)

    setattr(TrainedPolicy, "clip_gradient", explode)  # noqa: B010 - in a process of the test's own


def train_in_two_processes(
    settings: TrainerConfig, batches: list[Batch], failed: tuple[str, ...] = (), *, explodes: bool = False
) -> None:
    in_two_processes(partial(train_part, settings, batches, failed, explodes))


def published(settings: TrainerConfig, version: int) -> dict[str, torch.Tensor]:
    return load_file(settings.weights / f"v{version}" / "model.safetensors")


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> float:
    """Greatest difference of a tensor, relative to how far training moved it."""
    assert one.keys() == other.keys() == start.keys()
    moved = {name: float((one[name] - start[name].double()).norm()) for name in one}
    assert max(moved.values()) > 1e-3
    return max(float((one[name] - other[name]).norm()) / max(moved[name], 1e-6) for name in one)


@pytest.mark.slow
def test_two_processes_train_what_one_trains_and_read_each_others_checkpoints(root: Path, batches: list[Batch]) -> None:
    start = load_file(tiny_model(root)[0] / "model.safetensors")
    alone, together = config(root, "alone"), config(root, "together")
    train(alone, batches, Ranks())
    train_in_two_processes(together, batches)
    assert published(together, 3)["lm_head.weight"].dtype == torch.float64
    for version in (1, 2, 3):
        assert distance(published(alone, version), published(together, version), start) <= TOLERANCE
    saved = sorted(path.name for path in (together.checkpoints / "update00000003").iterdir())
    assert saved == [".metadata", "__0_0.distcp", "__1_0.distcp", "state.json"]
    shutil.rmtree(together.checkpoints / "update00000003")
    shutil.rmtree(together.weights / "v3")
    second = together.weights / "v2"
    train(together, batches[2:], Ranks(), VersionRecord(version=2, path=str(second), digest=weights_digest(second)))
    assert distance(published(alone, 3), published(together, 3), start) <= TOLERANCE


@pytest.mark.slow
def test_shards_are_published_in_bfloat16(root: Path, batches: list[Batch]) -> None:
    together = config(root, "rounded", publish_dtype="bfloat16", optimizer={"learning_rate": 0.0})
    train_in_two_processes(together, batches[:1])
    start, found = load_file(tiny_model(root)[0] / "model.safetensors"), published(together, 1)
    assert found.keys() == start.keys()
    assert all(torch.equal(found[name], start[name].to(torch.bfloat16)) for name in start)


@pytest.mark.slow
def test_ranks_leave_out_the_batch_whose_gradient_explodes_on_the_first_one(root: Path, batches: list[Batch]) -> None:
    bound = {"optimizer": {"learning_rate": 1e-3, "grad_clip": 0.5, "max_grad_norm": 1e6}}
    alone, together = config(root, "without", **bound), config(root, "exploding", **bound)
    train(alone, batches[1:], Ranks())
    train_in_two_processes(together, batches, failed=("b0",), explodes=True)
    start = load_file(tiny_model(root)[0] / "model.safetensors")
    for version in (1, 2):
        assert distance(published(alone, version), published(together, version), start) <= TOLERANCE


def fail_and_train(settings: TrainerConfig, batch: Batch, ranks: Ranks) -> None:
    """A batch with a missing image changes nothing and names its row; the whole batch is trained on after it."""
    trainer = Trainer(settings, ImageStore(settings.images), ranks=ranks, load=load_double)
    trainer.setup(settings.start_model, 0, None)
    before = trainer._policy.copy_to_host()
    lost = batch.model_copy(deep=True)
    passes = trainer._micro_batches.passes(build_rows(batch, settings.advantage, settings.advantage_over))
    assert len(passes) > 1, "the image is missed after a pass without gradient"
    last = passes[-1][-1]
    (bad,) = (row for row in lost.rows if (row.rollout_id, row.step.index) == (last.rollout_id, last.step.index))
    bad.step.image_sha256[-1] = "0" * 64
    with pytest.raises(BatchFailed, match="is not in") as failure:
        trainer.step(lost)
    assert [(each.rollout_id, each.index) for each in failure.value.culprits] == [(bad.rollout_id, bad.step.index)]
    after = trainer._policy.copy_to_host()
    assert before.keys() == after.keys()
    assert all(torch.equal(local_part(value), local_part(after[name])) for name, value in before.items())
    assert trainer.step(batch).version == 1


def local_part(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


@pytest.mark.slow
def test_ranks_blame_a_missing_image_where_a_batch_has_several_optimiser_steps(
    root: Path, batches: list[Batch]
) -> None:
    in_two_processes(partial(fail_and_train, config(root, "damaged", micro_batch_tokens=1), batches[0]))


def score_without_gradient(settings: TrainerConfig, batch: Batch, ranks: Ranks) -> None:
    """After a pass without gradient every parameter, and what a checkpoint holds of it, is a shard."""
    policy = TrainedPolicy(settings, ranks, settings.start_model, load_double)
    rows = build_rows(batch, settings.advantage, settings.advantage_over)
    with torch.no_grad():
        for _, tensors in policy.micro_batches(ImageStore(settings.images)).of(rows):
            policy.score(tensors)
            policy.score(tensors, reference=True)
            parameters = [*policy.loaded.model.named_parameters(), *policy._reference.model.named_parameters()]
            assert [name for name, parameter in parameters if not isinstance(parameter, DTensor)] == []
    assert split_shards(policy.tensors().values())[1] == []


@pytest.mark.slow
def test_a_pass_without_gradient_leaves_shards(root: Path, batches: list[Batch]) -> None:
    in_two_processes(partial(score_without_gradient, config(root, "scored"), batches[0]))
