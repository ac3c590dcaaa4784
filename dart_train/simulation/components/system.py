"""A whole run in virtual time with the components of production.

Role: `simulate_components` runs the orchestrator's training stage: data manager with its database, rollout workers with environment and
episode loop, inference pool, weight updater, supervisor, and the trainer's process. Rule: simulated are what the latency models describe:
the farm behind its client's protocol, the inference workers behind theirs, and the train step; one seed gives one run. Non-goals:
thousands of desktops (`dart_train.simulation.system`), other stages of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

from rich.console import Console

from dart_agent.component_process import run_together
from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.image_location import open_images
from dart_agent.data_client.wire import Batch
from dart_agent.inference.component import held_version_reader, latest_version_reader, record_activity
from dart_agent.inference.config import load_inference_config
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.weight_updater import WeightUpdater
from dart_agent.rollouts.policy_factory import OpenPolicies
from dart_agent.rollouts.worker import play_rollouts
from dart_agent.rollouts.worker_config import WorkerConfig, load_worker_config
from dart_server.wire import Clock
from dart_train.config import Recipe
from dart_train.data_manager.__main__ import read_config
from dart_train.data_manager.app import create_app
from dart_train.data_manager.catalog import SuiteCatalog
from dart_train.data_manager.service import DataManager
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.report.build import read_metrics
from dart_train.report.throughput import update_lines
from dart_train.run.launcher import LocalLauncher
from dart_train.run.orchestrator import Run
from dart_train.run.paths import RunPaths
from dart_train.run.progress import Progress
from dart_train.run.run_folder import open_run_directory
from dart_train.simulation.components.activity import ComponentsOutcome, RequestLog, recorded_figures
from dart_train.simulation.components.farm import SimulatedFarm, simulated_task
from dart_train.simulation.components.inference import SimulatedInferenceWorker
from dart_train.simulation.components.policy import SimulatedEpisodes
from dart_train.simulation.components.processes import ComponentHost, InProcessServer, TaskProcess
from dart_train.simulation.components.trainer import SimulatedPolicyTrainer, SimulatedTrainerProcess, save_number
from dart_train.simulation.components.virtual_time import EPOCH_S, VirtualClock, run_in_virtual_time
from dart_train.simulation.models import SystemModels
from dart_train.simulation.training import row_tokens
from dart_train.trainer.__main__ import EXIT_STOPPED
from dart_train.trainer.config import TrainerConfig, read_trainer_config
from dart_train.trainer.process import TrainerProcess

SCREEN_WH = (64, 64)
"""Screens are no larger than desktops allow: their content means nothing, and hashing and storing them is what costs most."""


def simulate_components(
    recipe: Recipe, models: SystemModels, *, hours: float, warm_up_hours: float, seed: int
) -> ComponentsOutcome:
    """Run a recipe's training in virtual time with the components of production.

    Args:
        recipe: The recipe; its desktops, inference workers and settings are those that are simulated.
        models: Latencies.
        hours: Length of the window in which figures are taken.
        warm_up_hours: Simulated time before it.
        seed: Seed of everything random.

    Returns:
        The figures.
    """
    began_s = time.process_time()
    desktops = recipe.desktops.model_copy(update={"resolution": SCREEN_WH})
    recipe = for_minutes(recipe.model_copy(update={"desktops": desktops}), 60 * (warm_up_hours + hours), seed)
    with tempfile.TemporaryDirectory(prefix="dart-simulate-") as folder:
        paths = RunPaths(Path(folder) / "run")
        systems: list[ComponentSystem] = []

        async def body(clock: VirtualClock) -> None:
            systems.append(ComponentSystem(recipe, paths, models, seed, clock))
            await systems[0].run()

        run_in_virtual_time(body)
        lines, workers = read_metrics(paths), recipe.inference.workers
        begin_s = EPOCH_S + 3600 * warm_up_hours
        window = (begin_s, begin_s + 3600 * hours)
        in_use = systems[0].log.in_use(workers, window)
        figures = recorded_figures(lines, in_use, recipe.desktops.count, workers, window)
        cpu_s = time.process_time() - began_s
        return ComponentsOutcome(figures, len(update_lines(lines)), systems[0].trajectories, cpu_s)


def for_minutes(recipe: Recipe, minutes: float, seed: int) -> Recipe:
    """Change a recipe so that its training takes a time.

    Args:
        recipe: The recipe.
        minutes: How long it trains.
        seed: Its seed.

    Returns:
        The changed recipe.
    """
    train = recipe.train.model_copy(update={"updates": 10**9, "max_minutes": minutes, "checkpoint_every": 10**6})
    return recipe.model_copy(update={"train": train, "run": recipe.run.model_copy(update={"seed": seed})})


class ComponentSystem:
    """One run: the components of production and the simulated parts around them.

    Args:
        recipe: What is run.
        paths: The run folder.
        models: Latencies of what is simulated.
        seed: Seed of everything random.
        clock: The clock of all components.

    Attributes:
        log: The answered requests.
        trajectories: Stored trajectories; known at the end.
    """

    def __init__(self, recipe: Recipe, paths: RunPaths, models: SystemModels, seed: int, clock: Clock) -> None:
        limits = recipe.limits.model_copy(update={"pause_disk_gib": 0.0})  # the disk of this host is not simulated
        self.recipe = recipe.model_copy(update={"limits": limits})
        self.paths, self.models, self.seed, self.clock = paths, models, seed, clock
        self.log = RequestLog()
        self.trajectories = 0
        self._server = InProcessServer()
        self._row_tokens = row_tokens(models, recipe.tasks.max_steps)
        self._farm = SimulatedFarm(models.desktop, clock, seed)
        names = [f"policy-{number}" for number in range(recipe.inference.workers)]
        self._inference = [SimulatedInferenceWorker(name, models, clock, seed) for name in names]
        self._holding = names[len(names) - recipe.eval.during_workers :]

    async def run(self) -> None:
        """Run the stage of training to its end."""
        state = open_run_directory(self.recipe, self.paths)
        self.make_start_model()
        progress = Progress(Console(file=io.StringIO()), self.clock)
        launcher = LocalLauncher(clock=self.clock, spawn=self.host().spawn)
        run = Run(
            self.recipe,
            self.paths,
            state,
            progress,
            launcher,
            self.client(),
            self.clock,
            open_farm=lambda *_: contextlib.nullcontext(),
        )
        await run.run_training()
        for worker in self._inference:
            await worker.heap.aclose()

    def host(self) -> ComponentHost:
        """Say where the components run."""
        return ComponentHost(
            {
                "data-manager": self._data_manager,
                "inference": self._update_weights,
                "rollout": self.play,
                "trainer": self.train,
            }
        )

    def client(
        self, desktops: int | None = None, kv_cache_usage: Callable[[], float | None] | None = None
    ) -> DataManagerClient:
        """Connect to the data manager.

        Args:
            desktops: Desktops of the worker that asks for work with it.
            kv_cache_usage: Tells what the inference workers of that worker need of their key-value caches.

        Returns:
            The connection.
        """
        return DataManagerClient(
            self.paths.data_socket,
            self.paths.images,
            desktops=desktops,
            kv_cache_usage=kv_cache_usage,
            clock=self.clock,
            transport=self._server,
        )

    def make_start_model(self) -> None:
        """Write policy version 0."""
        self.paths.warm_start_model.mkdir()
        save_number(self.paths.warm_start_model, 0)

    def make_trainer(self, config: TrainerConfig, data: DataManagerClient) -> TrainerProcess:
        """Make the trainer's process.

        Args:
            config: Its configuration.
            data: The data manager.

        Returns:
            The process.
        """
        trainer = SimulatedPolicyTrainer(self._step_s, save_number)
        return SimulatedTrainerProcess(config, data, self.clock, trainer, self.models.publish)

    @contextlib.asynccontextmanager
    async def open_policy(self, config: WorkerConfig) -> AsyncIterator[OpenPolicies]:
        """Open what samples the responses.

        Args:
            config: Configuration of the rollout worker.

        Yields:
            The policy of each episode, and how full their caches are.
        """
        async with self._pool() as pool:
            yield OpenPolicies(lambda task, env: pool, lambda: pool.kv_cache_usage, outage_s=lambda: pool.outage_s)

    @contextlib.asynccontextmanager
    async def _pool(self) -> AsyncIterator[VllmPool]:
        chance = Random(f"{self.seed}/retries")
        clients = [each.client() for each in self._inference]
        async with VllmPool(clients, clock=self.clock, chance=chance, holding=self._holding) as pool:
            yield pool

    async def _data_manager(self, file: Path, process: TaskProcess) -> int:
        config = read_config(file)
        catalog = SuiteCatalog(config.task_folder)
        store = TrajectoryStore.open(config.database, catalog.split_of, now=self.clock.time)
        manager = DataManager(store, open_images(config.images), catalog, config)
        app = create_app(manager, self.clock)
        stopping = asyncio.Event()
        process.on_sigterm = stopping.set
        async with app.router.lifespan_context(app):
            self._server.app = app
            await stopping.wait()
            self.trajectories = manager.stats().trajectories
            self._server.kill()
            store.close()
        return 0

    async def _update_weights(self, file: Path, process: TaskProcess) -> int:
        config = load_inference_config(file)
        async with self.client() as data, self._pool() as pool:
            clients = [member.client for member in pool.members]
            updater = WeightUpdater(
                pool,
                latest_version_reader(data),
                held=held_version_reader(data) if self._holding else None,
                holding=self._holding,
                settings=config.updates.to_settings(),
                clock=self.clock,
                poll_s=config.poll_s,
            )
            recording = [] if config.metrics is None else [record_activity(clients, config.metrics, self.clock)]
            await run_together(updater.run(), *recording)
        return 0

    async def play(self, file: Path, process: TaskProcess) -> int:
        """Run a rollout worker on simulated desktops.

        Args:
            file: Its configuration.
            process: Its process.

        Returns:
            The exit code.
        """
        config, limit = load_worker_config(file), self.recipe.tasks.max_steps
        async with (
            self.open_policy(config) as policies,
            self.client(config.desktops, policies.kv_cache_usage) as data,
        ):
            episodes = SimulatedEpisodes(
                policies.make, self.models.episode, config.prompt_spec, limit, self.seed, self.clock, self.log
            )
            await play_rollouts(
                config,
                self.clock,
                data,
                self._farm,
                episodes,
                lambda task_id: simulated_task(task_id, limit),
                outage_s=policies.outage_s,
            )
        return 0

    async def train(self, file: Path, process: TaskProcess) -> int:
        """Run the trainer's process.

        Args:
            file: Its configuration.
            process: Its process.

        Returns:
            The exit code.
        """
        async with self.client() as data:
            loop = self.make_trainer(read_trainer_config(file), data)
            process.on_sigterm = loop.stopping.set
            return 0 if await loop.run() else EXIT_STOPPED

    def _step_s(self, batch: Batch) -> float:
        model = self.models.trainer
        return model.update_s + sum(self._row_tokens[row.step.index] for row in batch.rows) / model.tokens_per_s
