"""What every `WorkSource` must do, run against the data manager's client over its real application, and against a list.

Another source (an external queue, a list) joins by one more entry in `SOURCES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import PhaseSpec, TaskSelection
from dart_agent.errors import StoreError
from dart_agent.rollouts.work_sources import InMemoryWorkSource
from dart_agent.types import Purpose, SamplingParams, WorkItem, WorkSource
from dart_envs.hashing import image_sha256
from dart_train.data_manager.app import create_app
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.service import DataManager
from dart_train.data_manager.store.trajectories import TrajectoryStore

TASKS = [f"s/tick/{number}" for number in range(4)]


class OneSplit:
    """A catalog in which every task of `TASKS` is a training task."""

    def split_of(self, task_id: str) -> str:
        return {task: "train" for task in TASKS}[task_id]

    def select(self, selection: TaskSelection) -> list[str]:
        return TASKS


@asynccontextmanager
async def data_manager_client(root: Path) -> AsyncIterator[DataManagerClient]:
    config = DataManagerConfig(database=root / "data.db", images=root / "images", socket=root / "data.sock")
    store = TrajectoryStore.open(config.database, OneSplit().split_of)
    app = create_app(DataManager(store, ImageStore(config.images), OneSplit(), config))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with DataManagerClient(
            config.socket, config.images, transport=transport, retry_timeout_s=0, assignment_wait_s=0
        ) as client:
            spec = PhaseSpec(name="eval", purpose=Purpose.EVAL, task_ids=TASKS, rollouts_per_task=2, max_steps=3)
            await client.start_phase(spec)
            yield client
    store.close()


@asynccontextmanager
async def list_source(root: Path) -> AsyncIterator[InMemoryWorkSource]:
    yield InMemoryWorkSource(
        WorkItem(f"roll_{number}_{repeat}", f"grp_{number}", task, Purpose.EVAL, SamplingParams(), 3, "eval")
        for number, task in enumerate(TASKS)
        for repeat in range(2)
    )


Opened = Callable[[Path], AbstractAsyncContextManager[WorkSource]]
SOURCES: dict[str, Opened] = {"data-manager": data_manager_client, "list": list_source}
KEEPS_IMAGES = {"data-manager"}
"""Sources that store what is reported; the others only hand it on."""


@pytest.fixture(params=SOURCES)
async def source(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WorkSource]:
    """A source with eight rollouts: four tasks, two repeats."""
    async with SOURCES[request.param](tmp_path) as opened:
        yield opened


async def test_every_rollout_is_handed_out_once(source: WorkSource) -> None:
    items = await asyncio.gather(*(source.acquire(f"w{index}") for index in range(8)))
    assert len({item.rollout_id for item in items if item is not None}) == 8
    assert await source.acquire("w") is None


async def test_what_is_given_back_is_handed_out_again(source: WorkSource) -> None:
    item = await source.acquire("w1")
    assert item is not None
    await source.abandon(item, "no desktop")
    rest = [await source.acquire("w2") for _ in range(8)]
    again = [other for other in rest if other is not None and other.rollout_id == item.rollout_id]
    assert len(again) == 1
    if item.assignment:
        assert again[0].assignment != item.assignment
        await source.abandon(item, "no desktop")  # a repeat after a lost reply
        assert await source.acquire("w3") is None


async def test_a_report_may_be_repeated(source: WorkSource) -> None:
    item = await source.acquire("w1")
    assert item is not None
    image = fake_image(1)
    trajectory, images = fake_trajectory(item, image=image)
    await source.report(trajectory, images)
    await source.report(trajectory, images)
    await source.abandon(item, "too late")
    rest = [await source.acquire("w2") for _ in range(8)]
    assert item.rollout_id not in {other.rollout_id for other in rest if other is not None}


@pytest.mark.parametrize("source", sorted(KEEPS_IMAGES), indirect=True)
async def test_images_must_be_what_they_are_called(source: WorkSource) -> None:
    item = await source.acquire("w1")
    assert item is not None
    trajectory, _ = fake_trajectory(item, image=fake_image(1))
    with pytest.raises(StoreError):
        await source.report(trajectory, {image_sha256(fake_image(1)): fake_image(2)})
    with pytest.raises(StoreError):
        await source.report(trajectory, {})


async def test_a_trajectory_of_a_rollout_that_was_never_handed_out_is_refused(source: WorkSource) -> None:
    item = await source.acquire("w1")
    assert item is not None
    trajectory, images = fake_trajectory(replace(item, rollout_id="roll_made_up"))
    with pytest.raises(StoreError):
        await source.report(trajectory, images)
