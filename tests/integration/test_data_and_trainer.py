"""Fake rollouts -> data manager process -> trainer process -> published versions; and what a SIGKILL of either costs: nothing stored.

The rollouts are made up (`dart_agent.data_client.fake_trajectories`), the processes, the store, the model and the weights are real.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.wire import BatchReport, PhaseSpec, TaskSelection
from dart_agent.types import Purpose, WorkItem
from dart_train.data_manager.store.database import open_engine
from dart_train.data_manager.store.models import BatchTable, GroupTable
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.model.init_model import init_model
from dart_train.model.policy_model import load_model
from dart_train.run.paths import RunPaths

START_S = 60.0
GROUP_SIZE = 4


class Run:
    """A run directory with its two processes and a client."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.make()
        init_model("tiny", self.paths.initial_model, seed=1)
        self.image_token = load_model(self.paths.initial_model).model.config.image_token_id
        self.client = DataManagerClient(
            self.paths.data_socket, self.paths.images, retry_timeout_s=START_S, assignment_wait_s=0
        )
        self.reported = 0

    def write(self, name: str, config: dict[str, Any]) -> Path:
        path = self.paths.configs / name
        path.write_text(json.dumps(config))
        return path

    async def start(self, module: str, config: Path) -> asyncio.subprocess.Process:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        log = (self.paths.logs / f"{module}.log").open("ab")
        argv = (sys.executable, "-m", module, "--config", str(config))
        try:
            return await asyncio.create_subprocess_exec(*argv, env=environment, stdout=log, stderr=log)
        finally:
            log.close()

    async def data_manager(self) -> asyncio.subprocess.Process:
        config = {
            "database": str(self.paths.database),
            "images": str(self.paths.images),
            "socket": str(self.paths.data_socket),
            "batch": {"min_groups": 2, "max_groups": 2, "max_staleness": 1, "max_ready_groups": 6},
        }
        return await self.start("dart_train.data_manager", self.write("data.json", config))

    async def trainer(self, updates: int, **changes: Any) -> asyncio.subprocess.Process:
        config = {
            "socket": str(self.paths.data_socket),
            "images": str(self.paths.images),
            "weights": str(self.paths.weights),
            "checkpoints": str(self.paths.checkpoints),
            "metrics": str(self.paths.metrics),
            "start_model": str(self.paths.initial_model),
            "max_updates": updates,
            "keep_weights": 50,
            "loss": {"tis_cap": 2.0},
        }
        return await self.start("dart_train.trainer", self.write("trainer.json", config | changes))

    async def begin(self) -> None:
        await self.client.start_phase(
            PhaseSpec(
                name="train",
                purpose=Purpose.TRAIN,
                select=TaskSelection(split="train"),
                rollouts_per_task=GROUP_SIZE,
                max_steps=3,
                endless=True,
            )
        )

    async def run_rollout(self, item: WorkItem, version: int, reward: float) -> None:
        image = fake_image(self.reported, 64, 64)
        prompt = (300, *[self.image_token] * 4, 301, 302)
        trajectory, images = fake_trajectory(
            item, reward=reward, version=version, prompt_ids_P=prompt, image=image, steps=2
        )
        await self.client.report(trajectory, images)
        self.reported += 1

    async def group(self, version: int) -> str | None:
        """Run one whole group in which one rollout succeeds; None when there is nothing to do right now."""
        group_id = None
        for index in range(GROUP_SIZE):
            item = await self.client.acquire("fake worker")
            if item is None:
                await asyncio.sleep(0.05)
                return None
            await self.run_rollout(item, version, float(index == 0))
            group_id = item.group_id
        return group_id

    async def drain(self, version: int) -> int:
        """Take and finish batches at a trainer version until there is none; returns how many there were."""
        taken = 0
        while (batch := (await self.client.next_batch(version, wait_s=0)).batch) is not None:
            await self.client.batch_done(batch.batch_id, BatchReport(version=version + 1))
            taken += 1
        return taken

    async def newest(self) -> int:
        latest = await self.client.latest_version()
        return -1 if latest is None else latest.version

    async def play_until(self, version: int) -> None:
        """Run rollouts with the newest published policy until `version` is published."""
        while (newest := await self.newest()) < version:
            await self.group(max(newest, 0))

    def batches(self) -> list[tuple[str, int | None]]:
        """State and resulting version of every batch, read while the others work."""
        reader = TrajectoryStore(open_engine(self.paths.database, read_only=True), lambda task_id: "train")
        with reader.begin() as session:
            rows = session.scalars(select(BatchTable).order_by(BatchTable.seq)).all()
            found = [(row.state, row.version) for row in rows]
        reader.close()
        return found

    def groups(self, ids: list[str | None]) -> set[tuple[str, str | None]]:
        """States and reasons of some groups."""
        reader = TrajectoryStore(open_engine(self.paths.database, read_only=True), lambda task_id: "train")
        with reader.begin() as session:
            rows = session.scalars(select(GroupTable).where(GroupTable.group_id.in_(ids))).all()
            found = {(row.state, row.reason) for row in rows}
        reader.close()
        return found

    def log(self) -> str:
        return "\n".join(path.read_text() for path in self.paths.logs.iterdir())


@asynccontextmanager
async def ended(*processes: asyncio.subprocess.Process) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short private place for the socket, which a killed data manager leaves."""
    with tempfile.TemporaryDirectory(prefix="dart-data-") as place:
        monkeypatch.setenv("DART_RUNTIME_DIR", place)
        yield Path(place)


@pytest.fixture
async def run(tmp_path: Path, runtime_dir: Path) -> AsyncIterator[Run]:
    made = Run(tmp_path / "run")
    assert made.paths.data_socket.parent == runtime_dir
    yield made
    await made.client.aclose()


@pytest.mark.timeout(180)
async def test_a_killed_data_manager_loses_nothing_it_stored(run: Run) -> None:
    first = await run.data_manager()
    async with ended(first):
        await run.begin()
        await run.group(0)
        held = await run.client.acquire("fake worker")
        assert held is not None
        before = await run.client.stats()
        trainer = await run.trainer(updates=2)
        first.send_signal(signal.SIGKILL)
        await first.wait()
    second = await run.data_manager()
    async with ended(second, trainer):
        assert await run.client.stats() == before
        await run.run_rollout(held, 0, 1.0)
        assert (await run.client.stats()).trajectories == before.trajectories + 1
        await run.play_until(2)
        assert await asyncio.wait_for(trainer.wait(), START_S) == 0, run.log()
        stats = await run.client.stats()
        assert stats.trajectories == run.reported
        assert run.batches()[:2] == [("done", 1), ("done", 2)]


@pytest.mark.timeout(180)
async def test_rollouts_become_versions_through_a_killed_trainer_and_stale_ones_do_not(run: Run) -> None:
    data = await run.data_manager()
    async with ended(data):
        await run.begin()
        first = await run.trainer(updates=4)
        async with ended(first):
            await run.play_until(2)
            first.send_signal(signal.SIGKILL)
            await first.wait()
        for _ in range(2):
            await run.group(await run.newest())
        second = await run.trainer(updates=4)
        async with ended(second):
            await run.play_until(4)
            assert await asyncio.wait_for(second.wait(), START_S) == 0, run.log()
        assert run.batches()[:4] == [("done", version) for version in range(1, 5)]
        lines = [json.loads(line) for line in run.paths.metrics.read_text().splitlines()]
        told = [line["version"] for line in lines]
        assert told in ([1, 2, 3, 4], [1, 3, 4]), (
            "the trainer may be killed after it published version 2 and before it wrote of it"
        )
        assert all(line["staleness_max"] <= 1 for line in lines)
        old, new = (load_model(run.paths.weights / f"v{version}").model.state_dict() for version in (1, 4))
        assert any(not old[name].equal(new[name]) for name in old)
        assert not list(run.paths.weights.glob(".*"))
        await run.drain(4)
        stale = [await run.group(version=1) for _ in range(2)]
        assert await run.drain(4) == 0
        assert run.groups(stale) == {("dropped", "stale")}
        assert (await run.client.stats()).trajectories == run.reported
        data.terminate()
        assert await asyncio.wait_for(data.wait(), START_S) == 0, run.log()
    assert not run.paths.data_socket.exists()


@pytest.mark.timeout(60)
async def test_a_second_data_manager_on_the_same_store_is_refused(run: Run) -> None:
    data = await run.data_manager()
    async with ended(data):
        await run.newest()
        second = await run.data_manager()
        assert await asyncio.wait_for(second.wait(), START_S) == 2
        assert "another data manager" in run.log()
        assert await run.newest() == -1
