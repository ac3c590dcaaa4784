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
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dart_agent.component_process import run_to_its_end, run_together
from dart_agent.errors import (
    ConfigError,
    PolicyUnavailableError,
    PromptTooLongError,
    RequestRejected,
    StoreRefusedError,
)
from dart_agent.prompts.builder import PromptBuilder
from dart_agent.rewards.open import RewardOf, evaluator_reward, open_rewards
from dart_agent.rollouts.annotated_screens import AnnotatedScreenWriter
from dart_agent.rollouts.episode import (
    Episode,
    EpisodeJournal,
    EpisodeSettings,
    EpisodeStopped,
    ObservedStep,
    ResumedEpisode,
    no_outage,
)
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.rollouts.episode_report import (
    AbandonedEpisode,
    PlayedEpisode,
    PlayedItem,
    record_abandoned,
    record_episode,
)
from dart_agent.rollouts.journal import ActionMarks, StepJournal, StopSignal
from dart_agent.rollouts.limits import FamilyLimits
from dart_agent.rollouts.partial import (
    FAILED_START_DELAY_S,
    EpisodePostponed,
    PartialRollouts,
    RolloutHandover,
)
from dart_agent.rollouts.policy_factory import PolicyFactory, WorkerEnv, open_policy_factory
from dart_agent.rollouts.rejected import PROMPT_ADVICE, RefusedRequests, RejectedTrajectories
from dart_agent.rollouts.upkeep import keep_alive, lease_labels, release_former_leases
from dart_agent.rollouts.worker_config import ACTION_TIMEOUT_S, WorkerConfig, load_worker_config
from dart_agent.task_suites import load_task as load_known_task
from dart_agent.types import Directive, WorkItem, WorkSource, family_of
from dart_envs.clock import SystemClock, wait_first
from dart_envs.errors import DartEnvError
from dart_envs.success import SUCCESS_AT, is_success
from dart_envs.tasks import Task
from dart_server.wire import Clock

if TYPE_CHECKING:
    from dart_agent.data_client.client import DataManagerClient
    from dart_envs.farm.base import FarmLike

logger = logging.getLogger(__name__)


class RolloutWorker:
    """Plays episodes on `desktops` environments until it is cancelled.

    make_env: called once per slot. make_policy: called once per episode. on_episode: told about every finished episode. on_abandoned: told
    about every one that is given back. on_solved_step: called with the task's id and each step of an episode that solved its task, after
    its end. rejected: folder that gets a file for each trajectory that the source refuses. partial: None: an episode that does not end here
    leaves nothing. family_limits: limits of the episodes of a family, in place of those of `settings`. rewards: what rewards episodes of a
    purpose. success_at: least reward of a success. outage_s: seconds so far in which no inference worker served, which count against no
    episode's time limit.
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
        load_task: Callable[[str], Task] = load_known_task,
        clock: Clock | None = None,
        settings: EpisodeSettings | None = None,
        idle_poll_s: float = 0.2,
        on_episode: Callable[[PlayedEpisode], None] | None = None,
        on_abandoned: Callable[[AbandonedEpisode], None] | None = None,
        on_solved_step: Callable[[str, ObservedStep], Awaitable[None]] | None = None,
        rejected: Path | None = None,
        partial: PartialRollouts | None = None,
        family_limits: Mapping[str, FamilyLimits] | None = None,
        rewards: RewardOf = evaluator_reward,
        success_at: float = SUCCESS_AT,
        outage_s: Callable[[], float] = no_outage,
    ) -> None:
        self.name = name
        self._source = source
        self._desktops = desktops
        self._make_env = make_env
        self._make_policy = make_policy
        self._builder = builder
        self._load_task = load_task
        self._clock = clock or SystemClock()
        self._settings = replace(settings or EpisodeSettings(), worker=name, process=uuid.uuid4().hex)
        self._idle_poll_s = idle_poll_s
        self._on_episode = on_episode
        self._on_abandoned = on_abandoned
        self._on_solved_step = on_solved_step
        self._rejected = RejectedTrajectories(rejected, self._clock)
        self._partial = partial
        self._handover = RolloutHandover(source, partial, self._clock)
        self._family_limits = dict(family_limits or {})
        self._rewards = rewards
        self._success_at = success_at
        self._outage_s = outage_s
        self._requests = RefusedRequests()
        self._playing: dict[str, StepJournal | StopSignal] = {}

    def stop(self, assignments: Iterable[str]) -> None:
        """Let these stop at their next turn, to be continued where that is possible; those that have ended are passed by."""
        for assignment in assignments:
            playing = self._playing.get(assignment)
            if playing is not None:
                playing.stop(Directive.CANCEL if self._partial is None else Directive.PARK)

    async def run(self) -> None:
        """Play until cancelled.

        Raises what is a defect; a StoreError when the data manager stays away, or refuses everything; a ConfigError when no first prompt
        fits into the model's context; a PolicyUnavailableError when the policy refuses every request.
        """
        await run_together(*(self._slot(f"{self.name}.{index}") for index in range(self._desktops)))

    async def _slot(self, slot: str) -> None:
        """One desktop's life."""
        env = self._make_env()
        idle_since_s = self._clock.monotonic()
        try:
            while True:
                item = await self._source.acquire(self.name)
                if item is None:
                    await self._clock.sleep(self._idle_poll_s)
                    continue
                began_s = self._clock.monotonic()
                idle_s = began_s - idle_since_s
                played = PlayedItem(item)
                try:
                    episode = await self._play(env, played)
                finally:
                    if played.cause is not None and self._on_abandoned is not None:
                        duration_s = self._clock.monotonic() - began_s
                        told = AbandonedEpisode(item, played.progress, played.cause, duration_s, slot, idle_s)
                        self._on_abandoned(told)
                if episode is not None and self._on_episode is not None:
                    self._on_episode(PlayedEpisode(episode, slot, idle_s))
                idle_since_s = self._clock.monotonic()
        finally:
            with contextlib.suppress(DartEnvError):
                await asyncio.shield(env.aclose())

    async def _play(self, env: WorkerEnv, played: PlayedItem) -> Episode | None:
        """Play one claimed rollout and report it, or leave it to another turn; the episode where it was reported."""
        item = played.item
        try:
            task = self._task(item)
            resumed = None
            if self._partial is not None:
                resumed, played.journal = await self._partial.begin(
                    env, self._settings, task, played, screenshots=self._rewards(item.purpose).screenshots
                )
            signal = self._playing[item.assignment] = played.journal or StopSignal()
            playing = asyncio.create_task(self._episode(env, task, played, resumed, signal), name=item.rollout_id)
            played.playing = playing
            episode = await asyncio.shield(playing)
        except EpisodeStopped as stopped:
            await self._stopped(played, stopped.directive)
            return None
        except RequestRejected as error:
            await self._refused(played, error)
            return None
        except PolicyUnavailableError as error:
            logger.warning("%s (%s): %s", item.rollout_id, item.task_id, error)
            await self._handover.leave(played, f"policy: {error}")
            return None
        except DartEnvError as error:
            logger.warning("%s (%s) could not start: %s", item.rollout_id, item.task_id, error)
            await self._handover.abandon(played, f"{type(error).__name__}: {error}")
            await self._clock.sleep(FAILED_START_DELAY_S)
            return None
        except EpisodePostponed as postponed:
            logger.warning("%s (%s) could not be continued yet: %s", item.rollout_id, item.task_id, postponed)
            await self._handover.put_back(played, postponed)
            return None
        except StoreRefusedError as error:
            await self._handover.abandon(played, f"not stored: {error}")
            self._rejected.count(error)
            return None
        except asyncio.CancelledError:
            await run_to_its_end(self._stop(played))
            raise
        except BaseException as error:
            await self._handover.abandon(played, f"{type(error).__name__}: {error}", ends=True)
            raise
        finally:
            self._playing.pop(item.assignment, None)
        # Shielded: a finished episode is stored even when the worker is stopped just now.
        return episode if await run_to_its_end(self._report(played, episode)) else None

    async def _stop(self, played: PlayedItem) -> None:
        """The worker ends: finish a running action where its step can be stored; then leave the rollout, or report where it has ended."""
        playing, journal = played.playing, played.journal
        if playing is not None:
            if journal is not None and not journal.at_boundary:
                journal.stop(Directive.PARK)
                await wait_first(self._clock, ACTION_TIMEOUT_S, [playing])
            playing.cancel()
            (ended,) = await asyncio.gather(playing, return_exceptions=True)
            if isinstance(ended, Episode):
                await self._report(played, ended)
                return
        await self._handover.leave(played, "the worker is stopping", ends=True)

    async def _report(self, played: PlayedItem, episode: Episode) -> bool:
        """Store a finished episode; where it is refused, keep it aside with its cause and give the rollout back."""
        trajectory, images, journal = episode.trajectory, episode.images, played.journal
        try:
            if journal is None or self._partial is None:
                await self._source.report(trajectory, images)
            else:
                await journal.flush()
                new = {sha256: image for sha256, image in images.items() if sha256 not in journal.sent_images}
                await self._partial.source.report(trajectory, new, stored_steps=journal.stored_steps)
                journal.forget()
        except StoreRefusedError as error:
            await self._rejected.keep(trajectory, str(error))
            await self._handover.abandon(played, f"the report was refused: {error}")
            self._rejected.count(error)
            return False
        self._rejected.accepted()
        return True

    def _task(self, item: WorkItem) -> Task:
        """The task with the step limit of its episode. A limit that the task states can only lower it; OSWorld's files state none."""
        task = self._rewards(item.purpose).prepare(self._load_task(item.task_id))
        limits = self._family_limits.get(family_of(item.task_id))
        max_steps = item.max_steps if limits is None else limits.lower_steps(item.max_steps)
        if max_steps == task.max_steps or (max_steps > task.max_steps and "max_steps" in task.model_fields_set):
            return task
        return task.model_copy(update={"max_steps": max_steps})

    async def _episode(
        self, env: WorkerEnv, task: Task, played: PlayedItem, resumed: ResumedEpisode | None, journal: EpisodeJournal
    ) -> Episode:
        seen: list[ObservedStep] = []
        item = played.item
        limits = self._family_limits.get(family_of(item.task_id), self._settings.limits)

        async def keep(step: ObservedStep) -> None:
            seen.append(step)

        episode = await run_episode(
            env,
            self._requests.watch(self._make_policy(task, env)),
            task,
            item,
            self._builder,
            clock=self._clock,
            settings=replace(self._settings, limits=limits),
            on_step=None if self._on_solved_step is None else keep,
            journal=journal,
            resumed=resumed,
            rewards=self._rewards(item.purpose),
            outage_s=self._outage_s,
            progress=played.progress,
        )
        if self._on_solved_step is not None and is_success(episode.trajectory.reward, self._success_at):
            for step in seen:
                await self._on_solved_step(item.task_id, step)
        return episode

    async def _refused(self, played: PlayedItem, error: RequestRejected) -> None:
        """The policy refused a request of the episode for what it is; PromptTooLongError: the first one."""
        item = played.item
        too_long = isinstance(error, PromptTooLongError)
        cause = f"configuration: {error}; {PROMPT_ADVICE}" if too_long else f"policy: {error}"
        logger.warning("a request of %s (%s) was refused: %s", item.rollout_id, item.task_id, cause)
        await self._handover.abandon(played, cause)
        self._requests.count(item.task_id, error)
        await self._clock.sleep(FAILED_START_DELAY_S)

    async def _stopped(self, played: PlayedItem, directive: Directive) -> None:
        """The episode stopped because it was told to."""
        if directive is Directive.CANCEL:
            await self._handover.abandon(played, "it is not needed any more", uses_attempt=False)
            return
        await self._handover.leave(played, "it was to be parked")


async def run_worker(config: WorkerConfig, clock: Clock | None = None) -> None:
    """The rollout worker of one configuration, until cancelled."""
    from dart_agent.data_client.client import DataManagerClient
    from dart_envs.farm.client import AsyncFarmClient

    clock = clock or SystemClock()
    async with (
        open_policy_factory(
            config.policy,
            config.prompt_spec,
            config.addresses,
            endpoint=config.endpoint,
            pointer=config.pointer,
            seed=config.seed,
            clock=clock,
        ) as policies,
        DataManagerClient(
            config.known_data_address,
            config.images,
            key=config.read_data_key(),
            desktops=config.desktops,
            kv_cache_usage=policies.kv_cache_usage,
            clock=clock,
        ) as data,
        await AsyncFarmClient.connect(config.farm_url, clock=clock) as farm,
        open_rewards(config.reward, clock) as rewards,
    ):
        await release_former_leases(
            farm, lease_labels(config.name, config.known_data_address), await data.kept_leases()
        )
        following = policies.following
        if following is not None:
            await following.catch_up(data.latest_version)
        await run_together(
            play_rollouts(config, clock, data, farm, policies.make, rewards=rewards, outage_s=policies.outage_s),
            *(() if following is None else (following.follow(data.latest_version),)),
        )


async def play_rollouts(
    config: WorkerConfig,
    clock: Clock,
    data: DataManagerClient,
    farm: FarmLike,
    make_policy: PolicyFactory,
    load_task: Callable[[str], Task] | None = None,
    rewards: RewardOf = evaluator_reward,
    outage_s: Callable[[], float] = no_outage,
) -> None:
    """The rollout worker of one configuration on connections that are open, until cancelled.

    What an earlier process of its name still held is given back right before the first request for work: what only this worker can continue
    waits for it, for a short time. load_task: None: as it is configured. outage_s: as in `RolloutWorker`.
    """
    from dart_envs.envs.core import AsyncDesktopEnv
    from dart_envs.envs.parking import ResumableDesktopEnv

    screens = None if config.screens is None else AnnotatedScreenWriter(config.screens)
    parts = ("screenshot",) if screens is None else ("screenshot", "a11y")
    env_class = ResumableDesktopEnv if config.partial.enabled else AsyncDesktopEnv
    partial = None
    if config.partial.enabled:
        marks = ActionMarks(config.local_folder / "acting")
        partial = PartialRollouts(data, data.images, marks, keep_lease=config.partial.park == "lease")
        await partial.clear_obsolete_marks()
    worker = RolloutWorker(
        config.name,
        data,
        desktops=config.desktops,
        make_env=lambda: env_class(
            farm,
            clock=clock,
            shape=config.shape,
            settle=config.settle,
            observation=parts,
            labels=lease_labels(config.name, config.known_data_address),
        ),
        make_policy=make_policy,
        builder=PromptBuilder(config.prompt_spec),
        load_task=load_task or functools.partial(load_known_task, folder=config.task_folder),
        clock=clock,
        settings=config.episode_settings,
        idle_poll_s=config.idle_poll_s,
        on_episode=functools.partial(record_episode, config.metrics, clock),
        on_abandoned=functools.partial(record_abandoned, config.metrics, clock),
        on_solved_step=None if screens is None else screens.write,
        rejected=config.local_folder / "rejected",
        partial=partial,
        family_limits=config.family_limits,
        rewards=rewards,
        success_at=config.reward.success_at,
        outage_s=outage_s,
    )
    await data.release_worker(config.name)
    beat = asyncio.create_task(keep_alive(data, farm, worker, config.heartbeat_s, clock), name="heartbeat")
    try:
        await worker.run()
    finally:
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)


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
