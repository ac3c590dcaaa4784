"""The whole loop of a run, stage by stage, with every component in a process of its own.

Role: starts the components, tells the data manager what to run, waits for it, and writes the report. Rule: components do not know the
orchestrator; it connects them by configuration files and sockets and drives them by phases. What is done is marked on disk, so that the
same command resumes where the last one stopped; a phase that ended without any result is begun anew. Every wait has a limit, and ends with
the reason (`limits.stall_minutes`). Which stage is next, and when a wait ends or fails, is decided without I/O in `decisions`. Non-goals:
scheduling rules, statistics; there is no desktop and no model in this process.

    stage          runs                                       waits for                    unblocked by
    demos          data manager, rollout worker (oracle)      the phase `demo`             every item has a reward
    warm-start     warm-start process                         its end                      version 0 on disk
    eval-before    inference, rollout worker (vllm)           the phase `eval-before`      every item has a reward
    train          + trainer                                  the trainer's end            its updates or minutes are used up
                   rollout worker: starts an episode the moment a desktop is free, never waits for the trainer
                   trainer: takes a batch as soon as enough groups are finished, never waits for one particular rollout
                   inference: rolling update to a new version, one worker at a time, between tokens; the others keep serving
    eval-after     inference, rollout worker (vllm)           the phase `eval-after`       every item has a reward
    baselines      rollout worker (random, blank)             their phases                 every item has a reward
    report         -                                          -                            -
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import EpisodeResult, PhaseSpec, PhaseStatus, VersionRecord
from dart_agent.errors import StoreError
from dart_agent.rollouts.worker_config import PolicyKind
from dart_agent.types import Purpose
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.success import count_successes
from dart_server.wire import Clock
from dart_train.config import Recipe
from dart_train.evaluation.during_training import evaluated_during_training
from dart_train.evaluation.paired_evaluation import PairedEvaluation
from dart_train.evaluation.results import format_mean_rewards
from dart_train.report.build import build_report, read_metrics
from dart_train.report.learning_signal import describe_learning_signal, describe_short_warm_start, since_start
from dart_train.report.page import RunReport, write_report
from dart_train.run import components, phases, training_components
from dart_train.run.decisions import stages
from dart_train.run.decisions.supervision import describe_end
from dart_train.run.disk import FULL_DISK, DiskGuard, Pauses
from dart_train.run.farm import FarmSession, FarmUnusableError, farm_session
from dart_train.run.launcher import Component, ComponentFailed, Launcher, LocalLauncher, Spawn, spawn_locally
from dart_train.run.lock import components_ended, run_lock
from dart_train.run.masked_episodes import (
    MaskedEpisodeGuard,
    TooManyMaskedEpisodes,
    format_masked_fractions,
)
from dart_train.run.paths import RunPaths
from dart_train.run.progress import Progress
from dart_train.run.run_folder import begin_run_folder
from dart_train.run.state import RunState
from dart_train.run.waiting import RunFailed, Waits
from dart_train.trainer.checkpoint import CheckpointStore

T = TypeVar("T")

log = logging.getLogger(__name__)

POLL_S = 1.0
LOOK_INTERVAL_S = 30.0
"""How often the episodes of training are counted to see whether there is progress, in seconds."""
TRAINED_ROUNDING_S = 0.1
"""The noted time of training is rounded to this."""
WAIT_NOTICE_S = 60.0
"""Seconds without a new update after which a line says why there is none."""


class Interrupted(Exception):
    """The run was stopped from outside; what is stored is kept."""


async def run_recipe(
    recipe: Recipe, paths: RunPaths, progress: Progress | None = None, spawn: Spawn = spawn_locally
) -> PairedEvaluation | None:
    """Run or resume a recipe to its end.

    Args:
        recipe: The recipe.
        paths: The run folder.
        progress: Where progress is shown; None: standard output.
        spawn: Starts the process of a component.

    Returns:
        The paired evaluation, None where no evaluation item has a reward both before and after training.

    Raises:
        RecipeError: The run folder is in use, belongs to another recipe or has another format, or `curation.pool_import` cannot be used.
        RunFailed: A component ended and could not be replaced, or too many episodes were masked.
        Interrupted: SIGINT or SIGTERM; everything was stopped.
    """
    with run_lock(paths):
        run = Run(recipe, paths, begin_run_folder(recipe, paths, progress), progress or Progress(), spawn=spawn)
        return await until_interrupted(run, run.run_stages())


async def until_interrupted(run: Run, body: Coroutine[Any, Any, T]) -> T:
    """Run the body of a run until its end or a signal; the lock of the run folder is held.

    Args:
        run: The run.
        body: What it does.

    Returns:
        What the body returns.

    Raises:
        RunFailed: A component ended and could not be replaced, or too many episodes were masked.
        Interrupted: SIGINT or SIGTERM; everything was stopped.
    """
    task = asyncio.create_task(body)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        with _as_run_failed(), run.state.held_by_launcher(run.paths.state):
            return await task
    except asyncio.CancelledError:
        raise Interrupted from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _as_run_failed() -> Iterator[None]:
    """What ends a run from within becomes RunFailed."""
    try:
        yield
    except (ComponentFailed, FarmUnusableError, StoreError, TooManyMaskedEpisodes) as error:
        raise RunFailed(str(error)) from error


async def rewrite_report(recipe: Recipe, paths: RunPaths) -> Path:
    """Write the report of a run as far as it is; only the data manager is started.

    Args:
        recipe: The recipe of the run.
        paths: The run folder.

    Returns:
        The page.

    Raises:
        RecipeError: Another process works on the run, its folder has another format, or its tasks are not there any more.
        RunFailed: The database cannot be read.
    """
    with run_lock(paths), _as_run_failed():
        state = RunState.load(paths.state)
        state.note_killed_launcher()
        state.save(paths.state)
        run = Run(recipe, paths, state, Progress(Console(stderr=True, highlight=False)))
        async with run.data_manager():
            return (await run.write_report())[1]


class Run:
    """One process that works on a run folder.

    Args:
        recipe: The recipe.
        paths: The run folder.
        state: The progress so far.
        progress: Where progress is shown.
        launcher: Where components run; None: this host.
        client: The data manager; None: the one at the socket of the run folder.
        clock: Clock of everything that is waited for.
        spawn: Starts the process of a component on this host.
        open_farm: Provides the farm for as long as its context lasts; None: that of DART_FARM_URL or this user.
    """

    def __init__(
        self,
        recipe: Recipe,
        paths: RunPaths,
        state: RunState,
        progress: Progress,
        launcher: Launcher | None = None,
        client: DataManagerClient | None = None,
        clock: Clock = SYSTEM_CLOCK,
        spawn: Spawn = spawn_locally,
        open_farm: FarmSession | None = None,
    ) -> None:
        self.recipe = recipe
        self.paths = paths
        self.state = state
        self.progress = progress
        self.clock = clock
        self._open_farm = open_farm or farm_session
        limits = recipe.limits
        self.disk = DiskGuard(
            paths.root,
            min(limits.pause_disk_gib, limits.min_free_disk_gib),
            lambda reason: self.client.hold_work(reason),
            self._on_disk,
            clock,
        )
        self.launcher = launcher or LocalLauncher(
            on_restart=self._on_restart, clock=clock, spawn=spawn, on_loss=self._on_loss, disk=self.disk
        )
        self.client = client or DataManagerClient(
            paths.data_socket, components.image_location(recipe, paths), clock=clock
        )
        self.faults = MaskedEpisodeGuard(self.client, recipe.desktops.count, clock)

    async def run_stages(self) -> PairedEvaluation | None:
        """Run every stage that is not done yet, in order.

        Returns:
            The paired evaluation, None where no evaluation item has a reward both before and after training.
        """
        async with self.data_manager(), self._open_farm(self.recipe, self.progress.note, self.clock):
            await self._start_tracking()
            await self.faults.start()
            await self._run_plan()
            report, page = await self.write_report()
        self.progress.note(report.conclusion)
        self.progress.note(f"report: {page}")
        return report.paired_evaluation

    async def run_training(self) -> None:
        """Run the stage of training alone, without evaluations and report; the warm-started policy is there."""
        async with self.data_manager(), self._open_farm(self.recipe, self.progress.note, self.clock):
            await self._start_tracking()
            await self.faults.start()
            async with self._policy(self.recipe.acting_policy):
                await self._stage(phases.TRAIN, self._train)

    async def run_evaluation(self, evaluation: PhaseSpec, version: VersionRecord | None) -> list[EpisodeResult]:
        """Evaluate one policy, without training and report; what a call before this one finished is not played again.

        Args:
            evaluation: The phase.
            version: The published policy; None: the one that the recipe starts from.

        Returns:
            The episodes that have a reward.
        """
        async with self.data_manager():
            if evaluation.name not in self.state.stages_s:
                async with self._open_farm(self.recipe, self.progress.note, self.clock):
                    await self.faults.start()
                    async with self._policy(self.recipe.acting_policy):
                        if version is not None:
                            await self.client.publish_version(version)
                        await self._stage(evaluation.name, lambda: self._evaluate(evaluation))
            return await self.client.results(self.state.phase_name(evaluation.name))

    # Components

    @contextlib.asynccontextmanager
    async def data_manager(self) -> AsyncIterator[None]:
        """Run the data manager and the client to it, once no component of a killed launcher is left; every component is stopped at the end.

        Yields:
            Nothing.

        Raises:
            RecipeError: A component of a killed launcher does not end.
        """
        try:
            await components_ended(self.paths, self.clock, self.progress.note)
            spec = components.data_manager(self.recipe, self.paths)
            await self.launcher.start(spec)
            await self._run_watched(self._waits().for_data_manager(spec.log))
            watching = asyncio.create_task(self.disk.watch())
            try:
                yield
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
        finally:
            await self.client.aclose()
            await self.launcher.stop_all()

    @contextlib.asynccontextmanager
    async def _policy(self, kind: PolicyKind) -> AsyncIterator[list[Component]]:
        """The rollout workers with their policy, and the inference workers where the policy needs them."""
        started: list[Component] = []
        try:
            if kind not in ("oracle", "random"):
                await self._publish_first_version()
            if kind in ("vllm", "blank"):
                started.append(await self.launcher.start(components.inference(self.recipe, self.paths)))
            for worker in components.rollout_workers(self.recipe, self.paths, kind):
                started.append(await self.launcher.start(worker))
            yield started
        finally:
            for component in reversed(started):
                await self.launcher.stop(component)
            await self.client.release_worker(None)

    async def _start_tracking(self) -> None:
        """Copy the metrics to where the recipe wants them, too, until every component is stopped."""
        if (tracking := components.tracking(self.recipe, self.paths)) is not None:
            await self.launcher.start(tracking)

    async def _publish_first_version(self) -> None:
        if await self.client.latest_version() is None:
            await self.client.publish_version(
                VersionRecord(version=0, path=str(components.start_model(self.recipe, self.paths)))
            )

    def _on_restart(self, name: str, code: int) -> None:
        self._note_incident(f"{name} {describe_end(code)} and was started again")

    def _on_loss(self, cause: str) -> None:
        self._note_incident(f"{cause}; the run goes on without it")

    def _on_disk(self, line: str, paused: str | None) -> None:
        self.state.paused = paused
        self._note_incident(line)

    def _note_incident(self, line: str) -> None:
        self.progress.note(line)
        self.state.incidents.append(line)
        try:
            self.state.save(self.paths.state)
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            self.progress.note(f"{self.paths.state} cannot be written now: {error.strerror}")

    # Stages

    async def _run_plan(self) -> None:
        """Run the stages that are not done, each with the policy that it needs."""
        bodies: dict[str, Callable[[], Awaitable[None]]] = {
            stages.DEMOS: self._demos,
            stages.WARM_START: self._warm_start,
            phases.EVAL_BEFORE: lambda: self._evaluate(phases.evaluation(self.recipe, phases.EVAL_BEFORE)),
            phases.TRAIN: self._train,
            phases.EVAL_AFTER: lambda: self._evaluate(phases.evaluation(self.recipe, phases.EVAL_AFTER)),
            phases.TEST: lambda: self._evaluate(phases.evaluation(self.recipe, phases.TEST)),
            stages.BASELINE_STAGE: self._baselines,
        }
        state = stages.StagesState(stages.plan_stages(self.recipe), set(self.state.stages_s))
        async with contextlib.AsyncExitStack() as held:
            commands = deque(stages.decide(state, stages.RunBegun()))
            while commands:
                command = commands.popleft()
                if isinstance(command, stages.HoldPolicy):
                    await held.enter_async_context(self._policy(command.kind))
                elif isinstance(command, stages.ReleasePolicy):
                    await held.aclose()
                elif isinstance(command, stages.RunStage):
                    await self._stage(command.name, bodies[command.name])
                    commands.extend(stages.decide(state, stages.StageDone(command.name)))

    async def _stage(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        with self.state.timed_stage(name, self.clock), self.progress.stage(name):
            await self._run_watched(body())
        await self._save_state()

    async def _run_watched(self, body: Awaitable[object]) -> None:
        """Wait for something; a component that fails for good ends it."""
        task = asyncio.ensure_future(body)
        try:
            await self.launcher.watch(task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # also takes up the exception of a task that failed too

    async def _demos(self) -> None:
        name = self.state.phase_name(phases.DEMO)
        async with self._policy("oracle"):
            view = await self._run_phase(phases.demo(self.recipe, name))
        rewards = [result.reward for result in await self.client.results(name)]
        nsolved = count_successes(rewards, self.recipe.reward.success_at)
        if not nsolved:
            stats = await self.client.stats()
            await self._begin_anew(phases.DEMO)
            raise RunFailed(
                f"no demonstration succeeded, so there is nothing to imitate (last fault: {stats.last_masked_cause}): play one with "
                f"`dart-agent rollout {self.recipe.tasks.suite}/{self.recipe.tasks.families[0]}`; any setting of the recipe may be "
                "changed now"
            )
        if nsolved < (view.total or 0):
            self.progress.note(f"demonstrations: {nsolved} of {view.total} succeeded, and only those are imitated")

    async def _warm_start(self) -> None:
        if self.recipe.model.preset is not None and not (self.paths.initial_model / "config.json").exists():
            maker = await self.launcher.start(training_components.init_model_component(self.recipe, self.paths))
            await self._show_progress_until_done(maker, "init-model")
        if not self.paths.warm_start_model.exists():  # what is there is complete
            component = await self.launcher.start(training_components.warm_start(self.recipe, self.paths))
            await self._show_progress_until_done(component, "warmup")
            if short := describe_short_warm_start(self.recipe.warmup, read_metrics(self.paths)):
                self.progress.note(short)

    async def _evaluate(self, evaluation: PhaseSpec) -> None:
        await self._wait_for_newest_version()
        view = await self._evaluate_phase(evaluation)
        results = await self.client.results(view.name)
        infeasible = phases.infeasible_tasks(self.recipe, (each.task_id for each in results))
        self.progress.note(f"{evaluation.name}: {format_mean_rewards(results, infeasible)}")
        self.progress.note(format_masked_fractions(await self.client.stats()))

    async def _wait_for_newest_version(self) -> None:
        """Wait until whatever acts has the newest version, so that an evaluation judges one policy."""
        newest = await self.client.latest_version()
        if newest is not None:
            await self._waits().for_version(newest.version, self._served)

    async def _served(self) -> list[int]:
        return await components.served_versions(self.recipe, self.paths)

    async def _train(self) -> None:
        before = await self.client.latest_version()
        start = await self._start_training()
        if before is not None and (updates := CheckpointStore(self.paths.checkpoints, keep=1).updates()):
            self.progress.note(f"train: goes on after update {updates}, version {before.version}")
        first_version = 0 if before is None else before.version
        paths, pauses = self.paths, self._pauses()
        async with evaluated_during_training(
            self.client, self.recipe, first_version, paths.metrics, paths.weights, self.clock, pauses
        ):
            trainer = await self.launcher.start(training_components.trainer(self.recipe, self.paths))
            await self._show_progress_until_done(
                trainer, "update", lambda: self._waits().explain_no_update(start, self._served), self._count_episodes
            )
        if left := self._unfinished_training():
            raise RunFailed(f"the trainer ended after {left}: see why in {self.paths.logs}")
        view = since_start(await self.client.stop_phase(start.name), start)
        newest = await self.client.latest_version()
        if newest is None or newest.version == first_version:
            self.progress.note(f"training made 0 updates since this start: {describe_learning_signal(view)}")
        self.progress.note(format_masked_fractions(await self.client.stats()))

    async def _start_training(self) -> PhaseStatus:
        """The phase of training; one that was stopped before training was done is begun anew."""
        while True:
            view = await self.client.start_phase(phases.training(self.recipe, self.state.phase_name(phases.TRAIN)))
            if view.state == "active" or self._unfinished_training() is None:
                return view
            await self._begin_anew(phases.TRAIN)

    def _unfinished_training(self) -> str | None:
        """How far training came, None where its updates or its minutes are used up."""
        train, checkpoints = self.recipe.train, CheckpointStore(self.paths.checkpoints, keep=1)
        updates, trained_s = checkpoints.updates(), checkpoints.trained_s()
        if updates >= train.updates or trained_s + TRAINED_ROUNDING_S >= 60 * train.max_minutes:
            return None
        return f"{updates} of {train.updates} updates and {trained_s / 60:.1f} of {train.max_minutes:g} minutes"

    async def _count_episodes(self) -> int:
        view = await self.client.phase(self.state.phase_name(phases.TRAIN))
        return view.done + view.masked + view.failed

    def _waits(self) -> Waits:
        return Waits(
            self.client,
            self.faults,
            self.progress,
            self.paths,
            self.clock,
            limit_s=60 * self.recipe.limits.stall_minutes,
            poll_s=POLL_S,
            pauses=self._pauses(),
        )

    def _pauses(self) -> Pauses:
        return Pauses(self.clock, self.disk, self.progress.update, POLL_S)

    async def _baselines(self) -> None:
        for name, (kind, _) in phases.BASELINES.items():
            async with self._policy(kind):
                await self._evaluate_phase(phases.evaluation(self.recipe, name))

    async def _evaluate_phase(self, evaluation: PhaseSpec) -> PhaseStatus:
        name = evaluation.name
        view = await self._run_phase(evaluation.model_copy(update={"name": self.state.phase_name(name)}))
        if view.mean_reward is None:
            stats = await self.client.stats()
            await self._begin_anew(name)
            raise RunFailed(
                f"{name}: none of {view.total} episodes got a reward (last fault: {stats.last_masked_cause}): fix the cause (logs: "
                f"{self.paths.logs}); `dart-train report {self.paths.root}` shows what there is"
            )
        return view

    async def _begin_anew(self, phase: str) -> None:
        """Let the next start play a phase again that ended without any result."""
        self.state.begin_anew(phase)
        await self._save_state()

    async def _save_state(self) -> None:
        await self.disk.until_written(lambda: self.state.save(self.paths.state))

    async def _run_phase(self, spec: PhaseSpec) -> PhaseStatus:
        """Start a phase and wait until every item has a reward."""
        await self.client.start_phase(spec)
        view = await self._waits().for_phase(spec.name)
        if view.failed and spec.purpose is not Purpose.DEMO:
            self.progress.note(f"{spec.name}: {view.failed} of {view.total} items never got a reward")
        return view

    async def _show_progress_until_done(
        self,
        component: Component,
        kind: str,
        explain: Callable[[], Awaitable[tuple[str, str]]] | None = None,
        count: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """Wait for a component that ends by itself."""
        await self._waits().for_component(
            component, kind, notice_s=WAIT_NOTICE_S, look_interval_s=LOOK_INTERVAL_S, explain=explain, count=count
        )

    # Report

    async def write_report(self) -> tuple[RunReport, Path]:
        """Write the report.

        Returns:
            The content of the report, and the page.
        """
        report = await build_report(self.client, self.recipe, self.paths, self.state, phases.report_phases(self.state))
        return report, write_report(report, self.paths.report)
