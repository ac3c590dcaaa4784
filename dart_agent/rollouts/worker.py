"""The rollout worker: N desktops, each playing one episode after the other.

Role: `RolloutWorker` claims work, plays it, reports it; `python -m dart_agent.rollouts.worker --config FILE` is its process. Rule: the
moment a desktop is free the next episode starts; no episode waits for another. What was claimed is either reported or given back, also
when the worker is stopped. Non-goals: deciding what to play (the data manager), the loop of one episode
(`dart_agent.rollouts.episode_loop`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

from dart_agent.errors import ConfigError, StoreError
from dart_agent.metrics_file import append_metrics
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.rollouts.annotated_screens import AnnotatedScreenWriter
from dart_agent.rollouts.episode_loop import Episode, EpisodeEnv, ObservedStep, OnParseError, run_episode
from dart_agent.rollouts.policies import BlankScreenshotPolicy, OraclePolicy, RandomPolicy
from dart_agent.rollouts.worker_config import WorkerConfig, load_worker_config
from dart_agent.types import SOLVED_REWARD, Policy, WorkItem, WorkSource
from dart_envs.clock import SystemClock
from dart_envs.errors import DartEnvError
from dart_envs.observations.geometry import Coordinates
from dart_envs.tasks import Task, load
from dart_envs.types import Desktop
from dart_server.wire import Clock

logger = logging.getLogger(__name__)

FAILED_START_DELAY_S = 1.0
ABANDON_TIMEOUT_S = 5.0


class WorkerEnv(EpisodeEnv, Protocol):
    """An environment that a slot owns for its life: `dart_envs.envs.core.AsyncDesktopEnv`."""

    @property
    def lease(self) -> Desktop | None:
        """The desktop it holds now."""
        ...

    async def aclose(self) -> None:
        """Give the desktop back."""
        ...


PolicyFactory = Callable[[Task, WorkerEnv], Policy]
"""The policy of one episode."""


class RolloutWorker:
    """Plays episodes on `desktops` environments until it is cancelled.

    make_env: called once per slot. make_policy: called once per episode. on_episode: told about every finished episode. on_solved_step:
    called with the task's id and each step of an episode that solved its task, after its end.
    """

    def __init__(
        self,
        name: str,
        source: WorkSource,
        *,
        desktops: int,
        make_env: Callable[[], WorkerEnv],
        make_policy: PolicyFactory,
        builder: PromptBuilder,
        load_task: Callable[[str], Task] = load,
        clock: Clock | None = None,
        on_parse_error: OnParseError = OnParseError.NO_ACTION,
        idle_poll_s: float = 0.2,
        on_episode: Callable[[Episode], None] | None = None,
        on_solved_step: Callable[[str, ObservedStep], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self._source = source
        self._desktops = desktops
        self._make_env = make_env
        self._make_policy = make_policy
        self._builder = builder
        self._load_task = load_task
        self._clock = clock or SystemClock()
        self._on_parse_error = on_parse_error
        self._idle_poll_s = idle_poll_s
        self._on_episode = on_episode
        self._on_solved_step = on_solved_step

    async def run(self) -> None:
        """Play until cancelled. Raises what is a defect, or a StoreError when the data manager stays away."""
        slots = [asyncio.create_task(self._slot(), name=f"{self.name}.{index}") for index in range(self._desktops)]
        try:
            done, _ = await asyncio.wait(slots, return_when=asyncio.FIRST_EXCEPTION)
            for slot in done:
                slot.result()
        finally:
            for slot in slots:
                slot.cancel()
            await asyncio.gather(*slots, return_exceptions=True)

    async def _slot(self) -> None:
        """One desktop's life."""
        env = self._make_env()
        try:
            while True:
                item = await self._source.acquire(self.name)
                if item is None:
                    await self._clock.sleep(self._idle_poll_s)
                else:
                    await self._play(env, item)
        finally:
            with contextlib.suppress(DartEnvError):
                await asyncio.shield(env.aclose())

    async def _play(self, env: WorkerEnv, item: WorkItem) -> None:
        """Play one claimed rollout and report it, or give it back."""
        try:
            episode = await self._episode(env, item)
        except DartEnvError as error:
            logger.warning("%s (%s) could not start: %s", item.rollout_id, item.task_id, error)
            await self._source.abandon(item.rollout_id, f"{type(error).__name__}: {error}")
            await self._clock.sleep(FAILED_START_DELAY_S)
            return
        except BaseException as error:
            await self._abandon(item, error)
            raise
        # Shielded: a finished episode is stored even when the worker is stopped just now.
        await asyncio.shield(asyncio.ensure_future(self._source.report(episode.trajectory, episode.images)))
        if self._on_episode is not None:
            self._on_episode(episode)

    async def _episode(self, env: WorkerEnv, item: WorkItem) -> Episode:
        task = self._load_task(item.task_id)
        if item.max_steps < task.max_steps:
            task = task.model_copy(update={"max_steps": item.max_steps})
        seen: list[ObservedStep] = []

        async def keep(step: ObservedStep) -> None:
            seen.append(step)

        episode = await run_episode(
            env,
            self._make_policy(task, env),
            task,
            item,
            self._builder,
            clock=self._clock,
            on_parse_error=self._on_parse_error,
            on_step=None if self._on_solved_step is None else keep,
        )
        if self._on_solved_step is not None and episode.trajectory.reward == SOLVED_REWARD:
            for step in seen:
                await self._on_solved_step(item.task_id, step)
        return episode

    async def _abandon(self, item: WorkItem, error: BaseException) -> None:
        cause = (
            "the worker is stopping"
            if isinstance(error, asyncio.CancelledError)
            else f"{type(error).__name__}: {error}"
        )
        with contextlib.suppress(StoreError, TimeoutError):
            await asyncio.shield(asyncio.wait_for(self._source.abandon(item.rollout_id, cause), ABANDON_TIMEOUT_S))


@contextlib.asynccontextmanager
async def open_policy_factory(
    kind: str, coordinates: Coordinates, addresses: Path | None, *, seed: int = 0, clock: Clock | None = None
) -> AsyncIterator[PolicyFactory]:
    """The policy of each episode, by kind; the pool of inference workers is connected for as long as the context lasts.

    Raises PolicyUnavailableError when the inference workers' addresses do not appear.
    """
    if kind == "oracle":
        yield lambda task, env: OraclePolicy(task, lambda: env.lease, coordinates)
        return
    if kind == "random":
        chance = RandomPolicy(coordinates, seed=seed)
        yield lambda task, env: chance
        return
    from dart_agent.inference.addresses import wait_for_addresses
    from dart_agent.inference.client import WorkerClient
    from dart_agent.inference.pool import VllmPool

    clock = clock or SystemClock()
    assert addresses is not None, "checked by WorkerConfig"
    places = await wait_for_addresses(addresses, clock)
    async with VllmPool([WorkerClient(place.name, place.directory) for place in places], clock=clock) as pool:
        policy: Policy = BlankScreenshotPolicy(pool) if kind == "blank" else pool
        yield lambda task, env: policy


async def run_worker(config: WorkerConfig) -> None:
    """The rollout worker of one configuration, until cancelled."""
    from dart_agent.data_client.client import DataManagerClient
    from dart_envs.envs.core import AsyncDesktopEnv
    from dart_envs.farm.client import AsyncFarmClient

    spec = preset(config.prompt, images=config.history_images)
    screens = None if config.screens is None else AnnotatedScreenWriter(config.screens)
    parts = ("screenshot",) if screens is None else ("screenshot", "a11y")
    async with (
        DataManagerClient(config.socket, config.images) as data,
        open_policy_factory(config.policy, spec.coordinates, config.addresses, seed=config.seed) as make_policy,
        await AsyncFarmClient.connect(config.farm_url) as farm,
    ):
        await data.release_worker(config.name)
        worker = RolloutWorker(
            config.name,
            data,
            desktops=config.desktops,
            make_env=lambda: AsyncDesktopEnv(
                farm,
                shape=config.shape,
                settle=config.settle,
                observation=parts,
                labels={"worker": config.name},
            ),
            make_policy=make_policy,
            builder=PromptBuilder(spec),
            on_parse_error=config.on_parse_error,
            idle_poll_s=config.idle_poll_s,
            on_episode=functools.partial(_record, config.metrics),
            on_solved_step=None if screens is None else screens.write,
        )
        beat = asyncio.create_task(_heartbeat(data.heartbeat, config), name="heartbeat")
        try:
            await worker.run()
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)


async def _heartbeat(beat: Callable[[str], Awaitable[int]], config: WorkerConfig) -> None:
    while True:
        await asyncio.sleep(config.heartbeat_s)
        try:
            await beat(config.name)
        except StoreError as error:
            logger.warning("no heartbeat: %s", error)


def _record(metrics: Path | None, episode: Episode) -> None:
    """Log a line per episode, and append one to the metrics."""
    trajectory = episode.trajectory
    logger.info("%s", format_episode(episode))
    if metrics is None:
        return
    steps = trajectory.steps_S
    line = {
        "kind": "episode",
        "time_s": time.time(),
        "phase": trajectory.phase,
        "task": trajectory.task_id,
        "reward": trajectory.reward,
        "end": trajectory.end.value,
        "steps": len(steps),
        "tokens": sum(len(step.token_ids_T) for step in steps),
        "parse_errors": sum(step.parse_error is not None for step in steps),
        "duration_s": round(trajectory.duration_s, 4),
        "reset_s": round(float(trajectory.info["reset_s"]), 4),
        "model_s": round(sum(step.model_s for step in steps), 4),
        "env_s": round(sum(step.env_s for step in steps), 4),
    }
    append_metrics(metrics, line)


def format_episode(episode: Episode) -> str:
    """One episode in one line, for people."""
    trajectory = episode.trajectory
    verdict = "  -  " if trajectory.reward is None else f"{trajectory.reward:5.2f}"
    actions = [step.action["type"] if step.action else "?" for step in trajectory.steps_S]
    cause = f" ({trajectory.cause})" if trajectory.cause else ""
    return (
        f"{verdict} {trajectory.task_id} {trajectory.end}{cause}, {len(actions)} steps in "
        f"{trajectory.duration_s:.1f} s: {', '.join(actions)}"
    )


def main() -> None:
    """Entry point of the rollout worker's process."""
    parser = argparse.ArgumentParser(
        description="A rollout worker: plays the episodes that the data manager hands out."
    )
    parser.add_argument("--config", required=True, type=Path, help="JSON file (dart_agent.rollouts.worker_config)")
    path: Path = parser.parse_args().config
    from dart_agent.component_process import run_until_signal

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        config = load_worker_config(path)
    except ConfigError as error:
        parser.exit(2, f"{error}\n")
    sys.exit(asyncio.run(run_until_signal(run_worker(config))))


if __name__ == "__main__":
    main()
