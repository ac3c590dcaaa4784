"""A run in virtual time whose components can be killed at any moment.

Real: the orchestrator, its supervision of components, the data manager with its database, the trainer's process loop with checkpoints,
published weights and digests. Fake: processes (tasks of this one), desktops, inference, and the model, whose weights are one number.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, ParamSpec, TypeVar, cast

import pytest
import torch
from rich.console import Console
from run_harness import PICTURE, RECIPE
from safetensors.torch import save_file

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.data_client.image_location import open_images
from dart_agent.data_client.wire import Batch
from dart_agent.errors import WorkerError
from dart_agent.types import Purpose, WorkItem
from dart_train.config import Recipe
from dart_train.data_manager.__main__ import read_config
from dart_train.data_manager.app import create_app
from dart_train.data_manager.catalog import SuiteCatalog
from dart_train.data_manager.service import DataManager
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.evaluation.paired_evaluation import PairedEvaluation
from dart_train.run import components, orchestrator
from dart_train.run.launcher import ComponentSpec, ProcessHandle
from dart_train.run.orchestrator import Run
from dart_train.run.paths import RunPaths
from dart_train.run.progress import Progress
from dart_train.run.run_folder import open_run_directory
from dart_train.simulation.components.processes import InProcessServer, TaskProcess
from dart_train.simulation.components.virtual_time import VirtualClock
from dart_train.trainer import process as trainer_process
from dart_train.trainer.__main__ import EXIT_STOPPED
from dart_train.trainer.checkpoint import TrainerState
from dart_train.trainer.config import read_trainer_config
from dart_train.trainer.process import TrainerProcess
from dart_train.trainer.trainer import Trainer, TrainStep

P = ParamSpec("P")
T = TypeVar("T")
START_S = 15.0
"""How long a process takes to start."""
POLL_S = 10.0
DESKTOPS = 3


class FakePolicyTrainer:
    """In place of `Trainer`: the weights are a number that every batch changes in its own way."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.version = 0
        self.updates = 0
        self.weights = 0

    def setup(self, start_model: str, version: int, state: TrainerState | None, updates: int = 0) -> None:
        self.version, self.updates = version, updates
        if state is not None:
            self.version, self.updates, weights = state.version, state.updates, torch.zeros((), dtype=torch.int64)
            state.load({"model.w": weights})
            self.weights = int(weights)
        elif (Path(start_model) / "weights").exists():
            self.weights = int((Path(start_model) / "weights").read_text())

    def step(self, batch: Batch) -> TrainStep:
        named = ",".join(sorted(f"{row.rollout_id}{row.step.index}" for row in batch.rows))
        self.weights = int(sha256(f"{self.weights}/{named}".encode()).hexdigest()[:12], 16)
        self.version += 1
        self.updates += 1
        return TrainStep(self.version, {"loss": 0.0}, ())

    def save(self, directory: Path) -> None:
        model_at(directory, self.weights)

    def state(self, last: TrainStep, batch_id: str, trained_s: float, lineage: Sequence[str]) -> TrainerState:
        return TrainerState(
            version=self.version, updates=self.updates, last_batch=batch_id, steps=[], metrics={}, trained_s=trained_s,
            lineage=list(lineage), tensors={"model.w": torch.tensor(self.weights)},
        )  # fmt: skip


def model_at(path: Path, weights: int = 0) -> None:
    path.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json", "processor_config.json"):
        (path / name).write_text("{}")
    (path / "weights").write_text(str(weights))
    save_file({"w": torch.tensor([weights])}, path / "model.safetensors")


class KillableRun:
    """One run with its fake processes; the same seed gives the same moments."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, seed: int = 0, **sections: Any
    ) -> None:
        defaults = {
            "demos": {"per_family": 1},
            "warmup": {"imitated_demos_per_family": 1},
            "eval": {"episodes": 4},
            "rollout": {"group_size": 2},
            "train": {"updates": 4, "groups_per_batch": 1},
        }
        self.recipe = Recipe.model_validate(RECIPE | defaults | sections)
        self.paths = RunPaths(root / "small")
        self.clock = clock
        self.random = Random(seed)
        self.server = InProcessServer()
        self.live: dict[str, TaskProcess] = {}
        self.ends: Counter[str] = Counter()
        self.served: int | None = None
        self.printed = io.StringIO()
        self.train_step_s = 8.0
        monkeypatch.setattr(orchestrator, "POLL_S", POLL_S)
        monkeypatch.setattr(orchestrator, "farm_session", lambda *_: contextlib.nullcontext())
        monkeypatch.setattr(components, "served_versions", self.served_versions)
        monkeypatch.setattr(trainer_process.asyncio, "to_thread", self.slowly)

    async def run(self) -> PairedEvaluation | None:
        progress = Progress(Console(file=self.printed, highlight=False, width=400), self.clock)
        state = open_run_directory(self.recipe, self.paths)
        run = Run(self.recipe, self.paths, state, progress, client=self.client(), clock=self.clock, spawn=self.spawn)
        return await run.run_stages()

    async def slowly(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In place of a thread: takes time, can be killed before its work, and does its work at one moment."""
        await self.clock.sleep(self.random.uniform(0.5, self.train_step_s))
        return work(*args, **kwargs)

    def client(self) -> DataManagerClient:
        return DataManagerClient(
            self.paths.data_socket, self.paths.images, clock=self.clock, transport=self.server, assignment_wait_s=POLL_S
        )

    async def served_versions(self, recipe: Recipe, paths: RunPaths) -> list[int]:
        if self.served is None:
            raise WorkerError("policy-0 does not answer")
        return [self.served]

    async def spawn(self, spec: ComponentSpec) -> ProcessHandle:
        kind = "rollouts" if spec.name.startswith("rollout-") else spec.name.replace("-", "_")
        body: Callable[[TaskProcess, ComponentSpec], Coroutine[Any, Any, int]] = getattr(self, kind)

        async def life(process: TaskProcess) -> int:
            await self.clock.sleep(START_S)
            return await body(process, spec)

        self.live[spec.name] = TaskProcess(life)
        return self.live[spec.name]

    @asynccontextmanager
    async def until_sigterm(self, process: TaskProcess) -> AsyncIterator[asyncio.Event]:
        """As `run_until_signal`: SIGTERM ends the work in order, with exit code 0."""
        stopping = asyncio.Event()
        process.on_sigterm = stopping.set
        yield stopping

    async def data_manager(self, process: TaskProcess, spec: ComponentSpec) -> int:
        config = read_config(Path(spec.argv[-1]))
        catalog = SuiteCatalog(config.task_folder)
        store = TrajectoryStore.open(config.database, catalog.split_of, now=self.clock.time)
        app = create_app(DataManager(store, open_images(config.images), catalog, config), self.clock)
        async with self.until_sigterm(process) as stopping, app.router.lifespan_context(app):
            self.server.app = app
            try:
                await stopping.wait()
            finally:
                self.server.kill()
                app.state.writer.close()
                store.close()
        return 0

    async def init_model(self, process: TaskProcess, spec: ComponentSpec) -> int:
        model_at(self.paths.initial_model)
        return 0

    async def warm_start(self, process: TaskProcess, spec: ComponentSpec) -> int:
        await self.clock.sleep(30)
        model_at(self.paths.warm_start_model)
        return 0

    async def inference(self, process: TaskProcess, spec: ComponentSpec) -> int:
        async with self.until_sigterm(process) as stopping, self.client() as client:
            try:
                while not stopping.is_set():
                    latest = await client.latest_version()
                    self.served = 0 if latest is None else latest.version
                    await self.clock.sleep(POLL_S)
            finally:
                self.served = None
        return 0

    async def rollouts(self, process: TaskProcess, spec: ComponentSpec) -> int:
        async with self.until_sigterm(process) as stopping, self.client() as client:
            await client.release_worker(spec.name)
            slots = [asyncio.create_task(self.slot(client, spec.name)) for _ in range(DESKTOPS)]
            ending = asyncio.create_task(stopping.wait())
            try:
                done, _ = await asyncio.wait({ending, *slots}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (ending, *slots):
                    task.cancel()
                await asyncio.gather(ending, *slots, return_exceptions=True)
        return 0

    async def slot(self, client: DataManagerClient, worker: str) -> None:
        """One desktop: episodes of random lengths."""
        while True:
            item = await client.acquire(worker)
            if item is None:
                await self.clock.sleep(POLL_S)
                continue
            while self.served is None and worker != "rollout-oracle":
                await self.clock.sleep(POLL_S)
            version = self.served or 0
            await self.clock.sleep(self.random.uniform(5, 40))
            trajectory, images = fake_trajectory(item, reward=self.reward(item), version=version, image=PICTURE)
            await client.report(trajectory, images)

    def reward(self, item: WorkItem) -> float:
        """Demonstrations succeed, and half of the other episodes."""
        return 1.0 if item.purpose is Purpose.DEMO else float(self.random.random() < 0.5)

    async def trainer(self, process: TaskProcess, spec: ComponentSpec) -> int:
        config = read_trainer_config(Path(spec.argv[-1]))
        async with self.client() as client:
            trainer = TrainerProcess(config, client, self.clock)
            trainer.trainer = cast(Trainer, FakePolicyTrainer(config))
            process.on_sigterm = trainer.stopping.set
            return 0 if await trainer.run() else EXIT_STOPPED
