"""The data manager behind HTTP: refusals are sentences, waits end, clients survive an absence."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from data_manager_harness import DataManagerHarness
from pydantic import BaseModel
from settable_clock import SettableClock

from dart_agent.data_client.client import DataManagerClient, DataManagerError
from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.image_store import BlobStorage, ImageStore
from dart_agent.data_client.payloads import TrajectoryPayload, stream_payloads
from dart_agent.data_client.wire import AssignmentReply, PhaseSpec, StoreStepRequest, TaskSelection, VersionRecord
from dart_agent.errors import StoreUnavailableError
from dart_agent.rollouts.episode_state import EpisodeState
from dart_agent.types import Purpose
from dart_envs.types import RgbImage
from dart_train.data_manager.__main__ import main
from dart_train.data_manager.app import create_app

TRAIN = PhaseSpec(
    name="train",
    purpose=Purpose.TRAIN,
    select=TaskSelection(suite="s", split="train"),
    rollouts_per_task=2,
    max_steps=3,
    endless=True,
)


@asynccontextmanager
async def client_of(harness: DataManagerHarness) -> AsyncIterator[DataManagerClient]:
    app = create_app(harness.manager)
    client = DataManagerClient(harness.config.socket, harness.images, transport=httpx.ASGITransport(app))
    async with app.router.lifespan_context(app), client:
        yield client


async def play_group(client: DataManagerClient) -> None:
    for reward in (1.0, 0.0):
        item = await client.acquire("w1")
        assert item is not None
        await client.report(*fake_trajectory(item, reward=reward))


async def test_refusals_arrive_as_sentences(harness: DataManagerHarness) -> None:
    async with client_of(harness) as client:
        with pytest.raises(DataManagerError, match="there is no phase 'nope'") as refused:
            await client.phase("nope")
        assert refused.value.status == 409
        with pytest.raises(DataManagerError, match="test split"):
            await client.start_phase(TRAIN.model_copy(update={"select": TaskSelection(suite="s", split="test")}))
        with pytest.raises(DataManagerError, match="limit") as invalid:
            _ = [item async for item in client.trajectories("train", page=10_000)]
        assert invalid.value.status == 422


@pytest.mark.parametrize("path", ["/work/assign", "/rollouts/steps", "/trajectories"])
async def test_a_malformed_body_of_a_hot_route_is_told(harness: DataManagerHarness, path: str) -> None:
    transport = httpx.ASGITransport(create_app(harness.manager))
    async with httpx.AsyncClient(transport=transport, base_url="http://data") as http:
        reply = await http.post(path, content=b'{"worker_id": 1}')
    assert reply.status_code == 422
    assert "Field required" in reply.json()["detail"]


async def test_a_hot_route_tells_that_the_database_is_away(
    harness: DataManagerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object, **kwargs: object) -> None:
        raise StoreUnavailableError("the trajectory database cannot be used now")

    monkeypatch.setattr(harness.manager, "assign", away)
    transport = httpx.ASGITransport(create_app(harness.manager))
    async with httpx.AsyncClient(transport=transport, base_url="http://data") as http:
        reply = await http.post("/work/assign", json={"worker_id": "w1", "request_id": "12345678"})
    assert (reply.status_code, reply.json()["error"]) == (503, "unavailable")


async def test_a_locked_file_holds_up_only_the_request_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = DataManagerHarness(tmp_path)
    loop, off_loop, assign = asyncio.get_running_loop(), asyncio.Event(), harness.manager.assign

    def watched(*args: Any, **kwargs: Any) -> AssignmentReply:
        if threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(off_loop.set)
        return assign(*args, **kwargs)

    monkeypatch.setattr(harness.manager, "assign", watched)
    with closing(sqlite3.connect(tmp_path / "data.db", isolation_level=None)) as other:
        async with client_of(harness) as client:
            await client.start_phase(TRAIN)
            taken = set()
            for _ in range(2):  # the second time, the connection has waited long before
                other.execute("BEGIN IMMEDIATE")
                off_loop.clear()
                waiting = asyncio.create_task(client.acquire("w1"))
                await asyncio.wait_for(off_loop.wait(), 5.0)
                assert not waiting.done()
                other.execute("ROLLBACK")
                item = await asyncio.wait_for(waiting, 5.0)
                assert item is not None
                taken.add(item.rollout_id)
            stats = await client.stats()
    harness.store.close()
    assert len(taken) == 2
    assert stats.rollouts["assigned"] == 2


async def test_a_waiting_trainer_wakes_when_the_last_rollout_is_reported(harness: DataManagerHarness) -> None:
    async with client_of(harness) as client:
        await client.start_phase(TRAIN)
        await play_group(client)
        waiting = asyncio.create_task(client.next_batch(0, wait_s=30.0))
        await asyncio.sleep(0)
        await play_group(client)
        reply = await asyncio.wait_for(waiting, 4.0)
        assert reply.batch is not None
        assert len(reply.batch.rows) == 8


async def test_a_waiting_trainer_is_let_go_when_training_is_over(harness: DataManagerHarness) -> None:
    async with client_of(harness) as client:
        await client.start_phase(TRAIN)
        waiting = asyncio.create_task(client.next_batch(0, wait_s=30.0))
        await asyncio.sleep(0)
        await client.stop_phase("train")
        reply = await asyncio.wait_for(waiting, 4.0)
        assert (reply.batch, reply.training_active) == (None, False)


async def test_a_waiting_worker_gets_work_the_moment_there_is_some(harness: DataManagerHarness) -> None:
    async with client_of(harness) as client:
        waiting = asyncio.create_task(client.acquire("w1"))
        await asyncio.sleep(0)
        await client.start_phase(TRAIN)
        item = await asyncio.wait_for(waiting, 1.5)
        assert item is not None
        assert item.phase == "train"


async def test_phases_that_are_active_are_listed_until_they_are_stopped(harness: DataManagerHarness) -> None:
    async with client_of(harness) as client:
        assert await client.active_phases() == []
        await client.start_phase(TRAIN)
        other = TRAIN.model_copy(update={"name": "another"})
        await client.start_phase(other)
        assert [view.name for view in await client.active_phases()] == ["train", "another"]
        await client.stop_phase("train")
        (left,) = await client.active_phases()
        assert left == await client.phase("another")


async def test_versions_are_kept_by_number(harness: DataManagerHarness) -> None:
    async with client_of(harness) as client:
        assert await client.latest_version() is None
        for version in (0, 2, 1, 1):
            await client.publish_version(VersionRecord(version=version, path=f"/weights/v{version}"))
        assert await client.latest_version() == VersionRecord(version=2, path="/weights/v2")
        assert await client.held_version() is None
        with pytest.raises(DataManagerError, match="another path"):
            await client.publish_version(VersionRecord(version=2, path="/elsewhere"))


async def test_trajectories_are_paged_through(harness: DataManagerHarness) -> None:
    async with client_of(harness) as client:
        await client.start_phase(TRAIN)
        for _ in range(3):
            await play_group(client)
        found = [trajectory async for trajectory in client.trajectories("train", page=2)]
        assert len({trajectory.rollout_id for trajectory in found}) == 6


class UnreachableTransport(httpx.AsyncBaseTransport):
    """Refuses `times` connections, then passes on."""

    def __init__(self, times: int, then: httpx.AsyncBaseTransport) -> None:
        self.left = times
        self.then = then

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.left:
            self.left -= 1
            raise httpx.ConnectError("no such socket")
        return await self.then.handle_async_request(request)


async def test_the_client_waits_for_an_absent_data_manager_and_then_gives_up(harness: DataManagerHarness) -> None:
    clock = SettableClock()
    app = create_app(harness.manager)
    async with app.router.lifespan_context(app):
        for times, retry_timeout_s in ((5, 10.0), (10**6, 10.0)):
            transport = UnreachableTransport(times, httpx.ASGITransport(app))
            client = DataManagerClient(
                Path("data.sock"), harness.images, transport=transport, retry_timeout_s=retry_timeout_s, clock=clock
            )
            async with client:
                if times == 5:
                    assert await client.latest_version() is None
                else:
                    with pytest.raises(DataManagerError, match=r"does not answer on data\.sock"):
                        await client.latest_version()


class FlakyImages:
    """Storage of images that does not answer so many times."""

    def __init__(self, images: BlobStorage, fails: int) -> None:
        self.images, self.fails = images, fails

    def put(self, image: RgbImage) -> str:
        if self.fails:
            self.fails -= 1
            raise StoreUnavailableError("the bucket does not answer")
        return self.images.put(image)

    def missing(self, hashes: Iterable[str]) -> list[str]:
        return self.images.missing(hashes)


async def test_the_client_waits_for_absent_storage_of_images_and_then_gives_up(harness: DataManagerHarness) -> None:
    app = create_app(harness.manager)
    async with app.router.lifespan_context(app):
        for fails in (5, 10**6):
            client = DataManagerClient(
                Path("data.sock"),
                cast("BlobStorage", FlakyImages(harness.images, fails)),
                transport=httpx.ASGITransport(app),
                retry_timeout_s=10.0,
                clock=SettableClock(),
            )
            async with client:
                await client.start_phase(TRAIN)
                item = await client.acquire("w1")
                assert item is not None
                trajectory, images = fake_trajectory(item, reward=1.0, image=fake_image(fails))
                if fails == 5:
                    await client.report(trajectory, images)
                    assert harness.images.missing(images) == []
                else:
                    with pytest.raises(StoreUnavailableError, match="bucket does not answer"):
                        await client.report(trajectory, images)


class RemoteImages:
    """Storage of images that answers a look-up once it is released."""

    def __init__(self, images: BlobStorage) -> None:
        self.images = images
        self.asked, self.released = threading.Event(), threading.Event()

    def missing(self, hashes: Iterable[str]) -> list[str]:
        self.asked.set()
        assert self.released.wait(5.0)
        return self.images.missing(hashes)


@pytest.mark.parametrize("path", ["/rollouts/steps", "/trajectories"])
async def test_a_look_up_of_remote_images_holds_up_no_other_request(tmp_path: Path, path: str) -> None:
    harness = DataManagerHarness(tmp_path)
    stored, remote = harness.images, RemoteImages(harness.images)
    harness.images = cast("ImageStore", remote)
    harness.restart()
    harness.phase()
    item = harness.must_acquire()
    trajectory, images = fake_trajectory(item, steps=1, image=fake_image(1))
    body: BaseModel = TrajectoryPayload.from_value(trajectory)
    if path == "/rollouts/steps":
        (step,) = stream_payloads(trajectory.steps_S)
        state = EpisodeState(worker="w1", process="p", started_at_s=1.0, elapsed_s=2.0, reset_s=0.5)
        body = StoreStepRequest(rollout_id=item.rollout_id, assignment=item.assignment, step=step, state=state)
    app = create_app(harness.manager)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://data") as http,
    ):
        storing = asyncio.create_task(http.post(path, content=body.model_dump_json()))
        assert await asyncio.to_thread(remote.asked.wait, 5.0)
        beat = await asyncio.wait_for(http.post("/work/heartbeat", json={"worker_id": "w1"}), 5.0)
        assert beat.json()["count"] == 1
        assert not storing.done()
        remote.released.set()
        refused = await storing
        assert (refused.status_code, "not stored" in refused.text) == (409, True)
        for image in images.values():
            stored.put(image)
        reply = await http.post(path, content=body.model_dump_json())
        assert (reply.status_code, reply.json()["stored"]) == (200, True)
    harness.store.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "`database`: field required"),
        ('{"database": "d", "images": "i", "socket": "s", "batches": 3}', "unknown key `batches`"),
        (
            '{"database": "d", "images": "i", "socket": "s", "batch": {"min_groups": 9}}',
            "min_groups is above max_groups",
        ),
        ("nonsense", "invalid JSON"),
    ],
)
def test_configuration_mistakes_end_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    assert main(["--config", str(path)]) == 2
    assert message in capsys.readouterr().err
    assert main(["--config", str(tmp_path / "none.json")]) == 2
    long = tmp_path / ("x" * 100) / "data.sock"
    path.write_text(f'{{"database": "{tmp_path}/d.db", "images": "{tmp_path}/i", "socket": "{long}"}}')
    assert main(["--config", str(path)]) == 2
    assert "longer than" in capsys.readouterr().err
