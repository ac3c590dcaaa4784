"""A tiny real model, rows sampled from it, and a trainer on them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.payloads import StepPayload
from dart_agent.data_client.wire import Batch, BatchGroup, BatchMember, BatchRow
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import FinishReason, SamplingParams, StepRecord, VersionSpan
from dart_envs.hashing import image_sha256
from dart_envs.types import RgbImage
from dart_train.model.init_model import init_model
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs
from dart_train.model.policy_scorer import PolicyScorer
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.segments import Segment
from dart_train.trainer.batches.tensors import BatchMaker, ImageTokens
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.trainer import Trainer, TrainStep

RESPONSE_TOKENS = 5


@cache
def tiny_model(root: Path) -> tuple[Path, LoadedModel]:
    """Directory and loaded form of a small random model."""
    path = init_model("tiny", root / "model", seed=1)
    return path, load_model(path)


def screen(seed: int, height: int = 64, width: int = 64) -> RgbImage:
    return np.random.default_rng(seed).integers(180, 256, (height, width, 3), dtype=np.uint8)


def step_of(
    loaded: LoadedModel, images: ImageStore, seed: int, index: int = 0, version: int = 0, temperature: float = 1.0
) -> StepRecord:
    """A step with one image whose log-probs are those of the model itself."""
    image = screen(seed)
    sha256 = images.put(image)
    tokens = ImageTokens.from_model(loaded.model, loaded.processor)
    generator = np.random.default_rng(seed)
    words = generator.integers(300, 900, 8 + seed % 3).tolist()
    prompt = [words[0], *[tokens.token_id] * 4, *words[1:]]
    record = StepRecord(
        index=index,
        prompt_ids_P=tuple(prompt),
        token_ids_T=tuple(generator.integers(300, 900, RESPONSE_TOKENS).tolist()),
        logprobs_T=(0.0,) * RESPONSE_TOKENS,
        version_spans=(VersionSpan(version, 0, RESPONSE_TOKENS),),
        image_sha256=(sha256,),
        image_hw=((64, 64),),
        text="fake",
        action=None,
        parse_error=None,
        sampling=SamplingParams(temperature=temperature),
        finish_reason=FinishReason.STOP,
        model_s=0.0,
        env_s=0.0,
    )
    assert image_sha256(image) == sha256
    row = TrainRow("r", "g", record, ((0, RESPONSE_TOKENS),), 0.0)
    return replace(record, logprobs_T=tuple(own_logprobs(loaded, images, row)))


def own_logprobs(loaded: LoadedModel, images: ImageStore, row: TrainRow) -> list[float]:
    """Log-probs of a row's tokens under the model itself, by a pass of its own."""
    batch = BatchMaker(loaded.model, loaded.processor, images).make([Segment((row,))])
    with torch.no_grad():
        logprobs_M, _ = PolicyScorer(loaded.model)(batch.tokens)
    found: list[float] = logprobs_M.tolist()
    return found


def trajectory_of(
    loaded: LoadedModel, images: ImageStore, seed: int, steps: int, breaks: tuple[int, ...] = ()
) -> list[StepRecord]:
    """Steps with a new image each, whose prompts continue each other but for those in `breaks`; the log-probs are not the model's."""
    tokens = ImageTokens.from_model(loaded.model, loaded.processor)
    generator = np.random.default_rng(seed)
    words = range(10, min(tokens.vocabulary, 900))
    plain = [word for word in words if word not in suppressed_token_ids(loaded.model.config)]
    prompt: list[int] = generator.choice(plain, 3).tolist()
    shown: list[RgbImage] = []
    made: list[StepRecord] = []
    for index in range(steps):
        if index in breaks:
            prompt, shown = generator.choice(plain, 4).tolist(), []
        shown.append(screen(1000 * seed + index, 64, 64 + 64 * (index % 2)))
        _, grid = pixel_inputs(loaded.processor, shown[-1:])
        cells = int(grid.prod()) // tokens.merge_size**2
        prompt = prompt + [tokens.token_id] * cells + generator.choice(plain, 2 + index % 3).tolist()
        answer = generator.choice(plain, 3 + index % 4).tolist()
        made.append(
            StepRecord(
                index=index,
                prompt_ids_P=tuple(prompt),
                token_ids_T=tuple(answer),
                logprobs_T=tuple((-generator.random(len(answer)) * 9).tolist()),
                version_spans=(VersionSpan(0, 0, len(answer)),),
                image_sha256=tuple(images.put(image) for image in shown),
                image_hw=tuple(image.shape[:2] for image in shown),
                text="fake",
                action=None,
                parse_error=None,
                sampling=SamplingParams(temperature=0.5 + seed % 3 / 2),
                finish_reason=FinishReason.STOP,
                model_s=0.0,
                env_s=0.0,
            )
        )
        prompt = prompt + answer
    return made


def batch_of(
    loaded: LoadedModel,
    images: ImageStore,
    groups: int = 2,
    members: int = 3,
    steps: int = 2,
    batch_id: str = "batch_1",
) -> Batch:
    """Groups in which the first member succeeds."""
    made, rows = [], []
    for group in range(groups):
        group_id = f"grp_{group}"
        ids = [f"roll_{group}_{member}" for member in range(members)]
        for member, rollout_id in enumerate(ids):
            for index in range(steps):
                step = step_of(loaded, images, seed=100 * group + 10 * member + index, index=index)
                rows.append(
                    BatchRow(
                        group_id=group_id,
                        rollout_id=rollout_id,
                        step=StepPayload.from_value(step),
                        trainable=[(0, RESPONSE_TOKENS)],
                    )
                )
        made.append(
            BatchGroup(
                group_id=group_id,
                task_id=f"s/tick/{group}",
                family="tick",
                members=[
                    BatchMember(rollout_id=rollout_id, reward=float(rollout_id == ids[0]), steps=steps, source="fresh")
                    for rollout_id in ids
                ],
            )
        )
    return Batch(
        batch_id=batch_id,
        trainer_version=0,
        groups=made,
        rows=rows,
        staleness_mean=0.0,
        staleness_max=0,
        excluded_steps={},
    )


def batch_of_trajectories(trajectories: list[list[StepRecord]], batch_id: str = "batch_1") -> Batch:
    """One group of whole trajectories, of which the first succeeds."""
    members = [
        BatchMember(rollout_id=f"roll_{index}", reward=float(index == 0), steps=len(steps), source="fresh")
        for index, steps in enumerate(trajectories)
    ]
    rows = [
        BatchRow(
            group_id="grp",
            rollout_id=member.rollout_id,
            step=StepPayload.from_value(step),
            trainable=[(0, len(step.token_ids_T) + len(step.pointers))],
        )
        for member, steps in zip(members, trajectories, strict=True)
        for step in steps
    ]
    group = BatchGroup(group_id="grp", task_id="s/tick/0", family="tick", members=members)
    return Batch(
        batch_id=batch_id, trainer_version=0, groups=[group], rows=rows, staleness_mean=0.0, staleness_max=0,
        excluded_steps={},
    )  # fmt: skip


def batch_of_members(rewards: list[float], lengths: list[int], tokens: int = 1) -> Batch:
    """One group of members with short steps, for what needs no model."""
    step = StepPayload.from_value(
        StepRecord(
            index=0,
            prompt_ids_P=(1,),
            token_ids_T=(2,) * tokens,
            logprobs_T=(-1.0,) * tokens,
            version_spans=(VersionSpan(0, 0, tokens),),
            image_sha256=(),
            image_hw=(),
            text="fake",
            action=None,
            parse_error=None,
            sampling=SamplingParams(),
            finish_reason=FinishReason.STOP,
            model_s=0.0,
            env_s=0.0,
        )
    )
    members = [
        BatchMember(rollout_id=f"roll_{index}", reward=reward, steps=length, source="fresh")
        for index, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
    ]
    rows = [
        BatchRow(
            group_id="grp",
            rollout_id=member.rollout_id,
            step=step.model_copy(update={"index": index}),
            trainable=[(0, tokens)],
        )
        for member in members
        for index in range(member.steps)
    ]
    group = BatchGroup(group_id="grp", task_id="s/tick/0", family="tick", members=members)
    return Batch(
        batch_id="batch_1", trainer_version=0, groups=[group], rows=rows, staleness_mean=0.0, staleness_max=0,
        excluded_steps={},
    )  # fmt: skip


def config_of(root: Path, model: Path, **changes: Any) -> TrainerConfig:
    paths: dict[str, Any] = {
        "socket": root / "data.sock",
        "images": root / "images",
        "weights": root / "weights",
        "checkpoints": root / "checkpoints",
        "metrics": root / "metrics.jsonl",
        "start_model": str(model),
        "device": "cpu",
    }
    return TrainerConfig.model_validate(paths | changes)


def trainer_on(root: Path, model_dir: Path, images: ImageStore, **changes: Any) -> Trainer:
    trainer = Trainer(config_of(root, model_dir, **changes), images)
    trainer.setup(str(model_dir), 0, None)
    return trainer


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    tensors = trainer.state(TrainStep(0, {}, ()), "b", 0.0).tensors
    return {name.removeprefix("model."): value.clone() for name, value in tensors.items() if name.startswith("model.")}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)
