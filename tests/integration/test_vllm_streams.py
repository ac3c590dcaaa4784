"""Multi-turn episodes on one real vLLM worker: exact prefixes, images by their hash, and prompts that are too long.

The model is random and made here, so that what it samples is hardly ever what its tokeniser would make of the text.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from dart_agent.data_client.token_stream import slice_steps
from dart_agent.errors import ContextExceededError, RequestRejected
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.settings import WorkerSettings
from dart_agent.inference.supervisor import Supervisor, local_workers
from dart_agent.prompts.builder import PromptBuilder, PromptSpec
from dart_agent.prompts.history import HistorySettings
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.types import Completion, PolicyRequest, Purpose, SamplingParams, StepRecord, StopReason, WorkItem
from dart_envs.types import Observation
from tests.unit.dart_agent.fakes import ScriptedEnv, task

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]
CONTEXT = 1024
SCREEN = (128, 96)
MAX_ERROR = 1e-4
TURNS = 10


class NoisyEnv(ScriptedEnv):
    """Each screen is noise of its own; no action does anything."""

    def _observe(self) -> Observation:
        noise = np.random.default_rng(len(self.actions)).integers(0, 256, (SCREEN[1], SCREEN[0], 3), dtype=np.uint8)
        return Observation(noise, "Click OK")


@dataclass
class Recorded:
    """A policy that keeps what went in and out of another."""

    client: WorkerClient
    calls: list[tuple[PolicyRequest, Completion]]

    async def complete(self, request: PolicyRequest) -> Completion:
        completion = await self.client.complete(request)
        self.calls.append((request, completion))
        return completion


@dataclass
class Worker:
    """The worker's client, and its model in transformers."""

    client: WorkerClient
    reference: Any


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker() -> AsyncIterator[Worker]:
    pytest.importorskip("vllm")
    from dart_train.model.init_model import init_model
    from dart_train.model.policy_model import load_model

    with tempfile.TemporaryDirectory(prefix="dart-stream-") as folder:
        model = Path(folder) / "m"
        init_model("tiny", model, seed=0)
        settings = WorkerSettings(model=str(model), dtype="float32", max_model_len=CONTEXT, max_images=40)
        (process,) = local_workers([settings], directory=Path(folder) / "w", log_dir=Path(folder))
        async with Supervisor([process]), WorkerClient("policy-0", process.directory) as client:
            loaded = load_model(model)
            loaded.model.eval()
            yield Worker(client, loaded)


def builder(policy: str = "full", keep: int = 5) -> PromptBuilder:
    history = HistorySettings.model_validate({"policy": policy, "keep": keep})
    return PromptBuilder(
        PromptSpec("uitars", images=1, past_actions=None, multiple=32, max_pixels=128 * 96, history=history)
    )


async def play(
    worker: Worker, prompts: PromptBuilder, turns: int = TURNS
) -> tuple[list[StepRecord], Recorded, StopReason]:
    policy = Recorded(worker.client, [])
    sampling = SamplingParams(temperature=1.0, max_tokens=24)
    item = WorkItem(f"roll_{id(prompts)}", "grp", "toy/click/0000", Purpose.TRAIN, sampling, turns, "train")
    episode = await run_episode(NoisyEnv(), policy, task(turns), item, prompts)
    return list(episode.trajectory.steps_S), policy, episode.trajectory.stop


def reference_logprobs(worker: Worker, request: PolicyRequest, completion: Completion) -> np.ndarray[Any, Any]:
    """Log-prob of every sampled token under a float64 forward of the whole stream."""
    import torch

    loaded = worker.reference
    model = loaded.model.double()
    features = loaded.processor.image_processor(images=list(request.images), return_tensors="pt")
    features = {key: value.double() if value.is_floating_point() else value for key, value in features.items()}
    ids = torch.tensor([[*completion.prompt_ids_P, *completion.token_ids_T]])
    with torch.no_grad():
        logits = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
            **features,
        ).logits[0]
    logits[:, list(suppressed_token_ids(model.config))] = -1e4
    logprobs = torch.log_softmax(logits[len(completion.prompt_ids_P) - 1 : -1] / request.sampling.temperature, -1)
    return logprobs[range(len(completion.token_ids_T)), list(completion.token_ids_T)].numpy()


async def test_ten_turns_are_one_stream_of_what_was_sampled(worker: Worker) -> None:
    steps, policy, stop = await play(worker, builder())
    assert (len(steps), stop) == (TURNS, StopReason.MAX_STEPS)
    assert {cut.segment for cut in slice_steps(steps)} == {0}
    tokenizer = worker.reference.tokenizer
    assert any(
        tokenizer.encode(step.text, add_special_tokens=False) != list(step.token_ids_T[: len(step.token_ids_T) - 1])
        for step in steps
    ), "if the texts gave the same ids, this test would prove nothing"
    for step, (request, completion) in zip(steps, policy.calls, strict=True):
        assert step.prompt_ids_P == completion.prompt_ids_P
        assert request.prefix_ids_P == step.prompt_ids_P[: len(request.prefix_ids_P)]
        assert bool(request.prefix_ids_P) == (step.index > 0)


async def test_log_probs_of_a_long_stream_are_those_of_a_float64_forward(worker: Worker) -> None:
    _, policy, _ = await play(worker, builder())
    errors = [
        float(np.abs(reference_logprobs(worker, request, completion) - np.array(completion.logprobs_T)).max())
        for request, completion in policy.calls
    ]
    assert max(errors) <= MAX_ERROR


async def test_dropped_screens_begin_segments(worker: Worker) -> None:
    steps, policy, _ = await play(worker, builder("screens", keep=3), turns=6)
    assert [cut.segment for cut in slice_steps(steps)] == [0, 0, 0, 3, 4, 5]
    assert [len(request.images) for request, _ in policy.calls] == [1, 2, 3, 3, 3, 3]


async def test_a_prompt_that_grows_out_of_the_context_is_counted_exactly(worker: Worker) -> None:
    steps, policy, stop = await play(worker, builder(), turns=60)
    assert stop is StopReason.CONTEXT
    last = steps[-1]
    assert len(last.prompt_ids_P) + 24 <= CONTEXT
    growth = len(last.prompt_ids_P) - len(steps[-2].prompt_ids_P) - len(steps[-2].token_ids_T)
    following = len(last.prompt_ids_P) + len(last.token_ids_T) + growth
    assert following + 24 > CONTEXT
    request, _ = policy.calls[-1]
    room = CONTEXT - len(last.prompt_ids_P)
    fits = PolicyRequest(
        request.messages, request.images, SamplingParams(max_tokens=room), "fits", prefix_ids_P=request.prefix_ids_P,
        prefix_messages=request.prefix_messages,
    )  # fmt: skip
    await worker.client.complete(fits)
    with pytest.raises(ContextExceededError) as found:
        await worker.client.complete(
            PolicyRequest(
                request.messages, request.images, SamplingParams(max_tokens=room + 1), "long",
                prefix_ids_P=request.prefix_ids_P, prefix_messages=request.prefix_messages,
            )
        )  # fmt: skip
    error = found.value
    assert (error.prompt_tokens, error.max_tokens, error.context) == (len(last.prompt_ids_P), room + 1, CONTEXT)


async def test_other_images_than_those_of_the_prefix_are_refused(worker: Worker) -> None:
    _, policy, _ = await play(worker, builder(), turns=3)
    request, _ = policy.calls[-1]
    smaller = tuple(image[:64, :64] for image in request.images)
    with pytest.raises(RequestRejected):
        await worker.client.complete(
            PolicyRequest(
                request.messages, smaller, request.sampling, "other",
                prefix_ids_P=request.prefix_ids_P, prefix_messages=request.prefix_messages,
            )
        )  # fmt: skip
