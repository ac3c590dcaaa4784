"""How much of the prompts of an episode an engine finds in its prefix cache, on the product's own path.

Role: `measure_hits` plays one episode with `run_episode` on screens of noise, for the full history and for the last five screenshots. Rule:
prompts, histories, exact prefixes and image hashes are those of rollouts; the share is of all prompt tokens of the episode, the first turn
included. Non-goals: times; whether the model does anything useful (it is random).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dart_agent.prompts.builder import PromptBuilder, PromptSpec
from dart_agent.prompts.history import HistorySettings
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.types import Completion, Policy, PolicyRequest, Purpose, SamplingParams, WorkItem
from dart_envs.tasks import Evaluator, Task
from dart_envs.types import Action, DecodedAction, EndReason, Observation, StepResult, TaskLike

TURNS = 10
SCREEN_WH = (256, 160)
MAX_TOKENS = 16
HISTORIES = {
    "full_history": HistorySettings(policy="full"),
    "last_5_images": HistorySettings(policy="screens", keep=5),
}


class NoisyScreens:
    """An environment whose every screen is noise of its own, and that ends after `TURNS` steps."""

    def __init__(self) -> None:
        self._steps = 0

    async def reset(
        self, task: TaskLike, seed: int | None = None, *, share_setup: bool | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Return the first screen."""
        return self._observation(), {}

    async def step(self, action: Action | DecodedAction, *, last: bool | None = None) -> StepResult:
        """Return the next screen, whatever the action."""
        self._steps += 1
        over = bool(last) or self._steps >= TURNS
        return StepResult(self._observation(), 0.0, False, over, EndReason.MAX_STEPS if over else None)

    def _observation(self) -> Observation:
        width, height = SCREEN_WH
        noise = np.random.default_rng(1000 + self._steps).integers(0, 256, (height, width, 3), dtype=np.uint8)
        return Observation(noise, "Click OK")


class CountingPolicy:
    """Adds up the prompt tokens of another policy, and those of them that were in the cache.

    continued: prompts that continue the ids of the one before.
    """

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self.prompt_tokens = self.cached_tokens = self.prompts = self.continued = 0

    async def complete(self, request: PolicyRequest) -> Completion:
        """Ask the other policy, and count."""
        completion = await self._inner.complete(request)
        self.prompts += 1
        self.continued += bool(request.prefix_ids_P)
        self.prompt_tokens += len(completion.prompt_ids_P)
        self.cached_tokens += completion.cached_prompt_tokens
        return completion


async def measure_hits(policy: Policy) -> dict[str, Any]:
    """Play one episode for each history.

    Args:
        policy: The inference workers.

    Returns:
        By history the cached share of all prompt tokens, and how many prompts continued the one before.
    """
    figures: dict[str, Any] = {"turns": TURNS}
    for name, history in HISTORIES.items():
        counted = await play(policy, name, history)
        figures[f"hit_rate_{name}"] = counted.cached_tokens / counted.prompt_tokens
        figures[f"prompts_continued_{name}"] = counted.continued
    return figures


async def play(policy: Policy, name: str, history: HistorySettings) -> CountingPolicy:
    """Play one episode of `TURNS` turns; name: of its rollout."""
    spec = PromptSpec(
        "uitars", images=1, past_actions=None, multiple=32, max_pixels=SCREEN_WH[0] * SCREEN_WH[1], history=history
    )
    sampling = SamplingParams(temperature=1.0, max_tokens=MAX_TOKENS)
    item = WorkItem(f"roll_{name}", "grp", "bench/noise/0000", Purpose.EVAL, sampling, TURNS, "eval")
    task = Task(id=item.task_id, instruction="Click OK", evaluator=Evaluator(func="infeasible"), max_steps=TURNS)
    counted = CountingPolicy(policy)
    await run_episode(NoisyScreens(), counted, task, item, PromptBuilder(spec))
    return counted
