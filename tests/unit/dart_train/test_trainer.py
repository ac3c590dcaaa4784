"""The trainer on a tiny real model: batches, train steps, exact resuming."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from reference_objectives import aggregate_by_trajectory
from trainer_harness import (
    RESPONSE_TOKENS,
    batch_of,
    batch_of_trajectories,
    config_of,
    own_logprobs,
    screen,
    step_of,
    tiny_model,
    trajectory_of,
)

from dart_agent.data_client.image_store import BlobError, ImageStore
from dart_agent.data_client.payloads import StepPayload
from dart_agent.data_client.wire import Batch, FamilyRewards
from dart_agent.errors import ConfigError, StoreUnavailableError
from dart_agent.metrics_file import append_metrics
from dart_agent.types import StepRecord
from dart_envs.types import RgbImage
from dart_train.imitation.tokens import ImitatedEpisode
from dart_train.model.policy_model import LoadedModel, load_model
from dart_train.model.policy_scorer import PolicyScorer
from dart_train.model.weights import PolicyVersionStore
from dart_train.objectives.settings import LossSettings
from dart_train.trainer.batches.imitated_rows import ImitatedRows
from dart_train.trainer.batches.rows import TrainRow, build_rows, select_steps, split_minibatches
from dart_train.trainer.batches.segments import Segment
from dart_train.trainer.batches.tensors import BatchError, BatchMaker, placeholder_runs
from dart_train.trainer.checkpoint import CheckpointStore
from dart_train.trainer.trainer import BatchFailed, Trainer, TrainStep
from dart_train.types import TrainBatch


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture(scope="module")
def model_dir(root: Path) -> Path:
    return tiny_model(root)[0]


@pytest.fixture(scope="module")
def loaded(root: Path) -> LoadedModel:
    return tiny_model(root)[1]


@pytest.fixture(scope="module")
def images(root: Path) -> ImageStore:
    return ImageStore(root / "images")


@pytest.fixture(scope="module")
def batch(loaded: LoadedModel, images: ImageStore) -> Batch:
    return batch_of(loaded, images)


def trainer_on(root: Path, model_dir: Path, images: ImageStore, **changes: Any) -> Trainer:
    trainer = Trainer(config_of(root, model_dir, **changes), images)
    trainer.setup(str(model_dir), 0, None)
    return trainer


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    tensors = trainer.state(TrainStep(0, {}, ()), "b", 0.0).tensors
    return {name.removeprefix("model."): value.clone() for name, value in tensors.items() if name.startswith("model.")}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


# Batches


def make(loaded: LoadedModel, images: ImageStore, *steps: StepRecord) -> TrainBatch:
    rows = [TrainRow("roll_x", "g", step, ((1, 3),), 0.5) for step in steps]
    return BatchMaker(loaded.model, loaded.processor, images).make([Segment((row,)) for row in rows])


def test_rows_keep_their_tokens_and_their_log_probs(loaded: LoadedModel, images: ImageStore) -> None:
    steps = [step_of(loaded, images, seed, temperature=0.5 + seed) for seed in (0, 1, 2)]
    made = make(loaded, images, *steps)
    assert made.tokens.input_ids_1L[0].tolist() == [
        token for step in steps for token in step.prompt_ids_P + step.token_ids_T
    ]
    assert made.tokens.segments == tuple(len(step.prompt_ids_P + step.token_ids_T) for step in steps)
    sampled = made.tokens.input_ids_1L[0, made.tokens.predicts_M + 1]
    assert sampled.tolist() == made.tokens.targets_M.tolist() == [token for step in steps for token in step.token_ids_T]
    assert made.trainable_BR.tolist() == [[False, True, True, False, False]] * 3
    logprobs_M, _ = PolicyScorer(loaded.model)(made.tokens)
    assert torch.allclose(logprobs_M, made.rollout_logprobs_BR[made.response_mask_BR], atol=1e-4)


def test_an_image_that_expands_otherwise_is_an_error_naming_the_row(loaded: LoadedModel, images: ImageStore) -> None:
    step = step_of(loaded, images, 0)
    wrong = images.put(screen(5, 64, 96))
    grown = replace(step, image_sha256=(wrong,), image_hw=((64, 96),))
    with pytest.raises(BatchError, match=r"step 0 of rollout roll_x.*runs of \[4\].*makes \[6\]"):
        make(loaded, images, grown)
    with pytest.raises(BatchError, match=r"makes \[\]"):
        make(loaded, images, replace(step, image_sha256=(), image_hw=()))
    with pytest.raises(BatchError, match=r"step 0 of rollout roll_x: image .* recorded as"):
        make(loaded, images, replace(step, image_hw=((64, 96),)))
    with pytest.raises(BlobError, match=r"step 0 of rollout roll_x: image .* is not in"):
        make(loaded, images, replace(step, image_sha256=("0" * 64,)))


def test_rows_without_log_probs_are_errors(loaded: LoadedModel, images: ImageStore) -> None:
    with pytest.raises(BatchError, match="0 log-probs"):
        make(loaded, images, replace(step_of(loaded, images, 0), logprobs_T=()))


def test_placeholder_runs() -> None:
    assert placeholder_runs([9, 9, 1, 9, 2], 9) == [2, 1]
    assert placeholder_runs([1, 2], 9) == []


def test_rows_take_the_advantage_of_their_rollout(batch: Batch) -> None:
    rows = build_rows(batch, "no_std")
    assert len(rows) == 12
    for row in rows:
        assert row.advantage == pytest.approx(2 / 3 if row.rollout_id.endswith("_0") else -1 / 3)


def test_steps_are_selected_within_their_group(batch: Batch) -> None:
    rows = build_rows(batch, "grpo")
    entropies = {row.key: float(index) for index, row in enumerate(rows)}
    used, unused = select_steps(rows, entropies, 0.5)
    assert {row.key for row in unused} == {row.key for row in rows[:3] + rows[6:9]}
    assert len(used) == 6


def test_minibatches_are_about_equal_and_keep_trajectories_whole(batch: Batch) -> None:
    rows = build_rows(batch, "grpo")
    parts = split_minibatches(rows, 4, Random(1))
    assert sorted(row.key for part in parts for row in part) == sorted(row.key for row in rows)
    assert [len(part) for part in parts] == [2, 4, 2, 4]
    owners = [{row.rollout_id for row in part} for part in parts]
    assert sum(len(each) for each in owners) == len(set().union(*owners)) == 6
    assert parts != split_minibatches(rows, 4, Random(2))
    assert split_minibatches(rows[:1], 3, Random(1)) == [rows[:1]]
    assert split_minibatches([], 3, Random(1)) == []


# Rounds


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


def test_storage_of_images_that_is_away_blames_no_row(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_on(root, model_dir, images)
    read, away = ImageStore.get, True

    def get(store: ImageStore, sha256: str) -> RgbImage:
        if away:
            raise StoreUnavailableError("the bucket does not answer")
        return read(store, sha256)

    monkeypatch.setattr(ImageStore, "get", get)
    with pytest.raises(StoreUnavailableError, match="bucket"):
        trainer.step(batch)
    away = False
    assert trainer.step(batch).version == 1, "the same batch is trained on later"


def test_storage_that_goes_away_between_optimiser_steps_leaves_nothing_changed(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_on(root, model_dir, images, epochs=2, image_cache_gib=0, optimizer={"learning_rate": 1e-2})
    before = weights_of(trainer)
    read = ImageStore.get

    def get(store: ImageStore, sha256: str) -> RgbImage:
        if any(not torch.equal(before[name], now) for name, now in weights_of(trainer).items()):
            raise StoreUnavailableError("the bucket does not answer")
        return read(store, sha256)

    monkeypatch.setattr(ImageStore, "get", get)
    with pytest.raises(StoreUnavailableError, match="bucket"):
        trainer.step(batch)
    for name, now in weights_of(trainer).items():
        assert torch.equal(before[name], now), name


@pytest.mark.parametrize("passes", [{}, {"epochs": 2}])
def test_a_failed_batch_changes_nothing_and_names_its_rows(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, passes: dict[str, int]
) -> None:
    trainer = trainer_on(root, model_dir, images, optimizer={"learning_rate": 1e-3}, **passes)
    trainer.step(batch)
    before = trainer.state(TrainStep(0, {}, ()), "b", 0.0)
    weights = weights_of(trainer)
    moments = {name: value.clone() for name, value in before.tensors.items()}
    lost = batch.model_copy(deep=True)
    for row in (lost.rows[2], lost.rows[7]):
        row.step.image_sha256[:] = ["0" * 64]
    with pytest.raises(BatchFailed, match="is not in") as failure:
        trainer.step(lost)
    wrong = [(row.rollout_id, row.step.index) for row in (lost.rows[2], lost.rows[7])]
    assert [(culprit.rollout_id, culprit.index) for culprit in failure.value.culprits] == wrong
    unknown = batch.model_copy(deep=True)
    step = unknown.rows[4].step.to_value()
    strange = replace(step, token_ids_T=(10**6, *step.token_ids_T[1:]))
    unknown.rows[4] = unknown.rows[4].model_copy(update={"step": StepPayload.from_value(strange)})
    with pytest.raises(BatchFailed, match=r"step 0 of rollout roll_0_2 has a token that the model"):
        trainer.step(unknown)
    after = trainer.state(TrainStep(0, {}, ()), "b", 0.0)
    assert (after.version, after.updates) == (1, 1)
    assert same(weights, weights_of(trainer))
    assert any(name.endswith("exp_avg_sq") for name in moments)
    assert moments.keys() == after.tensors.keys()
    assert all(torch.equal(value, after.tensors[name]) for name, value in moments.items())


@pytest.mark.parametrize("bad_pass", [1, 2])
def test_a_gradient_that_is_not_finite_is_undone_and_its_row_found(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, bad_pass: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_on(root, model_dir, images, epochs=2, optimizer={"learning_rate": 1e-3}, micro_batch_tokens=1)
    weights = weights_of(trainer)
    poisoned = batch.rows[3].step.to_value()
    seen = 0
    score = trainer._policy.score

    def poison(tensors: TrainBatch) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal seen
        logprobs_BR, entropy_BR = score(tensors)
        ids = tuple(tensors.tokens.input_ids_1L[0, : len(poisoned.prompt_ids_P)].tolist())
        if ids == poisoned.prompt_ids_P:
            seen += torch.is_grad_enabled()
            if seen >= bad_pass:
                logprobs_BR = logprobs_BR * float("nan")
        return logprobs_BR, entropy_BR

    monkeypatch.setattr(trainer._policy, "score", poison)
    with pytest.raises(BatchFailed, match="gradient of update 1 is not finite") as failure:
        trainer.step(batch)
    (culprit,) = failure.value.culprits
    assert (culprit.rollout_id, culprit.index) == (batch.rows[3].rollout_id, poisoned.index)
    assert same(weights, weights_of(trainer))
    monkeypatch.undo()
    fresh = trainer_on(root, model_dir, images, epochs=2, optimizer={"learning_rate": 1e-3}, micro_batch_tokens=1)
    fresh.step(batch)
    trainer.step(batch)
    assert same(weights_of(fresh), weights_of(trainer)), "what follows is as if the failure had not been"


def poison_answer(monkeypatch: pytest.MonkeyPatch, trainer: Trainer, step: StepRecord) -> list[int]:
    """Passes that score the answer of a step have no finite loss. Returns a list that gets an entry per pass."""
    calls, score, answer = list[int](), trainer._policy.score, torch.tensor(step.token_ids_T)

    def poisoned(tensors: TrainBatch) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_BR, entropy_BR = score(tensors)
        hit = bool((tensors.tokens.targets_M.unfold(0, len(answer), 1) == answer).all(-1).any())
        calls.append(len(calls))
        return logprobs_BR * (float("nan") if hit else 1), entropy_BR

    monkeypatch.setattr(trainer._policy, "score", poisoned)
    return calls


def test_one_bad_row_of_many_is_found_by_halves(
    root: Path, model_dir: Path, loaded: LoadedModel, images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(loaded, images, groups=4, members=4, steps=2)
    trainer = trainer_on(root, model_dir, images, micro_batch_tokens=200)
    passes = len(trainer._micro_batches.passes(build_rows(batch, "grpo")))
    calls = poison_answer(monkeypatch, trainer, batch.rows[21].step.to_value())
    with pytest.raises(BatchFailed) as failure:
        trainer.step(batch)
    (culprit,) = failure.value.culprits
    assert (culprit.rollout_id, culprit.index) == (batch.rows[21].rollout_id, batch.rows[21].step.to_value().index)
    assert 1 < passes < 8
    assert len(calls) - passes <= passes + 2 * math.ceil(math.log2(32)), "32 rows would be as many passes one by one"


def test_an_imitated_row_that_is_to_blame_is_left_out_and_the_batch_is_trained_on(
    root: Path, model_dir: Path, loaded: LoadedModel, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = tuple(step_of(loaded, images, 900 + index, index=index) for index in range(3))
    trainer = trainer_on(root, model_dir, images)
    imitating = {"imitation": SimpleNamespace(steps_per_update=3), "loss": LossSettings(sft_coefficient=0.5)}
    monkeypatch.setattr(trainer, "config", trainer.config.model_copy(update=imitating))
    monkeypatch.setattr(trainer, "_imitated_rows", ImitatedRows([ImitatedEpisode("shown", "s/t/1", steps)], seed=0))
    poison_answer(monkeypatch, trainer, steps[1])
    done = trainer.step(batch)
    assert done.metrics["rows_trained"] == len(batch.rows)
    assert done.metrics["imitation_nll"] > 0
    assert {row.step.index for row in trainer._imitated(1, 0)} == {0, 2}
    assert all(bool(value.isfinite().all()) for value in weights_of(trainer).values())


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


def test_a_gradient_above_the_bound_is_not_applied_and_blames_no_single_row(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = trainer_on(root, model_dir, images, optimizer={"learning_rate": 1e-3}).step(batch).metrics["grad_norm"]
    bounded = {"learning_rate": 1e-3, "max_grad_norm": 2 * norm}
    trainer = trainer_on(root, model_dir, images, epochs=2, optimizer=bounded)
    weights, clip, passes = weights_of(trainer), trainer._policy.clip_gradient, 0

    def explode_in_the_second_pass() -> torch.Tensor:
        nonlocal passes
        passes += 1
        return clip() if passes == 1 else torch.tensor(1000 * norm)

    monkeypatch.setattr(trainer._policy, "clip_gradient", explode_in_the_second_pass)
    with pytest.raises(BatchFailed, match=r"update 1 has the norm .*, above train.max_grad_norm = ") as failure:
        trainer.step(batch)
    assert failure.value.culprits == ()
    assert (trainer.version, trainer.updates) == (0, 0)
    assert same(weights, weights_of(trainer))
    monkeypatch.undo()
    fresh = trainer_on(root, model_dir, images, epochs=2, optimizer=bounded)
    fresh.step(batch)
    trainer.step(batch)
    assert same(weights_of(fresh), weights_of(trainer)), "what follows is as if the batch had not been"


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


def test_a_schedule_without_an_end_is_refused(root: Path, model_dir: Path) -> None:
    with pytest.raises(ValidationError, match="'cosine' needs max_updates"):
        config_of(root, model_dir, optimizer={"lr_schedule": "cosine"})


# Resuming and publishing


def test_a_trainer_that_is_resumed_after_every_step_is_the_one_that_was_never_interrupted(
    root: Path, model_dir: Path, loaded: LoadedModel, images: ImageStore, tmp_path: Path
) -> None:
    recorded = [batch_of(loaded, images, groups=1, steps=steps, batch_id=f"b{steps}") for steps in (2, 1, 3)]
    options = {
        "minibatches": 2,
        "max_updates": 3,
        "optimizer": {"learning_rate": 1e-3, "lr_schedule": "cosine", "weight_decay": 0.01},
        "seed": 5,
        "freeze_vision": True,
    }
    straight = trainer_on(root, model_dir, images, **options)
    store = CheckpointStore(tmp_path, keep=2)
    for batch in recorded:
        wanted = straight.step(batch)
        resumed = Trainer(config_of(root, model_dir, **options), images)
        resumed.setup(str(model_dir), 0, store.latest())
        got = resumed.step(batch)
        assert {**got.metrics, "step_s": 0} == {**wanted.metrics, "step_s": 0}
        kept = straight.state(wanted, batch.batch_id, 12.0).tensors
        state = resumed.state(got, batch.batch_id, 12.0, ["digest"])
        assert kept.keys() == state.tensors.keys()
        assert not any("visual" in name for name in kept), "what is not trained is not saved"
        assert all(torch.equal(value, state.tensors[name]) for name, value in kept.items()), "bit for bit"
        store.save(state)
    saved = store.latest()
    assert saved is not None
    assert (saved.version, saved.updates, saved.last_batch, saved.trained_s) == (3, 3, "b3", 12.0)
    assert (saved.lineage, saved.metrics) == (["digest"], got.metrics)
    everything = Trainer(config_of(root, model_dir), images)
    with pytest.raises(ConfigError, match=r"lacks model.visual.* continue with the settings that it was made with"):
        everything.setup(str(model_dir), 0, saved)


def test_published_versions_load_and_old_ones_go(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, tmp_path: Path
) -> None:
    trainer = trainer_on(root, model_dir, images, optimizer={"learning_rate": 1e-3})
    store = PolicyVersionStore(tmp_path, keep=2)
    for _ in range(3):
        trainer.step(batch)
        path = store.publish(trainer.version, trainer.save)
    assert store.versions() == [2, 3]
    loaded = load_model(path)
    assert same(weights_of(trainer), loaded.model.state_dict())


def test_metrics_are_lines_of_json(tmp_path: Path) -> None:
    for value in (1, 2):
        append_metrics(tmp_path / "logs" / "metrics.jsonl", {"kind": "update", "value": value})
    lines = (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["value"] for line in lines] == [1, 2]
