"""Train steps on a tiny real model: what they learn, and that nothing but the recipe changes it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_objectives import aggregate_by_trajectory
from trainer_harness import (
    RESPONSE_TOKENS,
    batch_of,
    batch_of_trajectories,
    own_logprobs,
    same,
    trainer_on,
    trajectory_of,
    weights_of,
)

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch, FamilyRewards
from dart_train.model.policy_model import LoadedModel, load_model
from dart_train.trainer.batches.rows import TrainRow, build_rows
from dart_train.trainer.trainer import Trainer
from dart_train.types import TrainBatch


def response_logprobs(loaded: LoadedModel, images: ImageStore, batch: Batch) -> dict[str, float]:
    """Sum of the log-probs of every rollout's sampled tokens."""
    found: dict[str, float] = {}
    for row in build_rows(batch, "no_std"):
        found[row.rollout_id] = found.get(row.rollout_id, 0.0) + sum(own_logprobs(loaded, images, row))
    return found


def test_a_train_step_moves_the_policy_towards_what_was_rewarded(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, tmp_path: Path
) -> None:
    trainer = trainer_on(root, model_dir, images, optimizer={"learning_rate": 1e-3})
    stored = {"tick": FamilyRewards(rollouts=8, reward_sum=1.0), "type": FamilyRewards(rollouts=8, reward_sum=3.0)}
    done = trainer.step(batch.model_copy(update={"stored_rewards": stored}))
    assert (done.version, trainer.version, trainer.updates) == (1, 1, 1)
    assert done.metrics["ratio"] == pytest.approx(1)
    assert done.metrics["mismatch_k3"] == pytest.approx(0, abs=1e-6)
    assert done.metrics["tokens"] == 12 * RESPONSE_TOKENS
    assert done.metrics["grad_norm"] > 0
    assert done.metrics["reward_mean"] == done.metrics["reward/tick"] == pytest.approx(1 / 3)
    assert [done.metrics[name] for name in ("rollouts", "rollout_reward", "rollout_reward/tick")] == [16, 0.25, 0.125]
    trainer.save(tmp_path)
    after = response_logprobs(load_model(tmp_path), images, batch)
    for rollout_id, before in response_logprobs(load_model(model_dir), images, batch).items():
        rewarded = rollout_id.endswith("_0")
        assert (after[rollout_id] > before) is rewarded, f"{rollout_id}: {before} became {after[rollout_id]}"


def test_learning_rate_zero_runs_the_same_path_and_changes_nothing(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch
) -> None:
    trainer = trainer_on(root, model_dir, images, optimizer={"learning_rate": 0.0, "weight_decay": 0.1})
    before = weights_of(trainer)
    done = trainer.step(batch)
    assert done.version == 1
    assert done.metrics["grad_norm"] > 0
    assert same(before, weights_of(trainer))


@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "trajectory_mean"])
def test_micro_batches_do_not_change_the_update(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, aggregation: str
) -> None:
    results = []
    for tokens in (60, 10_000):
        trainer = trainer_on(root, model_dir, images, micro_batch_tokens=tokens, loss={"aggregation": aggregation})
        results.append(trainer.step(batch).metrics)
    for name in ("loss", "grad_norm", "entropy", "tokens"):
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-3, abs=1e-6)


def test_several_minibatches_measure_the_ratio_against_the_policy_before(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch
) -> None:
    trainer = trainer_on(root, model_dir, images, epochs=2, minibatches=2, optimizer={"learning_rate": 3e-3})
    done = trainer.step(batch)
    assert done.metrics["optimizer_steps"] == 4
    assert done.metrics["update_k3"] > 1e-5
    assert done.version == 1


def test_step_filter_names_what_it_left_out(root: Path, model_dir: Path, images: ImageStore, batch: Batch) -> None:
    trainer = trainer_on(root, model_dir, images, high_entropy_step_fraction=0.5)
    done = trainer.step(batch)
    assert done.metrics["rows_trained"] == 6
    assert sorted(str(step.reason) for step in done.steps) == ["None"] * 6 + ["low_entropy"] * 6
    assert {step.group_id for step in done.steps} == {group.group_id for group in batch.groups}
    assert all(step.advantage and step.entropy is not None for step in done.steps)


def test_the_only_step_of_a_batch_begins_with_the_ratio_one(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch
) -> None:
    """Entropies come from passes over all rows, and bfloat16 rounds those otherwise than passes over the rows that are left."""
    options: dict[str, Any] = {"dtype": "bfloat16", "high_entropy_step_fraction": 0.5, "micro_batch_tokens": 400}
    once = trainer_on(root / "once", model_dir, images, **options).step(batch).metrics
    assert (once["ratio"], once["update_k3"]) == (1.0, 0.0)
    twice = trainer_on(root / "twice", model_dir, images, minibatches=2, **options).step(batch).metrics
    assert twice["update_k3"] > 0


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_every_pass_is_scored_before_the_update_as_it_is_trained(
    root: Path,
    model_dir: Path,
    images: ImageStore,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    fraction: float,
) -> None:
    """bfloat16 rounds otherwise where other rows are packed together, by as much as the widths of GSPO."""
    options: dict[str, Any] = {"dtype": "bfloat16", "high_entropy_step_fraction": fraction, "micro_batch_tokens": 40}
    trainer = trainer_on(root, model_dir, images, epochs=2, minibatches=2, optimizer={"learning_rate": 0.0}, **options)
    plans: dict[bool, list[list[list[str]]]] = {False: [], True: []}
    of = trainer._micro_batches.of

    def spied(rows: Sequence[TrainRow]) -> Iterator[tuple[list[TrainRow], TrainBatch]]:
        made = list(of(rows))
        plans[torch.is_grad_enabled()].append([[row.name for row in part] for part, _ in made])
        return iter(made)

    monkeypatch.setattr(trainer._micro_batches, "of", spied)
    metrics = trainer.step(batch).metrics
    assert len(plans[True]) == 4
    assert max(len(plan) for plan in plans[True]) > 1
    assert plans[False][-4:] == plans[True]
    assert len(plans[False]) == (4 if fraction == 1 else 5), "entropies of all rows choose first"
    assert (metrics["ratio"], metrics["update_k3"]) == (1.0, 0.0), "nothing was updated"


def test_a_filtered_trajectory_counts_once_in_the_loss_of_a_train_step(
    root: Path, model_dir: Path, loaded: LoadedModel, images: ImageStore
) -> None:
    batch = batch_of(loaded, images, groups=2, members=3, steps=4)
    for group in batch.groups:
        group.members[1] = group.members[1].model_copy(update={"reward": 0.25})
    loss = {"aggregation": "trajectory_mean", "tis_cap": None}
    options = {"high_entropy_step_fraction": 0.5, "advantage_over": "group_trajectories", "loss": loss}
    done = trainer_on(root, model_dir, images, **options).step(batch)
    kept = {(step.rollout_id, step.index): [step.advantage] for step in done.steps if step.reason is None}
    wanted = -aggregate_by_trajectory(kept, "trajectory_mean", 1)  # every ratio is 1
    over_rows = -sum(values[0] for values in kept.values()) / len(kept)
    assert abs(wanted - over_rows) > 0.01, "trajectories keep unlike numbers of steps"
    assert done.metrics["loss"] == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_token_filter_trains_on_undecided_tokens_of_the_batch(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch
) -> None:
    everything = trainer_on(root / "all", model_dir, images).step(batch).metrics["tokens"]
    done = trainer_on(root / "some", model_dir, images, high_entropy_token_fraction=0.2).step(batch)
    assert done.metrics["tokens"] == math.ceil(0.2 * everything)
    withheld = [step for step in done.steps if step.reason is not None]
    assert {step.reason for step in withheld} <= {"low_entropy_tokens"}
    assert done.metrics["rows_trained"] == len(done.steps) - len(withheld)
    assert len(done.steps) == len(batch.rows)
    told = [step.trained for step in done.steps if step.reason is None]
    assert sum(end - start for ranges in told for start, end in ranges or ()) == done.metrics["tokens"]


def test_kl_term_pulls_towards_the_reference(root: Path, model_dir: Path, images: ImageStore, batch: Batch) -> None:
    trainer = trainer_on(root, model_dir, images, loss={"kl_coefficient": 0.1}, optimizer={"learning_rate": 3e-3})
    assert trainer.step(batch).metrics["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert trainer.step(batch).metrics["kl_reference"] > 1e-5


def test_steps_share_a_stream_or_have_one_each(
    root: Path, model_dir: Path, loaded: LoadedModel, images: ImageStore
) -> None:
    batch = batch_of_trajectories([trajectory_of(loaded, images, seed, steps=3) for seed in (0, 1)])
    streams, norms = {}, {}
    for share in (True, False):
        trainer, seen = trainer_on(root, model_dir, images, share_prefixes=share, loss={"tis_cap": None}), list[int]()
        trainer._policy.scorer.register_forward_pre_hook(lambda _, given, seen=seen: seen.extend(given[0].segments))
        norms[share] = trainer.step(batch).metrics["grad_norm"]
        streams[share] = len(seen)
    assert streams == {True: 2, False: 6}
    assert norms[True] == pytest.approx(norms[False], rel=1e-3)


def test_bfloat16_is_for_matrix_products_only(root: Path, model_dir: Path, images: ImageStore, batch: Batch) -> None:
    rounds = {}
    for dtype in ("float32", "bfloat16"):
        trainer = trainer_on(root, model_dir, images, dtype=dtype, optimizer={"learning_rate": 1e-3})
        rounds[dtype] = trainer.step(batch).metrics
        assert {value.dtype for value in weights_of(trainer).values()} == {torch.float32}
    plain = trainer_on(root, model_dir, images, dtype="auto", optimizer={"learning_rate": 1e-3}).step(batch).metrics
    assert {**plain, "step_s": 0} == {**rounds["float32"], "step_s": 0}
    assert rounds["bfloat16"]["entropy"] != rounds["float32"]["entropy"]
    assert rounds["bfloat16"]["entropy"] == pytest.approx(rounds["float32"]["entropy"], rel=1e-2)


class Calls:
    """Counts forward passes of a module and remembers the last output's graph."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.count = 0
        module.register_forward_pre_hook(self._add)

    def _add(self, *_: object) -> None:
        self.count += 1


def saved_bytes(trainer: Trainer, batch: Batch) -> int:
    """Bytes that the forward passes of a train step keep for the backward pass, parameters aside."""
    parameters = {value.data_ptr() for value in trainer._policy.loaded.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.step(batch)
    return sum(kept.values())


def test_gradient_checkpointing_keeps_less_computes_again_and_changes_nothing(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch
) -> None:
    steps, kept, calls = {}, {}, {}
    for checkpointing in (False, True):
        trainer = trainer_on(root, model_dir, images, gradient_checkpointing=checkpointing)
        model = trainer._policy.loaded.model.model
        layers = [Calls(model.language_model.layers[0].mlp), Calls(model.visual.blocks[0].mlp)]
        kept[checkpointing] = saved_bytes(trainer, batch)
        calls[checkpointing] = [layer.count for layer in layers]
        steps[checkpointing] = weights_of(trainer)
    assert (calls[False], calls[True]) == ([1, 1], [2, 2])
    assert kept[True] < 0.6 * kept[False], kept
    assert same(steps[False], steps[True])


def test_dropout_is_off_and_a_frozen_vision_tower_stays(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, tmp_path: Path
) -> None:
    copy = shutil.copytree(model_dir, tmp_path / "dropping")
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["attention_dropout"] = 0.5
    (copy / "config.json").write_text(json.dumps(config))
    options = {"freeze_vision": True, "gradient_checkpointing": True, "optimizer": {"learning_rate": 1e-3}}
    trainer = trainer_on(root, copy, images, **options)
    before = {name: value.clone() for name, value in trainer._policy.loaded.model.state_dict().items()}
    assert trainer._policy.loaded.model.training
    assert trainer.step(batch).metrics["mismatch_k3"] == pytest.approx(0, abs=1e-6)
    after = trainer._policy.loaded.model.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved
    assert not any("visual" in name for name in moved)
