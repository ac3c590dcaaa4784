"""Episodes of some tasks, without store or trainer: what `dart-agent rollout` does.

Role: `run_rollouts` runs a plan on a farm and tells about each episode. Rule: the same worker and loop as in training. Non-goals: keeping
results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dart_agent.chat_api.policy_endpoint import PolicyEndpointSettings, declare_tool
from dart_agent.errors import ConfigError
from dart_agent.grounding.acting.settings import PointerSettings, check_pointer, tell_of_targets
from dart_agent.prompts.builder import PromptBuilder, PromptSpec, preset
from dart_agent.rollouts.episode_report import PlayedEpisode, format_episode
from dart_agent.rollouts.policy_factory import open_policy_factory
from dart_agent.rollouts.work_sources import InMemoryWorkSource
from dart_agent.rollouts.worker import RolloutWorker
from dart_agent.rollouts.worker_config import PolicyKind
from dart_agent.types import Purpose, SamplingParams, Trajectory, WorkItem
from dart_envs.tasks import load
from dart_server.wire import DesktopShape


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Which episodes to play, by whom, on which desktops. `episodes`: per task."""

    tasks: tuple[str, ...]
    policy: PolicyKind
    episodes: int = 1
    desktops: int = 1
    max_steps: int = 15
    prompt: str = "tiny"
    temperature: float = 0.0
    max_tokens: int = 64
    resolution: tuple[int, int] = (640, 400)
    font_size: int | None = 16
    image: str = "basic"
    farm_url: str | None = None
    endpoint: PolicyEndpointSettings | None = None
    pointer: PointerSettings | None = None

    @property
    def prompt_spec(self) -> PromptSpec:
        """How its prompts look."""
        spec = declare_tool(preset(self.prompt), self.endpoint)
        return tell_of_targets(spec) if self.pointer else spec

    def check(self) -> None:
        """Check it before anything starts.

        Raises `dart_envs.errors.TaskError` for a task that does not exist, and ConfigError for a pointer that does not go with the policy,
        or a tool that does not go with the prompt.
        """
        try:
            check_pointer(self.policy, self.pointer, preset(self.prompt))
            declare_tool(preset(self.prompt), self.endpoint)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        for task_id in self.tasks:
            load(task_id)

    def work_items(self) -> list[WorkItem]:
        """The rollouts, task after task."""
        sampling = SamplingParams(temperature=self.temperature, max_tokens=self.max_tokens)
        return [
            WorkItem(
                rollout_id=f"roll_{number}_{repeat}",
                group_id=f"grp_{number}",
                task_id=task_id,
                purpose=Purpose.EVAL,
                sampling=sampling,
                max_steps=self.max_steps,
            )
            for number, task_id in enumerate(self.tasks)
            for repeat in range(self.episodes)
        ]


async def run_rollouts(
    plan: RolloutPlan, addresses: Path | None, ended: Callable[[str, Trajectory], None]
) -> dict[str, str]:
    """Play all; `ended` gets a line and the trajectory of each. Returns those that could never begin, with their causes."""
    from dart_envs.envs.core import AsyncDesktopEnv
    from dart_envs.farm.client import AsyncFarmClient

    spec = plan.prompt_spec
    source = InMemoryWorkSource(plan.work_items())
    shape = DesktopShape(image=plan.image, resolution=plan.resolution, font_size=plan.font_size)

    def finished(played: PlayedEpisode) -> None:
        ended(format_episode(played.episode), played.episode.trajectory)

    async with (
        open_policy_factory(plan.policy, spec, addresses, endpoint=plan.endpoint, pointer=plan.pointer) as policies,
        await AsyncFarmClient.connect(plan.farm_url) as farm,
    ):
        worker = RolloutWorker(
            "dart-agent",
            source,
            desktops=min(plan.desktops, len(plan.work_items())),
            make_env=lambda: AsyncDesktopEnv(farm, shape=shape, labels={"worker": "dart-agent"}),
            make_policy=policies.make,
            builder=PromptBuilder(spec),
            on_episode=finished,
            outage_s=policies.outage_s,
        )
        running = asyncio.create_task(worker.run())
        all_ended = asyncio.create_task(source.finished.wait())
        try:
            await asyncio.wait({running, all_ended}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            for task in (running, all_ended):
                task.cancel()
            await asyncio.gather(running, all_ended, return_exceptions=True)
    return source.failed
