"""A real vLLM worker that serves a model with an action head: its points are those of the head with transformers in this process.

The models are random and made here, one per family that a worker takes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from dart_agent.grounding.acting.pointer import FoundTargets, Pointer
from dart_agent.grounding.acting.policy import GroundedPolicy
from dart_agent.grounding.acting.served_pointer import ServedPointer
from dart_agent.grounding.model import GroundingModel, load_grounding_model
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.settings import PublishedWeights, WorkerSettings
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.worker_process import WorkerProcess
from dart_agent.types import Completion, FinishReason, PolicyRequest, SamplingParams
from tests.unit.dart_agent.grounding_models import screen, small_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

MAX_ERROR = 1e-4
"""Largest difference of two log-probs of the same point that float32 arithmetic in another order explains."""
BLOCK_TOKENS = 32
QUESTIONS = ("click Save", "click the Apple field", "click the button named Save")


@dataclass
class ServedHead:
    """A worker, the pool of it, and the same weights with transformers."""

    root: Path
    model: GroundingModel
    client: WorkerClient
    pool: VllmPool

    @property
    def here(self) -> Pointer:
        return Pointer(self.model)

    @property
    def served(self) -> ServedPointer:
        return ServedPointer(self.pool)


def spread(model: GroundingModel, seed: int) -> None:
    """Move all weights, so that points are far from equally likely and parts of cells differ."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module, scale in ((model.backbone, 0.02), (model.head, 0.3)):
            for weight in module.parameters():
                weight += scale * torch.randn(weight.shape, generator=generator)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["qwen3_vl", pytest.param("qwen2_5_vl", marks=pytest.mark.slow)]
)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[ServedHead]:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dart-p") as directory:
        root = Path(directory)
        model = small_model(request.param, root, offset_parts=2, system="point well")
        spread(model, 1)
        model.save(root / "model")
        settings = WorkerSettings(
            model=str(root / "model"),
            dtype="float32",
            max_model_len=512,
            kv_cache_mib=32,
            kv_block_tokens=BLOCK_TOKENS,
        )
        worker = WorkerProcess("policy-0", settings, directory=root / "w", log_path=root / "policy-0.log")
        await worker.start()
        try:
            await worker.wait_until_ready()
            client = WorkerClient(worker.name, worker.directory)
            async with VllmPool([client]) as pool:
                yield ServedHead(root, load_grounding_model(root / "model"), client, pool)
        finally:
            await worker.stop()


def asked(request_id: str, image: Any, **sampling: Any) -> PolicyRequest:
    """A request of an episode that shows an image."""
    messages = ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Save"}]},)
    return PolicyRequest(messages, (image,), SamplingParams(**{"max_tokens": 4, "seed": 0, **sampling}), request_id)


def check_same(found: FoundTargets, wanted: FoundTargets) -> float:
    """The same points of the same version with the same log-probs; gives the largest difference of two log-probs."""
    assert found.version == wanted.version
    assert [(one.instruction, one.cell, one.part, one.point) for one in found.targets] == [
        (one.instruction, one.cell, one.part, one.point) for one in wanted.targets
    ]
    error = max(abs(one.logprob - other.logprob) for one, other in zip(found.targets, wanted.targets, strict=True))
    assert error <= MAX_ERROR
    return error


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_points_and_log_probs_are_those_of_the_head_with_transformers(
    served: ServedHead, temperature: float
) -> None:
    errors, places = [], set()
    for seed in range(5):
        request = asked(f"same{temperature}.{seed}", screen(160, 96, seed), temperature=temperature, seed=seed)
        wanted = await served.here.find(request, QUESTIONS)
        errors.append(check_same(await served.served.find(request, QUESTIONS), wanted))
        places |= {(point.cell, point.part) for point in wanted.targets}
    print(f"{served.model.backbone.config.model_type} {temperature}: largest difference {max(errors):.1e}")
    assert len(places) > 3


async def test_a_repeated_question_is_answered_the_same_from_the_prefix_cache(served: ServedHead) -> None:
    """Asked with a plan first, alone, again, and behind so many other images that the image is forgotten."""
    image = screen(288, 192, 50)
    digest = "5" * 64
    plan = replace(asked("cached.0", image), image_sha256=(digest,))
    await served.pool.complete(plan)
    wanted = await served.here.find(plan, QUESTIONS)
    for again in ("cached.1", "cached.2"):
        check_same(await served.served.find(replace(plan, request_id=again), QUESTIONS), wanted)
    before = await cached_tokens(served)
    check_same(await served.served.find(replace(plan, request_id="cached.3"), QUESTIONS), wanted)
    assert await cached_tokens(served) - before >= len(QUESTIONS) * 2 * BLOCK_TOKENS
    for number in range(17):
        await served.served.find(asked(f"others.{number}", screen(96, 64, 100 + number)), QUESTIONS[:1])
    check_same(await served.served.find(replace(plan, request_id="cached.4"), QUESTIONS), wanted)


async def cached_tokens(served: ServedHead) -> float:
    """Prompt tokens that were found in the prefix cache so far."""
    for line in (await served.client.metrics()).splitlines():
        if line.startswith("vllm:prefix_cache_hits_total"):
            return float(line.split()[-1])
    raise AssertionError("the worker does not count the hits of its prefix cache")


async def test_questions_in_one_batch_with_plans_are_told_apart(served: ServedHead) -> None:
    """The prompts have more tokens than one batch may have (2048), so that some are computed in two chunks."""
    requests = [
        asked(f"batch{number}.0", screen(320 + 32 * (number % 4), 320, number), seed=number) for number in range(12)
    ]
    plans = [served.pool.complete(replace(each, sampling=SamplingParams(max_tokens=40))) for each in requests]
    points = [served.served.find(each, QUESTIONS[: 1 + number % 3]) for number, each in enumerate(requests)]
    answers = await asyncio.gather(*plans, *points)
    for number, each in enumerate(requests):
        check_same(answers[len(requests) + number], await served.here.find(each, QUESTIONS[: 1 + number % 3]))


class DescribingPlanner:
    """A fake planner that describes two targets."""

    async def complete(self, request: PolicyRequest) -> Completion:
        text = "Action: drag(start_box='the Apple field', end_box='the button named Save')"
        return Completion(text, (1,), (2,), (-0.5,), (), FinishReason.STOP)


async def test_a_policy_acts_where_the_worker_points(served: ServedHead) -> None:
    request = asked("acts.0", screen(160, 96, 7), seed=3)
    found = await GroundedPolicy(DescribingPlanner(), served.served).complete(request)
    wanted = await GroundedPolicy(DescribingPlanner(), served.here).complete(request)
    assert found.action_text == wanted.action_text
    check_same(FoundTargets(0, found.pointers), FoundTargets(0, wanted.pointers))


async def test_a_running_worker_takes_over_a_new_head(served: ServedHead) -> None:
    """Last, for it changes the weights: an image that the worker has seen is asked about with the next version."""
    request = asked("update.0", screen(160, 96, 8), temperature=0.0)
    before = await served.served.find(request, QUESTIONS)
    newer = load_grounding_model(served.root / "model")
    spread(newer, 2)
    newer.save(served.root / "v1")
    published = PublishedWeights(1, served.root / "v1", weights_digest(served.root / "v1"))
    await served.client.load(published)
    found = await served.served.find(replace(request, request_id="update.1"), QUESTIONS)
    check_same(found, await Pointer(newer, 1).find(request, QUESTIONS))
    logprobs = [[point.logprob for point in each.targets] for each in (found, before)]
    assert np.abs(np.subtract(*logprobs)).max() > 0.01
    # And the head alone, on the same backbone: what was computed from the image is not kept either.
    import torch

    with torch.no_grad():
        for weight in newer.head.parameters():
            weight *= 1.1
    newer.save(served.root / "v2")
    await served.client.load(PublishedWeights(2, served.root / "v2", weights_digest(served.root / "v2")))
    check_same(
        await served.served.find(replace(request, request_id="update.2"), QUESTIONS),
        await Pointer(newer, 2).find(request, QUESTIONS),
    )
