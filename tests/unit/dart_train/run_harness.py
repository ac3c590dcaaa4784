"""A run of fake components: the real orchestrator, data manager and report; made-up rollouts, models and desktops."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.image_location import open_images
from dart_agent.data_client.wire import VersionRecord
from dart_agent.types import Purpose, WorkItem
from dart_train.config import Recipe
from dart_train.data_manager.app import create_app
from dart_train.data_manager.catalog import SuiteCatalog
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.service import DataManager
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.evaluation.paired_evaluation import PairedEvaluation
from dart_train.run import components, orchestrator
from dart_train.run.launcher import Component, ComponentFailed, ComponentSpec
from dart_train.run.orchestrator import Run
from dart_train.run.paths import RunPaths
from dart_train.run.progress import Progress
from dart_train.run.run_folder import open_run_directory
from dart_train.run.state import RunState

RECIPE: dict[str, Any] = {
    "run": {"name": "small"},
    "tasks": {"families": ["press_nth", "tick_nth"], "max_steps": 2},
    "model": {"preset": "tiny"},
    "demos": {"per_family": 2},
    "warmup": {"imitated_demos_per_family": 2},
    "train": {"updates": 2},
    "eval": {"episodes": 6, "baseline_episodes": 2},
}
PICTURE = fake_image(0, 160, 256)
"""What every fake policy sees, uint8 [H, W, 3]: the size of the tiny preset's input."""
STAGES = ("demos", "warm-start", "eval-before", "train", "eval-after", "baselines")


class SimulatedCrash(Exception):
    """The launcher's end, at a moment that a test chose."""


def untrained_then_trained(item: WorkItem) -> float | None:
    """Demonstrations succeed, episodes before training fail, those after it succeed."""
    return float(item.purpose is Purpose.DEMO or item.phase == "eval-after")


class FakeComponent:
    """A component whose work is a coroutine."""

    def __init__(self, name: str, work: asyncio.Task[None]) -> None:
        self.name = name
        self.pid = 0
        self._work = work

    async def wait(self) -> int:
        await asyncio.shield(self._work)
        return 0

    async def stop(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)


class FakeLauncher:
    """Does in this process, by made-up means, what each component would have left on disk and in the store."""

    def __init__(self, harness: RunHarness, client: DataManagerClient) -> None:
        self.harness = harness
        self.client = client
        self.started: list[FakeComponent] = []

    async def start(self, spec: ComponentSpec) -> Component:
        self.harness.starts[spec.name] += 1
        work = self.rollouts if spec.name.startswith("rollout-") else getattr(self, spec.name.replace("-", "_"))
        self.started.append(FakeComponent(spec.name, asyncio.create_task(work())))
        return self.started[-1]

    async def stop(self, component: Component) -> None:
        await component.stop()

    async def stop_all(self) -> None:
        while self.started:
            await self.started.pop().stop()

    async def watch(self, task: asyncio.Future[None]) -> None:
        await task

    async def data_manager(self) -> None:
        return

    async def inference(self) -> None:
        await asyncio.Event().wait()

    async def init_model(self) -> None:
        model_at(self.harness.paths.initial_model)

    async def warm_start(self) -> None:
        if self.harness.paths.warm_start_model.exists():
            raise ComponentFailed("the warm start never writes over a model")
        model_at(self.harness.paths.warm_start_model)

    async def trainer(self) -> None:
        for version in range(1, self.harness.recipe.train.updates + 1):
            path = self.harness.paths.weights / f"v{version}"
            if not path.exists():
                self.harness.updates += 1
                model_at(path)
            (self.harness.paths.checkpoints / f"update{version:08d}").mkdir(exist_ok=True)
            await self.client.publish_version(VersionRecord(version=version, path=str(path)))

    async def rollouts(self) -> None:
        while True:
            item = await self.client.acquire("fake worker")
            if item is None or item.phase == "train":  # an endless phase would go on as long as anyone plays
                await asyncio.sleep(0.01)
                continue
            trajectory, images = fake_trajectory(
                item, reward=self.harness.reward(item), image=PICTURE, version=self.harness.version(item)
            )
            steps = tuple(replace(step, action=self.harness.action) for step in trajectory.steps_S)
            await self.client.report(replace(trajectory, steps_S=steps), images)


def model_at(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")


class RunHarness:
    """A run directory, and launchers that work on it one after the other."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> None:
        self.recipe = Recipe.model_validate(RECIPE | sections)
        self.paths = RunPaths(root / "small")
        self.reward: Callable[[WorkItem], float | None] = untrained_then_trained
        self.version: Callable[[WorkItem], int] = lambda item: 0
        self.starts: Counter[str] = Counter()
        self.action: dict[str, Any] | None = None
        self.updates = 0
        self.printed = io.StringIO()
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(orchestrator, "POLL_S", 0.01)
        monkeypatch.setattr(orchestrator, "farm_session", lambda *_: contextlib.nullcontext())

    @contextlib.asynccontextmanager
    async def launcher(self) -> AsyncIterator[Run]:
        """One launcher's life."""
        state = open_run_directory(self.recipe, self.paths)
        config = DataManagerConfig(
            database=self.paths.database,
            images=self.paths.images,
            socket=self.paths.data_socket,
            task_folder=self.recipe.tasks.task_folder,
        )
        catalog = SuiteCatalog(config.task_folder)
        store = TrajectoryStore.open(config.database, catalog.split_of)
        app = create_app(DataManager(store, open_images(config.images), catalog, config))
        async with app.router.lifespan_context(app):
            client = DataManagerClient(
                config.socket, config.images, transport=httpx.ASGITransport(app), retry_timeout_s=0, assignment_wait_s=0
            )
            progress = Progress(Console(file=self.printed, highlight=False, width=400))
            run = Run(self.recipe, self.paths, state, progress, FakeLauncher(self, client), client)

            async def served(recipe: Recipe, paths: RunPaths) -> list[int]:
                newest = await client.latest_version()
                return [] if newest is None else [newest.version]

            self._monkeypatch.setattr(components, "served_versions", served)
            yield run
        store.close()

    async def run(self, *, crashes_before_marking: str | None = None) -> PairedEvaluation | None:
        """The whole run, or up to where the launcher dies."""
        save = RunState.save

        def save_or_die(state: RunState, path: Path) -> None:
            if crashes_before_marking in state.stages_s:
                raise SimulatedCrash
            save(state, path)

        with self._monkeypatch.context() as patched:
            patched.setattr(RunState, "save", save_or_die)
            async with self.launcher() as run:
                return await run.run_stages()
