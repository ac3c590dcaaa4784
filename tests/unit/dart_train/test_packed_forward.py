"""Packed = unpacked = prefix-shared = any split into micro-batches: log-probs, entropies and gradients, in float64.

The reference is one plain forward pass of transformers per step, with full logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from published_checkpoints import write_checkpoint
from torch import Tensor
from trainer_harness import screen, tiny_model, trajectory_of

from dart_agent.data_client.image_store import ImageStore
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import StepRecord
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs
from dart_train.model.policy_scorer import PolicyScorer
from dart_train.trainer.batches.image_patches import ImagePatches
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.segments import Segment, build_segments, plan_micro_batches
from dart_train.trainer.batches.tensors import BatchMaker

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module", params=["tiny", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    path = tiny_model(root)[0] if request.param == "tiny" else write_checkpoint(request.param, root / request.param)
    found = load_model(path)
    return replace(found, model=found.model.double())


@pytest.fixture(scope="module")
def rows(loaded: LoadedModel, images: ImageStore) -> list[TrainRow]:
    """Trajectories of 4, 3 and 1 steps, at different temperatures; the second has a break."""
    made = {
        "a": trajectory_of(loaded, images, seed=1, steps=4),
        "b": trajectory_of(loaded, images, seed=2, steps=3, breaks=(1,)),
        "c": trajectory_of(loaded, images, seed=3, steps=1),
    }
    return [
        TrainRow(name, "g", step, ((0, len(step.token_ids_T)),), 1.0) for name, steps in made.items() for step in steps
    ]


def plain_scores(loaded: LoadedModel, images: ImageStore, step: StepRecord) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of one step by one pass of its own, as transformers computes logits."""
    ids = torch.tensor([step.prompt_ids_P + step.token_ids_T])
    pixels, grid = pixel_inputs(loaded.processor, [images.get(sha256) for sha256 in step.image_sha256])
    logits_TV = loaded.model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=pixels.double(),
        image_grid_thw=grid,
        mm_token_type_ids=(ids == loaded.model.config.image_token_id).to(torch.int32),
    ).logits[0, len(step.prompt_ids_P) - 1 : -1]
    logits_TV = logits_TV / step.sampling.temperature
    logits_TV[:, list(suppressed_token_ids(loaded.model.config))] = -1e4
    log_probs_TV = logits_TV.log_softmax(-1)
    chosen_T = log_probs_TV.gather(-1, torch.tensor(step.token_ids_T).unsqueeze(-1)).squeeze(-1)
    return chosen_T, -(log_probs_TV.exp() * log_probs_TV).sum(-1)


def objective(rows: Sequence[TrainRow], logprobs: Sequence[Tensor], entropies: Sequence[Tensor]) -> Tensor:
    """A loss with another weight for each row, as advantages and step weights give."""
    weights = [1.0 + row.step.index - 2.0 * (row.rollout_id == "b") for row in rows]
    return torch.stack(
        [w * (p.mean() + 0.1 * e.sum()) for w, p, e in zip(weights, logprobs, entropies, strict=True)]
    ).sum()


def gradients(loaded: LoadedModel) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in loaded.model.named_parameters() if p.grad is not None}


def reference(
    loaded: LoadedModel, images: ImageStore, rows: Sequence[TrainRow]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    loaded.model.zero_grad()
    scores = [plain_scores(loaded, images, row.step) for row in rows]
    objective(rows, [p for p, _ in scores], [e for _, e in scores]).backward()
    found = {
        f"{row.name} {i}": value.detach()
        for row, both in zip(rows, scores, strict=True)
        for i, value in enumerate(both)
    }
    return found, gradients(loaded)


def packed(
    loaded: LoadedModel, images: ImageStore, parts: Sequence[Sequence[Segment]]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    loaded.model.zero_grad()
    maker, scorer = BatchMaker(loaded.model, loaded.processor, images), PolicyScorer(loaded.model, chunk_tokens=5)
    found: dict[str, Tensor] = {}
    for part in parts:
        members = [row for segment in part for row in segment.rows]
        lengths = [len(row.step.token_ids_T) for row in members]
        scores = scorer(maker.make(part).tokens)
        logprobs, entropies = (list(values.split(lengths)) for values in scores)
        objective(members, logprobs, entropies).backward()
        for row, both in zip(members, zip(logprobs, entropies, strict=True), strict=True):
            found |= {f"{row.name} {i}": value.detach() for i, value in enumerate(both)}
    return found, gradients(loaded)


SPLITS: dict[str, Callable[[list[TrainRow]], list[list[Segment]]]] = {
    "unpacked, one step per pass": lambda rows: [[Segment((row,))] for row in rows],
    "packed, one segment per step": lambda rows: [[Segment((row,)) for row in rows]],
    "prefix-shared, one segment per pass": lambda rows: [[segment] for segment in build_segments(rows)],
    "prefix-shared and packed": lambda rows: [build_segments(rows)],
    "micro-batches of 60 tokens": lambda rows: plan_micro_batches(build_segments(rows), 60),
    "a step left out in between": lambda rows: [build_segments(rows[:1] + rows[2:]), [Segment((rows[1],))]],
}


def test_all_ways_to_pack_give_the_plain_values_and_gradients(
    loaded: LoadedModel, images: ImageStore, rows: list[TrainRow]
) -> None:
    wanted, wanted_gradients = reference(loaded, images, rows)
    for name, split in SPLITS.items():
        found, found_gradients = packed(loaded, images, split(rows))
        assert found.keys() == wanted.keys(), name
        for key, values in wanted.items():
            torch.testing.assert_close(found[key], values, rtol=TOLERANCE, atol=TOLERANCE, msg=f"{name}: {key}")
        assert found_gradients.keys() == wanted_gradients.keys(), name
        for key, values in wanted_gradients.items():
            distance = float((found_gradients[key] - values).norm() / values.norm().clamp(min=1e-12))
            assert distance <= TOLERANCE, f"{name}: the gradient of {key} differs by {distance}"


def test_segments_end_where_a_prompt_does_not_continue(rows: list[TrainRow]) -> None:
    segments = build_segments(list(reversed(rows)))
    assert sorted([row.step.index for row in segment.rows] for segment in segments) == [[0], [0], [0, 1, 2, 3], [1, 2]]
    longest = max(segments, key=lambda segment: segment.tokens)
    assert longest.token_ids == rows[3].step.prompt_ids_P + rows[3].step.token_ids_T


def test_an_image_is_converted_once_and_its_features_are_computed_once(
    loaded: LoadedModel, images: ImageStore, rows: list[TrainRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = ImagePatches(images, loaded.processor, max_bytes=2**30)
    maker = BatchMaker(loaded.model, loaded.processor, images, patches=patches)
    read: list[str] = []
    get = images.get
    monkeypatch.setattr(images, "get", lambda sha256: read.append(sha256) or get(sha256))
    steps = [Segment((row,)) for row in rows]
    batch = maker.make(steps)
    maker.make(steps)
    assert len(read) == len(set(read)) == 8, "8 steps with a new image each"
    assert batch.tokens.image_grid_thw is not None
    assert batch.tokens.image_grid_thw.shape[0] == 8
    assert len(batch.tokens.shown_images) == sum(len(row.step.image_sha256) for row in rows) == 15


def test_kept_patches_have_a_limit_of_bytes(loaded: LoadedModel, images: ImageStore) -> None:
    shown = [(images.put(screen(seed)), (64, 64)) for seed in (71, 72)]
    size = ImagePatches(images, loaded.processor, max_bytes=0).get(shown)[0][0].nbytes
    patches = ImagePatches(images, loaded.processor, max_bytes=size)
    patches.get(shown)
    assert (list(patches._kept), patches._kept_bytes) == ([shown[1][0]], size)


def test_micro_batches_are_bounded_balanced_and_a_multiple_of_the_ranks(rows: list[TrainRow]) -> None:
    segments = [Segment((row,)) for row in rows]
    sizes = {segment.tokens for segment in segments}
    for limit, ranks in ((60, 1), (60, 3), (1, 2), (10**6, 4)):
        parts = plan_micro_batches(segments, limit, ranks)
        assert len(parts) % ranks == 0
        assert sorted(s.rows[0].name for part in parts for s in part) == sorted(row.name for row in rows)
        assert all(len(part) <= 1 or sum(s.tokens for s in part) <= limit for part in parts)
    two = [sum(s.tokens for s in part) for part in plan_micro_batches(segments, 10**6, 2)]
    assert abs(two[0] - two[1]) <= max(sizes)
    assert plan_micro_batches([], 60, 2) == [[], []]
