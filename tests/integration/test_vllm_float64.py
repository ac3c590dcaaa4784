"""The engine's log-probs against a recomputation in float64 from what is stored: several pictures, several turns, temperatures and top-p.

One real worker per architecture, on tiny random checkpoints in the published layout. Angles of rotary positions stay float32, as the
model's code defines them; everything else of the reference is float64.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from published_checkpoints import KINDS, write_checkpoint

from dart_agent.data_client.image_store import ImageStore
from dart_agent.inference.checkpoint_files import read_checkpoint_info
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.settings import WorkerSettings
from dart_agent.inference.worker_process import WorkerProcess
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import Completion, PolicyRequest, SamplingParams
from dart_envs.types import Observation
from dart_train.model.policy_model import load_model, pixel_inputs

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

MAX_ERROR = 1e-4
IMAGES, STEPS, SCREEN_WH, MAX_TOKENS = 3, 5, (400, 256), 24
SAMPLING = [
    *({"temperature": temperature} for temperature in (0.7, 1.0, 1.3)),
    *({"temperature": temperature, "top_p": 0.9} for temperature in (0.7, 1.0)),
]


@dataclass
class ServedCheckpoint:
    """A worker, the same weights in float64, and where its pictures are stored."""

    path: Path
    client: WorkerClient
    images: ImageStore
    reference: Any


def in_float64(checkpoint: Path) -> Any:
    """The checkpoint with weights, norms and attention in float64; the library's norms would go through float32."""
    import torch

    loaded = load_model(checkpoint)
    loaded.model.eval().double()

    def norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        epsilon = getattr(self, "variance_epsilon", None) or self.eps
        return self.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + epsilon)

    for module in loaded.model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(norm, module)
    return loaded


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[pytest.param(kind, marks=pytest.mark.slow if kind == "qwen2_vl" else ()) for kind in KINDS],
)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[ServedCheckpoint]:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dart-f") as directory:
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
                yield ServedCheckpoint(checkpoint, client, ImageStore(root / "images"), in_float64(checkpoint))
        finally:
            await worker.stop()


async def play(
    served: ServedCheckpoint, seed: int, sampling: dict[str, Any]
) -> list[tuple[Completion, list[str], SamplingParams]]:
    """The turns of one episode on noise: what was sampled, and the hashes of the stored pictures of each prompt."""
    builder = PromptBuilder(preset(read_checkpoint_info(served.path).prompt, images=IMAGES))
    history, chance, turns = builder.new_history(), np.random.default_rng(seed), []
    for index in range(STEPS):
        screen = chance.integers(0, 256, (SCREEN_WH[1], SCREEN_WH[0], 3), dtype=np.uint8)
        prompt = builder.build(Observation(screen, "Click OK"), history)
        drawn = SamplingParams(max_tokens=MAX_TOKENS, seed=100 * seed + index, **sampling)
        completion = await served.client.complete(
            PolicyRequest(prompt.messages, prompt.images, drawn, f"r{seed}-{sampling}.{index}")
        )
        turns.append((completion, [served.images.put(image) for image in prompt.images], drawn))
        history.add(prompt.images[-1], completion.text)
    return turns


def recomputed(
    served: ServedCheckpoint, completion: Completion, hashes: list[str], sampling: SamplingParams
) -> np.ndarray[Any, Any]:
    """Log-prob of each sampled token in float64, from ids and stored pictures: logits over temperature, then top-p, renormalised."""
    import torch

    model = served.reference.model
    pixels, grid = pixel_inputs(served.reference.processor, [served.images.get(sha256) for sha256 in hashes])
    ids = torch.tensor([[*completion.prompt_ids_P, *completion.token_ids_T]])
    with torch.no_grad():
        logits = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=pixels.double(),
            image_grid_thw=grid,
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
        ).logits[0]
    assert logits.dtype == torch.float64
    logits_TV = logits[len(completion.prompt_ids_P) - 1 : -1] / sampling.temperature
    logits_TV[:, list(suppressed_token_ids(model.config))] = -torch.inf
    if sampling.top_p < 1:
        ascending_TV, order_TV = logits_TV.sort(dim=-1)
        cut_TV = ascending_TV.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        logits_TV = logits_TV.masked_fill(cut_TV.gather(-1, order_TV.argsort(-1)), -torch.inf)
    rows = range(len(completion.token_ids_T))
    return logits_TV.log_softmax(-1)[rows, list(completion.token_ids_T)].numpy()


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
async def test_log_probs_are_those_of_a_float64_recomputation(
    served: ServedCheckpoint, sampling: dict[str, Any]
) -> None:
    errors = []
    for turn in itertools.chain(*[await play(served, seed, sampling) for seed in range(3)]):
        expected = recomputed(served, *turn)
        errors.append(np.abs(expected - np.array(turn[0].logprobs_T)).max())
    print(f"{served.path.name} {sampling}: {len(errors)} turns, largest difference {max(errors):.1e}")
    assert len(errors) == 3 * STEPS
    assert max(errors) <= MAX_ERROR
