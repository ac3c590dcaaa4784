"""Weight updates and prefix caches of real vLLM workers on CPUs.

Role: `measure` starts two workers of the tiny model and measures on them, one after the other: `prefix`, how much of the prompts of a
ten-turn episode is in the cache (`prefix_hits`); `update`, what new weights on one worker cost the other. Rule: the updater of the product
brings a worker to a version; tokens are those that the other engine counted from the moment the version is published to the end of the
swap, against equally long windows before and after, in the same run; answers are compared with a transformers forward of the version that
is said to have written each token. Non-goals: pass or fail; GPUs.

    requests_lost                           got no answer
    requests_repeated                       attempts that a worker began to sample after the first one of their request
    requests_answered_twice                 answers after the first one of their request
    attempts_refused_by_draining_workers    sampled nothing, and went to the other worker
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rollouts.prefix_hits import TURNS, measure_hits
from benchmarks.rollouts.request_sends import CountedClient, SendLog
from benchmarks.rollouts.transformers_reference import transformers_logprobs
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.pool import PoolMember, VllmPool
from dart_agent.inference.settings import PublishedWeights, WorkerSettings
from dart_agent.inference.supervisor import Supervisor, local_workers
from dart_agent.inference.weight_updater import roll_out
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.types import Completion, PolicyRequest, SamplingParams

UPDATES = 15
STREAMS_PER_WORKER = 2
TOKENS = 48
SETTLE_S = 0.5
WINDOW_S = 0.2
COUNTER = "vllm:generation_tokens_total"


@dataclass
class Traffic:
    """Answers, and requests that got none."""

    done: list[tuple[PolicyRequest, Completion]] = field(default_factory=list)
    lost: int = 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run both parts.

    Args:
        args: `only`: comma-separated names of parts; left out or empty: both.

    Returns:
        Figures by part.
    """
    only = set((getattr(args, "only", "") or "update,prefix").split(","))
    return asyncio.run(_measure(only))


async def _measure(only: set[str]) -> dict[str, Any]:
    import torch

    from dart_train.model.init_model import init_model

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dart-b") as directory:
        root = Path(directory)
        model = init_model("tiny", root / "model", seed=3)
        settings = WorkerSettings(
            model=str(model), dtype="float32", max_model_len=2048, max_images=TURNS, threads=1, kv_cache_mib=128
        )
        workers = local_workers([settings] * 2, directory=root / "w", log_dir=root / "logs")
        sends = SendLog()
        clients = [CountedClient(worker.name, worker.directory, sends) for worker in workers]
        # The updater follows a pool, so each worker is one of its own, too, beside the pool that requests are sent to.
        alone = [VllmPool([WorkerClient(worker.name, worker.directory)]) for worker in workers]
        figures: dict[str, Any] = {}
        async with Supervisor(workers), VllmPool(clients) as pool, contextlib.AsyncExitStack() as stack:
            for single in alone:
                await stack.enter_async_context(single)
            for one in (pool, *alone):
                await _wait_until_ready(one, len(one.members))
            if "prefix" in only:
                figures["prefix"] = await measure_hits(pool)
            if "update" in only:
                figures["update"] = await _update(pool, alone, sends, model, root)
        return figures


async def _wait_until_ready(pool: VllmPool, workers: int) -> None:
    for _ in range(600):
        if len(pool.ready) == workers:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("the workers did not come up within a minute")


def _image(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (160, 256, 3), dtype=np.uint8)


def _request(request_id: str, messages: list[dict[str, Any]], seeds: list[int], **sampling: Any) -> PolicyRequest:
    params = replace(SamplingParams(max_tokens=TOKENS), **sampling)
    return PolicyRequest(tuple(messages), tuple(_image(seed) for seed in seeds), params, request_id)


async def _update(pool: VllmPool, alone: list[VllmPool], sends: SendLog, model: Path, root: Path) -> dict[str, Any]:
    traffic, stopping = Traffic(), asyncio.Event()
    streams = STREAMS_PER_WORKER * len(pool.members)
    running = [asyncio.create_task(_stream(pool, traffic, stopping, number)) for number in range(streams)]
    versions = {0: model}
    windows: list[Window] = []
    try:
        await asyncio.sleep(SETTLE_S)
        for version in range(1, UPDATES + 1):
            published = await asyncio.to_thread(_publish, versions[version - 1], root / f"v{version}", version)
            versions[version] = published.path
            for member, single in zip(pool.members, alone, strict=True):
                other = next(one for one in pool.members if one is not member)
                length_s = windows[-1].during_s if windows else WINDOW_S
                windows.append(await _measure_swap(single, other, published, length_s))
    finally:
        stopping.set()
        await asyncio.gather(*running)
    straddling = [one for one in traffic.done if len(one[1].version_spans) > 1]
    compared = [*straddling[:20], *traffic.done[:: max(1, len(traffic.done) // 20)]]
    errors = [_largest_error(versions, request, completion) for request, completion in compared]
    during_rate = sum(window.during for window in windows) / sum(window.during_s for window in windows)
    around_rate = sum(window.around for window in windows) / sum(window.around_s for window in windows)
    return {
        "other_worker_throughput_ratio": round(during_rate / around_rate, 3),
        "other_worker_tokens_per_s_during": round(during_rate, 1),
        "other_worker_tokens_per_s_around": round(around_rate, 1),
        "window_s_median": round(statistics.median(window.during_s for window in windows), 3),
        "swaps": len(windows),
        "staged_ms_median": round(statistics.median(1000 * window.stage_s for window in windows), 1),
        "paused_ms_median": round(statistics.median(1000 * window.paused_s for window in windows), 1),
        "paused_ms_max": round(max(1000 * window.paused_s for window in windows), 1),
        "requests": len(traffic.done),
        "requests_lost": traffic.lost,
        "requests_repeated": sends.repeated,
        "requests_answered_twice": sends.answered_twice,
        "attempts_refused_by_draining_workers": sends.refused_attempts,
        "retries": pool.retries,
        "requests_over_two_versions": len(straddling),
        "answers_compared": len(errors),
        "largest_logprob_error": float(max(errors)),
    }


@dataclass(frozen=True, slots=True)
class Window:
    """One swap. during, during_s: tokens of the other worker meanwhile; around, around_s: in as long windows before and after."""

    during: float
    during_s: float
    around: float
    around_s: float
    stage_s: float
    paused_s: float


async def _measure_swap(single: VllmPool, other: PoolMember, published: PublishedWeights, length_s: float) -> Window:
    """A control window of `length_s`, the swap, and a control window as long as the swap was; all are measured in the same way.

    single: the pool of the one worker that is updated.
    """
    before, before_s = await _control(other, length_s)
    begin, began_s = await _generated(other), time.monotonic()
    rollout = await roll_out(single, published)
    end, ended_s = await _generated(other), time.monotonic()
    after, after_s = await _control(other, ended_s - began_s)
    (stage_s,), (paused_s,) = rollout.staged_s.values(), rollout.paused_s.values()
    return Window(end - begin, ended_s - began_s, before + after, before_s + after_s, stage_s, paused_s)


async def _control(other: PoolMember, length_s: float) -> tuple[float, float]:
    """Tokens and seconds in which nothing is updated."""
    await asyncio.sleep(SETTLE_S)
    begin, began_s = await _generated(other), time.monotonic()
    await asyncio.sleep(length_s)
    end, ended_s = await _generated(other), time.monotonic()
    return end - begin, ended_s - began_s


async def _generated(member: PoolMember) -> float:
    """Tokens that the worker's engine has sampled so far, by its own counter."""
    client: Any = member.client
    page: str = await client.metrics()
    return float(next(line.split()[-1] for line in page.splitlines() if line.startswith(COUNTER)))


async def _stream(pool: VllmPool, traffic: Traffic, stopping: asyncio.Event, number: int) -> None:
    """One answer after the other."""
    count = 0
    content = [{"type": "image"}, {"type": "text", "text": "Click OK."}]
    while not stopping.is_set():
        request = _request(f"s{number}-{count}", [{"role": "user", "content": content}], [100 * number + count % 5])
        count += 1
        try:
            traffic.done.append((request, await pool.complete(request)))
        except Exception:  # noqa: BLE001 - whatever it was, the request is lost, which is the figure
            traffic.lost += 1


def _publish(before: Path, target: Path, version: int) -> PublishedWeights:
    """Every tensor of the last version moved a little."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(before, target)
    generator = torch.Generator().manual_seed(version)
    tensors = {
        name: tensor + 0.02 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_file(before / "model.safetensors").items()
    }
    save_file(tensors, target / "model.safetensors")
    return PublishedWeights(version, target, weights_digest(target))


_REFERENCES: dict[Path, Any] = {}


def _largest_error(versions: dict[int, Path], request: PolicyRequest, completion: Completion) -> float:
    """Over all tokens of an answer, each against a transformers forward of the version that is said to have written it."""
    from dart_train.model.policy_model import load_model

    worst = 0.0
    for span in completion.version_spans:
        path = versions[span.version]
        if path not in _REFERENCES:
            _REFERENCES[path] = load_model(path)
            _REFERENCES[path].model.eval()
        loaded = _REFERENCES[path]
        expected = transformers_logprobs(loaded, request, completion)
        part = slice(span.start, span.end)
        worst = max(worst, float(np.abs(expected[part] - np.array(completion.logprobs_T[part])).max()))
    return worst
