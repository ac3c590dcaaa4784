"""What a trainer does with a batch, a row or storage that fails."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from settable_clock import SettableClock
from trainer_harness import (
    batch_of,
    config_of,
    same,
    step_of,
    trainer_on,
    weights_of,
)

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.payloads import StepPayload
from dart_agent.data_client.wire import Batch
from dart_agent.errors import StoreUnavailableError
from dart_agent.types import StepRecord
from dart_envs.types import RgbImage
from dart_train.imitation.tokens import ImitatedEpisode
from dart_train.model.policy_model import LoadedModel
from dart_train.objectives.settings import LossSettings
from dart_train.trainer.batches.imitated_rows import ImitatedRows
from dart_train.trainer.batches.rows import build_rows
from dart_train.trainer.trainer import UNREADABLE_WAIT_S, BatchFailed, Trainer, TrainStep
from dart_train.types import TrainBatch


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


def fail_reads(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Path], bool]) -> None:
    """Let the disk fail when it reads some files."""
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if fails(path):
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)


def test_a_read_error_that_passes_blames_no_row(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, failures = trainer_on(root, model_dir, images), [True]
    fail_reads(monkeypatch, lambda path: bool(failures) and failures.pop())
    with pytest.raises(StoreUnavailableError, match=r"cannot be read: .*Input/output error"):
        trainer.step(batch)
    assert trainer.step(batch).version == 1, "the same batch is trained on later"


def test_a_read_error_while_culprits_are_searched_blames_no_row(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_on(root, model_dir, images, micro_batch_tokens=1, image_cache_gib=0)
    away = iter([False] * len(batch.rows) + [True])
    poison_answer(monkeypatch, trainer, batch.rows[3].step.to_value())
    fail_reads(monkeypatch, lambda path: next(away, False))
    with pytest.raises(StoreUnavailableError, match="Input/output error"):
        trainer.step(batch)
    with pytest.raises(BatchFailed) as failure:
        trainer.step(batch)
    assert [culprit.index for culprit in failure.value.culprits] == [batch.rows[3].step.index]


@pytest.mark.parametrize("everywhere", [False, True])
def test_an_image_that_alone_cannot_be_read_for_long_is_to_blame(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch, everywhere: bool
) -> None:
    clock = SettableClock()
    trainer = Trainer(config_of(root, model_dir, image_cache_gib=0), images, clock)
    trainer.setup(str(model_dir), 0, None)
    row = batch.rows[2]
    (bad,) = row.step.image_sha256
    fail_reads(monkeypatch, lambda path: everywhere or path.stem == bad)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            trainer.step(batch)
    clock.now_s = UNREADABLE_WAIT_S
    if everywhere:
        with pytest.raises(StoreUnavailableError):
            trainer.step(batch)
        return
    with pytest.raises(BatchFailed, match="Input/output error") as failure:
        trainer.step(batch)
    (culprit,) = failure.value.culprits
    assert (culprit.rollout_id, culprit.index) == (row.rollout_id, row.step.index)


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


def imitate(monkeypatch: pytest.MonkeyPatch, trainer: Trainer, steps: Sequence[StepRecord], per_update: int) -> None:
    """Let a trainer imitate steps."""
    imitating = {"imitation": SimpleNamespace(steps_per_update=per_update), "loss": LossSettings(sft_coefficient=0.5)}
    monkeypatch.setattr(trainer, "config", trainer.config.model_copy(update=imitating))
    episode = ImitatedEpisode("shown", "s/t/1", tuple(steps))
    monkeypatch.setattr(trainer, "_imitated_rows", ImitatedRows([episode], seed=0))


def test_an_imitated_row_that_is_to_blame_is_left_out_and_the_batch_is_trained_on(
    root: Path, model_dir: Path, loaded: LoadedModel, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = tuple(step_of(loaded, images, 900 + index, index=index) for index in range(3))
    trainer = trainer_on(root, model_dir, images)
    imitate(monkeypatch, trainer, steps, per_update=3)
    poison_answer(monkeypatch, trainer, steps[1])
    done = trainer.step(batch)
    assert done.metrics["rows_trained"] == len(batch.rows)
    assert done.metrics["imitation_nll"] > 0
    assert {row.step.index for row in trainer._imitated(1, 0)} == {0, 2}
    assert all(bool(value.isfinite().all()) for value in weights_of(trainer).values())


def test_a_train_step_that_begins_again_keeps_one_copy_of_what_was_before(
    root: Path, model_dir: Path, loaded: LoadedModel, images: ImageStore, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"minibatches": 2, "optimizer": {"learning_rate": 1e-3}}
    steps = [step_of(loaded, images, 900 + index, index=index) for index in range(4)]
    trainer, clean = trainer_on(root, model_dir, images, **options), trainer_on(root, model_dir, images, **options)
    for each in (trainer, clean):
        imitate(monkeypatch, each, steps, per_update=2)
    assert clean._imitated_rows is not None
    clean._imitated_rows.leave_out([row for row in clean._imitated_rows.rows if row.step.index == 1], "known")
    poison_answer(monkeypatch, trainer, steps[1])
    copy, copies = trainer._policy.copy_to_host, []

    def counted() -> dict[str, torch.Tensor]:
        copies.append(copy())
        return copies[-1]

    monkeypatch.setattr(trainer._policy, "copy_to_host", counted)
    trainer.step(batch)
    clean.step(batch)
    assert len(copies) == 1
    assert same(weights_of(trainer), weights_of(clean)), "as if the demonstration had never been drawn"


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
