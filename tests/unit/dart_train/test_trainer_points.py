"""The trainer trains on what an action head found beside the tokens: values, gradients, refusals, learning."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from trainer_harness import batch_of_trajectories, config_of, screen, step_of

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch
from dart_agent.errors import ConfigError
from dart_agent.grounding.acting.pointer import Pointer
from dart_agent.grounding.forward import run_forward
from dart_agent.grounding.model import HEAD_PREFIX, GroundingModel, load_grounding_model
from dart_agent.grounding.packing import Question, pack
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import PointedTarget, StepRecord, VersionSpan
from dart_train.model.pointing_model import PointingModel, load_pointing_model
from dart_train.trainer.batches.rows import build_rows, mean_token_entropy, select_tokens
from dart_train.trainer.batches.segments import build_segments, plan_micro_batches
from dart_train.trainer.trainer import BatchFailed, Trainer
from tests.unit.dart_agent.grounding_models import small_model

ASKED = ("click the button", "click the field")
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a head whose parts are not all alike."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("points")
    model = small_model("qwen3_vl", root, offset_parts=2)
    torch.manual_seed(3)
    assert model.head.offset is not None
    torch.nn.init.normal_(model.head.offset.key.weight, std=0.3)
    model.save(root / "model")
    return root / "model"


@pytest.fixture
def loaded(model_dir: Path) -> PointingModel:
    return load_pointing_model(model_dir)


@pytest.fixture
def images(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def pointed(loaded: PointingModel, images: ImageStore, seed: int, index: int, targets: int) -> StepRecord:
    """A step that also pointed, with the log-probs of the model itself."""
    step = step_of(loaded, images, seed, index, temperature=TEMPERATURE)
    found = Pointer(loaded.grounding).point(screen(seed), ASKED[:targets], temperature=TEMPERATURE, seed=seed)
    ntokens = len(step.token_ids_T)
    span = (VersionSpan(0, ntokens, ntokens + targets),) if targets else ()
    return replace(step, pointers=tuple(found), version_spans=(*step.version_spans, *span))


def batch_with_points(loaded: PointingModel, images: ImageStore) -> Batch:
    """Two trajectories: steps with 0, 1 and 2 targets, and log-probs that are not quite those of the model."""
    made = [
        [pointed(loaded, images, 1, 0, 2), pointed(loaded, images, 2, 1, 0)],
        [pointed(loaded, images, 3, 0, 1)],
    ]
    return batch_of_trajectories([[shifted(step) for step in steps] for steps in made])


def shifted(step: StepRecord) -> StepRecord:
    """As sampled by a policy that is a little different."""
    others = tuple(replace(target, logprob=target.logprob - 0.3) for target in step.pointers)
    return replace(step, pointers=others, logprobs_T=tuple(value + 0.2 for value in step.logprobs_T))


def rewarded(batch: Batch, rewards: list[float]) -> Batch:
    (group,) = batch.groups
    members = [
        member.model_copy(update={"reward": reward}) for member, reward in zip(group.members, rewards, strict=True)
    ]
    return batch.model_copy(update={"groups": [group.model_copy(update={"members": members})]})


def trainer_on(root: Path, model: Path, images: ImageStore, version: Path | None = None, **changes: Any) -> Trainer:
    trainer = Trainer(config_of(root, model, pointer=True, **changes), images)
    trainer.setup(str(version or model), 0, None)
    return trainer


def reference_loss(model: GroundingModel, batch: Batch, images: ImageStore) -> torch.Tensor:
    """In float64, of whole distributions: the mean over rows of their means over positions of -min(e^(old - stored), 2) A e^(new - old)."""
    total = torch.zeros((), dtype=torch.float64)
    for row in build_rows(batch, "grpo"):
        step, image = row.step, images.get(row.step.image_sha256[-1])
        new = [*token_logprobs(model, step, image), *(point_logprob(model, image, each) for each in step.pointers)]
        stored = [*step.logprobs_T, *(target.logprob for target in step.pointers)]
        terms = [
            -min(math.exp(float(each.detach()) - old), 2.0) * row.advantage * (each - each.detach()).exp()
            for each, old in zip(new, stored, strict=True)
        ]
        total = total + torch.stack(terms).mean() / len(batch.rows)
    return total


def token_logprobs(model: GroundingModel, step: StepRecord, image: Any) -> list[torch.Tensor]:
    features = model.processor.image_processor(images=[image], return_tensors="pt")
    ids = torch.tensor([[*step.prompt_ids_P, *step.token_ids_T]])
    logits = model.backbone(
        input_ids=ids,
        mm_token_type_ids=(ids == model.backbone.config.image_token_id).int(),
        pixel_values=features["pixel_values"].double(),
        image_grid_thw=features["image_grid_thw"],
    ).logits[0]
    allowed = torch.zeros(logits.shape[-1], dtype=torch.float64)
    allowed[list(suppressed_token_ids(model.backbone.config))] = -torch.inf
    logprobs = torch.log_softmax(logits / TEMPERATURE + allowed, dim=-1)
    begin = len(step.prompt_ids_P)
    return [logprobs[begin + at - 1, token] for at, token in enumerate(step.token_ids_T)]


def point_logprob(model: GroundingModel, image: Any, target: PointedTarget) -> torch.Tensor:
    """log a(cell) + log o(part | cell), with the head's own layers, one question in a pass of its own."""
    packed = pack(model, [image], [[Question.point(target.instruction)]])
    (found,) = run_forward(model, replace(packed, pixel_values=packed.pixel_values.double())).questions[0]
    head = model.head
    query = head.projection_dec(found.pointers_KD[0])
    scores = head.projection_enc(found.context_MD) @ query / math.sqrt(query.shape[0]) / TEMPERATURE
    assert head.offset is not None
    keys = head.offset.key(found.context_MD[target.cell]).reshape(4, -1)
    asked = head.offset.query(query)
    parts = keys @ asked / math.sqrt(asked.shape[0]) / TEMPERATURE
    return torch.log_softmax(scores, 0)[target.cell] + torch.log_softmax(parts, 0)[target.part]


@pytest.mark.parametrize("micro_batch_tokens", [1, 8192])
def test_loss_and_gradients_are_those_of_a_float64_reference(
    tmp_path: Path, model_dir: Path, loaded: PointingModel, images: ImageStore, micro_batch_tokens: int
) -> None:
    batch = batch_with_points(loaded, images)
    exact = copy.deepcopy(loaded.grounding)
    exact.backbone.double(), exact.head.double()
    expected = reference_loss(exact, batch, images)
    expected.backward()  # type: ignore[no-untyped-call]
    trainer = trainer_on(tmp_path, model_dir, images, micro_batch_tokens=micro_batch_tokens)
    sums = trainer._accumulate_gradients(build_rows(batch, "grpo", pointer=True), {})
    assert (sums["tokens"], sums["targets"]) == (18, 3)
    assert sums["loss"] / sums["tokens"] == pytest.approx(float(expected.detach()), rel=1e-4)
    wanted = dict(PointingModel(exact.backbone, exact.processor, exact.head, "").named_parameters())
    ours = trainer._policy.trained()
    assert ours.keys() == wanted.keys()
    largest = max(float(each.grad.abs().max()) for each in wanted.values() if each.grad is not None)
    for name, parameter in ours.items():
        if wanted[name].grad is not None:
            assert torch.allclose(parameter.grad.double(), wanted[name].grad, atol=1e-4 * largest, rtol=1e-3), name
    reached = {name for name in ours if name.startswith(HEAD_PREFIX) and bool((wanted[name].grad != 0).any())}
    assert {
        f"{HEAD_PREFIX}{part}.weight" for part in ("projection_enc.0", "projection_dec.0", "offset.key", "offset.query")
    } <= reached


def test_a_train_step_changes_the_head_and_publishes_it(
    tmp_path: Path, model_dir: Path, loaded: PointingModel, images: ImageStore
) -> None:
    own = [[pointed(loaded, images, seed, 0, 2)] for seed in (1, 2, 3)]
    trainer = trainer_on(tmp_path, model_dir, images, epochs=2, high_entropy_step_fraction=0.9)
    before = {name: each.detach().clone() for name, each in trainer._policy.trained().items()}
    done = trainer.step(batch_of_trajectories(own))
    assert done.metrics["targets"] == 2 * 2 * 3
    assert done.metrics["target_mismatch_k3"] == pytest.approx(0.0, abs=1e-5)
    assert done.metrics["target_entropy"] > 0
    trainer.save(tmp_path / "v1")
    published = load_grounding_model(tmp_path / "v1").head.state_dict()
    after = {name: each.detach() for name, each in trainer._policy.trained().items()}
    assert all(torch.equal(after[HEAD_PREFIX + name], value) for name, value in published.items())
    assert not torch.equal(before[f"{HEAD_PREFIX}offset.key.weight"], after[f"{HEAD_PREFIX}offset.key.weight"])


def test_stale_points_are_not_trained_on(loaded: PointingModel, images: ImageStore) -> None:
    batch = batch_of_trajectories([[pointed(loaded, images, 1, 0, 2)], [pointed(loaded, images, 2, 0, 1)]])
    stale = batch.rows[0].model_copy(update={"trainable": [(0, 5)]})
    batch = batch.model_copy(update={"rows": [stale, batch.rows[1]]})
    first, second = build_rows(batch, "grpo", pointer=True)
    assert (first.targets, first.trainable) == ((), ((0, 5),))
    assert (second.targets, second.trainable) == (batch.rows[1].step.to_value().pointers, ((0, 6),))
    tokens = [(row.targets, row.trainable) for row in build_rows(batch, "grpo")]
    assert tokens == [((), ((0, 5),))] * 2, "a policy without a head trains on the tokens"


def test_filters_rank_tokens_alone_and_keep_targets(loaded: PointingModel, images: ImageStore) -> None:
    rows = build_rows(batch_with_points(loaded, images), "grpo", pointer=True)
    entropies = {row.key: np.r_[np.linspace(0.0, 1.0, 5), np.full(len(row.targets), 9.0)] for row in rows}
    assert {mean_token_entropy(row, entropies[row.key]) for row in rows} == {0.5}
    used, unused = select_tokens(rows, entropies, 0.2)
    assert unused == []
    found = {(len(row.targets), row.trainable) for row in used}
    assert found == {(2, ((4, 5), (5, 7))), (0, ((4, 5),)), (1, ((4, 5), (5, 6)))}
    only_first = {key: each if key == rows[0].key else each * 0.1 for key, each in entropies.items()}
    used, unused = select_tokens(rows, only_first, 0.2)
    assert [row.trainable for row in used] == [((2, 5), (5, 7)), ((5, 6),)], "a target stays where no token does"
    assert [row.key for row in unused] == [rows[1].key]


def test_the_pass_of_the_head_counts_towards_the_size_of_a_micro_batch(
    loaded: PointingModel, images: ImageStore
) -> None:
    batch = batch_with_points(loaded, images)
    with_head, without = (build_segments(build_rows(batch, "grpo", pointer=pointer)) for pointer in (True, False))
    assert [segment.tokens for segment in with_head] == [segment.tokens for segment in without]
    assert all(segment.pass_tokens == segment.tokens for segment in without)
    for segment, row in [(each, row) for each in with_head for row in each.rows if row.targets]:
        asked = [[Question.point(target.instruction) for target in row.targets]]
        packed = pack(loaded.grounding, [images.get(row.step.image_sha256[-1])], asked)
        assert segment.pass_tokens - segment.tokens >= packed.input_ids_BT.shape[1] // 2
    limit = max(segment.pass_tokens for segment in with_head)
    assert len(plan_micro_batches(with_head, limit)) > len(plan_micro_batches(without, limit))


def test_a_point_outside_of_its_image_fails_the_batch(
    tmp_path: Path, model_dir: Path, loaded: PointingModel, images: ImageStore
) -> None:
    step = pointed(loaded, images, 1, 0, 1)
    wrong = replace(step, pointers=(replace(step.pointers[0], cell=4),))
    batch = batch_of_trajectories([[wrong], [pointed(loaded, images, 2, 0, 1)]])
    with pytest.raises(BatchFailed, match=r"step 0 of rollout roll_0 points at .* 4 visual tokens") as failed:
        trainer_on(tmp_path, model_dir, images).step(batch)
    assert [each.rollout_id for each in failed.value.culprits] == ["roll_0"]


def test_settings_that_no_head_is_trained_with_are_refused(tmp_path: Path, model_dir: Path) -> None:
    for changes in ({"lora": {"rank": 2}, "publish": "adapter"}, {"loss": {"kl_coefficient": 0.1}}):
        with pytest.raises(ValidationError, match=r"leave loss.kl_coefficient out|publish = 'model'"):
            config_of(tmp_path, model_dir, pointer=True, **changes)


def test_an_adapter_and_the_head_are_trained_and_a_version_is_gone_on_from(
    tmp_path: Path, model_dir: Path, images: ImageStore, loaded: PointingModel
) -> None:
    start, batch = load_file(model_dir / "model.safetensors"), batch_with_points(loaded, images)
    settings: dict[str, Any] = {"lora": {"rank": 2}, "optimizer": {"learning_rate": 1e-2}}
    trainer = trainer_on(tmp_path, model_dir, images, **settings)
    trained = trainer._policy.trained()
    assert {name.startswith(HEAD_PREFIX) or ".lora_" in name for name in trained} == {True}
    trainer.step(batch)
    version = tmp_path / "version"
    version.mkdir()
    trainer.save(version)
    written = load_file(version / "model.safetensors")
    changed = {name for name in written if not torch.equal(written[name], start[name])}
    assert any(name.startswith(HEAD_PREFIX) for name in changed)
    assert any(".q_proj." in name for name in changed)
    assert not any("visual" in name or "embed_tokens" in name or "lora" in name for name in changed)
    published, kept = load_grounding_model(version), trainer._policy.loaded
    assert isinstance(kept, PointingModel)
    packed = pack(published, [screen(1)], [[Question.point(ASKED[0])]])
    with torch.no_grad():
        merged, apart = (run_forward(each, packed).questions[0][0] for each in (published, kept.grounding))
    assert torch.allclose(merged.logits_KM, apart.logits_KM, atol=1e-4)
    again = trainer_on(tmp_path, model_dir, images, version=version, **settings)
    for name, parameter in again._policy.trained().items():
        assert torch.equal(parameter, trained[name]), name
    (tmp_path / "plain").mkdir()
    loaded.save(tmp_path / "plain")
    with pytest.raises(ConfigError, match="holds no adapter"):
        trainer_on(tmp_path, model_dir, images, version=tmp_path / "plain", **settings)


@pytest.mark.parametrize("changes", [{}, {"lora": {"rank": 4}}])
def test_the_policy_learns_where_to_point(
    tmp_path: Path, model_dir: Path, images: ImageStore, changes: dict[str, Any]
) -> None:
    """A toy: the text is always the same, and a point in the left half of the screen is rewarded."""
    trainer = trainer_on(
        tmp_path, model_dir, images, optimizer={"learning_rate": 1e-3}, loss={"aggregation": "token_mean"}, **changes
    )
    policy = trainer._policy.loaded
    assert isinstance(policy, PointingModel)
    plan = step_of(policy, images, seed=5)
    rewards = []
    for update in range(14):
        pointer, group = Pointer(policy.grounding), []
        for number in range(10):
            found = pointer.point(screen(5), ASKED[:1], temperature=1.0, seed=100 * update + number)
            group.append([replace(plan, pointers=tuple(found))])
        solved = [float(steps[0].pointers[0].point[0] < 32) for steps in group]
        rewards.append(sum(solved) / len(solved))
        batch = rewarded(batch_of_trajectories(group), solved)
        if 0 < sum(solved) < len(solved):
            trainer.step(batch)
    assert sum(rewards[:2]) / 2 < 0.75, rewards
    assert sum(rewards[-3:]) / 3 > 0.9, rewards
