"""Tokens per second of an inference worker, and the seconds in which it takes a version.

Role: starts one worker of the recipe, as a run does, and asks it as many requests at once as one batch of it holds. Rule: the first
round warms up and does not count; every prompt has pictures of its own, so that no cache helps. Non-goals: routing, several workers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dart_agent.inference.client import WorkerClient
from dart_agent.inference.settings import PublishedWeights, WorkerSettings
from dart_agent.inference.worker_process import WorkerProcess
from dart_agent.prompts.builder import PromptBuilder, PromptSpec
from dart_agent.types import PolicyRequest, SamplingParams
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.types import Observation
from dart_server.wire import Clock

INSTRUCTION = "Press the first button, then the second button."


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What was measured.

    Attributes:
        start_s: Seconds from the start of the process to its first answer.
        requests: Requests at the same time.
        prompt_tokens: Tokens of all prompts.
        response_tokens: Sampled tokens.
        seconds: Seconds until all were answered.
        stage_s: Seconds in which a version was read and checked; None: none was taken.
        swap_s: Seconds in which requests stood still for it.
    """

    start_s: float
    requests: int
    prompt_tokens: int
    response_tokens: int
    seconds: float
    stage_s: float | None = None
    swap_s: float | None = None


async def measure_engine(
    settings: WorkerSettings,
    spec: PromptSpec,
    sampling: SamplingParams,
    *,
    screen_wh: tuple[int, int],
    requests: int,
    directory: Path,
    log: Path,
    published: PublishedWeights | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> EngineFigures:
    """Start a worker, measure it, and stop it.

    Args:
        settings: Settings of the worker.
        spec: Prompts of the policy.
        sampling: How it samples.
        screen_wh: Width and height of a screen in pixels.
        requests: Requests at the same time.
        directory: Folder of the worker, which makes and removes it; a short path, because Unix sockets are in it.
        log: Where the worker writes.
        published: A version that it takes at the end; None: none.
        clock: Clock of the measurement.

    Returns:
        The figures.

    Raises:
        AgentError: The worker cannot start, or does not answer.
    """
    worker = WorkerProcess("bench", settings, directory=directory, log_path=log)
    began_s = clock.monotonic()
    try:
        await worker.start()
        await worker.wait_until_ready()
        start_s = clock.monotonic() - began_s
        async with WorkerClient(worker.name, worker.directory) as client:
            await _ask(client, spec, sampling, screen_wh, requests, 0)
            began_s = clock.monotonic()
            prompts, responses = await _ask(client, spec, sampling, screen_wh, requests, 1)
            seconds = clock.monotonic() - began_s
            stage_s = swap_s = None
            if published is not None:
                stage_s = await client.stage(published)
                swap_s = (await client.swap(published.identity)).pause_s
    finally:
        await worker.stop()
    return EngineFigures(start_s, requests, prompts, responses, seconds, stage_s, swap_s)


async def _ask(
    client: WorkerClient,
    spec: PromptSpec,
    sampling: SamplingParams,
    screen_wh: tuple[int, int],
    requests: int,
    turn: int,
) -> tuple[int, int]:
    """Tokens of the prompts and of the responses of one round."""
    builder, chance = PromptBuilder(spec), np.random.default_rng(turn)

    async def one(number: int) -> tuple[int, int]:
        screen = chance.integers(0, 256, (screen_wh[1], screen_wh[0], 3), dtype=np.uint8)
        prompt = builder.build(Observation(screen, INSTRUCTION), builder.new_history())
        completion = await client.complete(
            PolicyRequest(prompt.messages, prompt.images, sampling, f"bench-{turn}.{number}")
        )
        return len(completion.prompt_ids_P), len(completion.token_ids_T)

    answered = await asyncio.gather(*(one(number) for number in range(requests)))
    return sum(prompt for prompt, _ in answered), sum(response for _, response in answered)
