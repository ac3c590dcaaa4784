"""A real vLLM worker on checkpoints laid out as those of the Qwen-VL families, a real trainer beside it, and new weights between the two.

One worker per architecture. What it samples over prompts with three pictures is scored again by the trainer's own batch maker and forward
pass, before and after one optimiser round whose weights the worker has taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from published_checkpoints import KINDS, write_checkpoint

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.payloads import StepPayload
from dart_agent.data_client.wire import Batch, BatchGroup, BatchMember, BatchRow
from dart_agent.inference.checkpoint_files import read_checkpoint_info
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.settings import PublishedWeights, WorkerSettings
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.worker_process import WorkerProcess
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.types import PolicyRequest, SamplingParams, StepRecord
from dart_envs.action_formats import ParsedAnswer, ParseError
from dart_envs.action_formats.uitars import parse
from dart_envs.types import Observation, RgbImage
from dart_train.model.policy_model import load_model
from dart_train.model.policy_scorer import PolicyScorer
from dart_train.model.weights import PolicyVersionStore
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.segments import build_segments
from dart_train.trainer.batches.tensors import BatchMaker
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.trainer import Trainer

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

MAX_ERROR = 1e-4
"""Largest difference of two log-probs of the same token that float32 arithmetic in another order explains."""
IMAGES, STEPS, SCREEN_WH, TEMPERATURE, MAX_TOKENS = 3, 4, (400, 256), 0.7, 24


@dataclass
class Served:
    """A checkpoint, a worker that serves it, and where its trainer keeps things."""

    checkpoint: Path
    root: Path
    worker: WorkerProcess
    client: WorkerClient
    images: ImageStore


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dart-t") as directory:
        root = Path(directory)
        checkpoint = write_checkpoint(request.param, root / request.param)
        settings = WorkerSettings(
            model=str(checkpoint), dtype="float32", max_model_len=2048, max_images=IMAGES, kv_cache_mib=32
        )
        worker = WorkerProcess("policy-0", settings, directory=root / "w", log_path=root / "policy-0.log")
        await worker.start()
        try:
            await worker.wait_until_ready()
            async with WorkerClient(worker.name, worker.directory) as client:
                yield Served(checkpoint, root, worker, client, ImageStore(root / "images"))
        finally:
            await worker.stop()


def seen(number: int) -> RgbImage:
    return np.random.default_rng(number).integers(0, 256, (SCREEN_WH[1], SCREEN_WH[0], 3), dtype=np.uint8)


async def play(served: Served, episode: int) -> list[StepRecord]:
    """Steps of one episode on noise, in the checkpoint's own prompts; every answer is read as an action or refused, never an error."""
    builder = PromptBuilder(preset(read_checkpoint_info(served.checkpoint).prompt, images=IMAGES))
    history = builder.new_history()
    records = []
    for index in range(STEPS):
        prompt = builder.build(Observation(seen(100 * episode + index), "Click OK"), history)
        sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=100 * episode + index)
        completion = await served.client.complete(
            PolicyRequest(prompt.messages, prompt.images, sampling, f"r{episode}.{index}")
        )
        assert isinstance(parse(completion.text, prompt.points), ParsedAnswer | ParseError)
        records.append(
            StepRecord(
                index=index,
                prompt_ids_P=completion.prompt_ids_P,
                token_ids_T=completion.token_ids_T,
                logprobs_T=completion.logprobs_T,
                version_spans=completion.version_spans,
                image_sha256=tuple(served.images.put(image) for image in prompt.images),
                image_hw=tuple(image.shape[:2] for image in prompt.images),
                text=completion.text,
                action=None,
                parse_error=None,
                sampling=sampling,
                finish_reason=completion.finish_reason,
                model_s=0.0,
                env_s=0.0,
            )
        )
        history.add(prompt.images[-1], completion.text)
    return records


def largest_error(served: Served, model: Path, records: list[StepRecord]) -> float:
    """Of the worker's log-probs against the trainer's, over all sampled tokens of the rows in one batch."""
    import torch

    loaded = load_model(model)
    loaded.model.eval()
    rows = [TrainRow("r", "g", record, (), 0.0) for record in records]
    # Raises unless the worker expanded the same place holders.
    batch = BatchMaker(loaded.model, loaded.processor, served.images).make(build_segments(rows))
    with torch.no_grad():
        scored_M, _ = PolicyScorer(loaded.model)(batch.tokens)
    return float((scored_M - batch.rollout_logprobs_BR[batch.response_mask_BR]).abs().max())


def batch_of(episodes: list[list[StepRecord]]) -> Batch:
    """One group; the first episode succeeds."""
    rows = [
        BatchRow(
            group_id="g",
            rollout_id=f"r{number}",
            step=StepPayload.from_value(record),
            trainable=[(0, len(record.token_ids_T))],
        )
        for number, records in enumerate(episodes)
        for record in records
    ]
    members = [
        BatchMember(rollout_id=f"r{number}", reward=float(number == 0), steps=STEPS, source="fresh")
        for number in range(len(episodes))
    ]
    group = BatchGroup(group_id="g", task_id="s/press/0", family="press", members=members)
    return Batch(
        batch_id="b",
        trainer_version=0,
        groups=[group],
        rows=rows,
        staleness_mean=0.0,
        staleness_max=0,
        excluded_steps={},
    )


async def test_worker_and_trainer_agree_before_and_after_new_weights(served: Served) -> None:
    episodes = [await play(served, number) for number in range(2)]
    images_seen = [len(record.image_sha256) for record in episodes[0]]
    assert images_seen == [1, 2, IMAGES, IMAGES]
    before = largest_error(served, served.checkpoint, [record for records in episodes for record in records])
    trainer = Trainer(
        TrainerConfig(
            socket=served.root / "data.sock",
            images=served.root / "images",
            weights=served.root / "weights",
            checkpoints=served.root / "checkpoints",
            metrics=served.root / "metrics.jsonl",
            start_model=str(served.checkpoint),
            device="cpu",
            optimizer={"learning_rate": 1e-2},
        ),
        served.images,
    )
    trainer.setup(str(served.checkpoint), 0, None)
    done = trainer.step(batch_of(episodes))
    assert done.metrics["grad_norm"] > 0
    path = PolicyVersionStore(served.root / "weights", keep=2).publish(1, trainer.save)
    times = await served.client.load(PublishedWeights(1, path, weights_digest(path)))
    (late,) = [await play(served, 7)]
    assert {span.version for record in late for span in record.version_spans} == {1}
    after = largest_error(served, path, late)
    stale = largest_error(served, served.checkpoint, late)
    print(
        f"{served.checkpoint.name}: log-probs differ by at most {before:.1e}, after the update by {after:.1e} "
        f"(from the old weights by {stale:.1e}); paused {1000 * (times.pause_s + times.load_s):.0f} ms"
    )
    assert before < MAX_ERROR
    assert after < MAX_ERROR
    assert stale > 100 * MAX_ERROR, "the worker still serves the old weights"
