"""A real vLLM worker with weights of 8 bits: what it samples, and new weights in float32 that it quantises while it loads them.

The model is random and made here. Log-probs are compared with a transformers forward in full precision, and with those of a worker that was
started with the new weights.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from benchmarks.rollouts.transformers_reference import transformers_logprobs
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.settings import PublishedWeights, QuantizationKind, WorkerSettings
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.worker_process import WorkerProcess
from dart_agent.types import Completion, PolicyRequest, SamplingParams
from tests.contract.policy_contract import make_request

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

ARITHMETIC = 1e-4
"""Largest difference of two log-probs of the same token that float32 arithmetic in another order explains."""
QUANTISED = 0.1
"""Largest mean difference that weights and inputs of 8 bits explain."""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dart-t") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def models(place: Path) -> tuple[Path, Path]:
    """A model, and one whose tensors are all others."""
    import torch
    from safetensors.torch import load_file, save_file

    from dart_train.model.init_model import init_model

    torch.set_num_threads(1)
    start, moved = init_model("tiny", place / "model", seed=3), place / "v1"
    shutil.copytree(start, moved)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_file(start / "model.safetensors").items()
    }
    save_file(tensors, moved / "model.safetensors")
    return start, moved


def reference(path: Path) -> Any:
    from dart_train.model.policy_model import load_model

    loaded = load_model(path)
    loaded.model.eval()
    return loaded


@asynccontextmanager
async def serving(model: Path, kind: QuantizationKind | None, directory: Path) -> AsyncIterator[WorkerClient]:
    settings = WorkerSettings(
        model=str(model), dtype="bfloat16", quantization=kind, max_model_len=512, threads=1, kv_cache_mib=32
    )
    worker = WorkerProcess("policy-0", settings, directory=directory, log_path=directory.with_suffix(".log"))
    await worker.start()
    try:
        await worker.wait_until_ready()
        async with WorkerClient(worker.name, worker.directory) as client:
            yield client
    finally:
        await worker.stop()


def requests() -> list[PolicyRequest]:
    image = np.random.default_rng(0).integers(0, 256, (160, 256, 3), dtype=np.uint8)
    return [
        replace(make_request(f"q{seed}"), images=(image,), sampling=SamplingParams(max_tokens=12, seed=seed))
        for seed in range(3)
    ]


async def sample(client: WorkerClient) -> list[Completion]:
    return [await client.complete(request) for request in requests()]


def errors(loaded: Any, completions: list[Completion]) -> np.ndarray[Any, Any]:
    """Of all sampled tokens."""
    found = [
        np.abs(transformers_logprobs(loaded, request, completion) - np.array(completion.logprobs_T))
        for request, completion in zip(requests(), completions, strict=True)
    ]
    return np.concatenate(found)


@pytest.mark.parametrize("kind", get_args(QuantizationKind))
async def test_published_weights_are_quantised_as_those_of_a_start_are(
    kind: QuantizationKind, models: tuple[Path, Path], place: Path
) -> None:
    start, moved = models
    before, after = reference(start), reference(moved)
    async with serving(start, kind, place / f"{kind}-0") as client:
        first = errors(before, await sample(client))
        await client.load(PublishedWeights(1, moved, weights_digest(moved)))
        updated = await sample(client)
    async with serving(moved, kind, place / f"{kind}-1") as client:
        started = await sample(client)
    async with serving(moved, None, place / f"{kind}-2") as client:
        plain = await sample(client)
        await client.load(PublishedWeights(1, moved, weights_digest(moved)))
        reloaded = await sample(client)
    log = (place / f"{kind}-0.log").read_text(encoding="utf-8")
    assert "Quantizing 12 layers" in log, (
        "four fused matrices of each of three text layers, and none of the vision tower"
    )
    new, stale = errors(after, updated), errors(before, updated)
    print(
        f"{kind}: log-probs differ by {first.mean():.1e} on average ({first.max():.1e} at most), after the update by {new.mean():.1e} "
        f"(from the old weights by {stale.mean():.1e}); without quantisation by {errors(after, plain).mean():.1e}"
    )
    assert max(first.mean(), new.mean()) < QUANTISED
    assert stale.mean() > 3 * new.mean(), "the worker still serves the old weights"
    for one, other in [*zip(updated, started, strict=True), *zip(reloaded, plain, strict=True)]:
        assert one.token_ids_T == other.token_ids_T
        assert np.abs(np.array(one.logprobs_T) - np.array(other.logprobs_T)).max() < ARITHMETIC
    assert all(one.logprobs_T != other.logprobs_T for one, other in zip(started, plain, strict=True)), (
        "nothing is quantised"
    )
