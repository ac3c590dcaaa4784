"""Rows, segments and mini-batches of a train step, on a tiny real model."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from trainer_harness import (
    screen,
    step_of,
)

from dart_agent.data_client.image_store import BlobError, ImageStore
from dart_agent.data_client.wire import Batch
from dart_agent.types import StepRecord
from dart_train.model.policy_model import LoadedModel
from dart_train.model.policy_scorer import PolicyScorer
from dart_train.trainer.batches.rows import TrainRow, build_rows, select_steps, split_minibatches
from dart_train.trainer.batches.segments import Segment
from dart_train.trainer.batches.tensors import BatchError, BatchMaker, placeholder_runs
from dart_train.types import TrainBatch


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
