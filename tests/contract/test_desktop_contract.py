"""Every desktop keeps the same promises: the scripted fake, the simulated farm, and live desktops."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env
from served_farm import served_farm

from dart_envs.check import ConformanceError, check_desktop
from dart_envs.core import AsyncDesktopEnv
from dart_envs.env import DartOSWorldEnv
from dart_envs.fake import ScriptedDesktop
from dart_envs.farm.client import AsyncFarm
from dart_envs.types import Action, ActionType, Desktop, EndReason, Frame, Outcome
from dart_envs.vector import DartVectorEnv
from dart_server.wire import DesktopShape, InputEvent, SettleSpec

SHAPE = DesktopShape(resolution=(640, 400))
NOTE = "/tmp/note.txt"


@dataclass
class NoteTask:
    """Needs no application: the note that the set-up wrote must hold "solved"."""

    id: str = "contract/note/0000"
    instruction: str = "Solve the note."
    max_steps: int = 5
    publish_setup: bool = True
    prepared: int = 0

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        return hashlib.sha256(f"{image_digest} {shape} {self.id}".encode()).hexdigest()

    async def prepare(self, desktop: Desktop) -> None:
        self.prepared += 1
        await desktop.write_file(NOTE, b"open")

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        return Outcome(float(await desktop.read_file(NOTE) == b"solved"))

    async def oracle(self, desktop: Desktop, *, step: int = 0) -> Sequence[Action]:
        return [Action(ActionType.DONE)][step:]


@pytest.fixture(scope="module")
def sim_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("sim"), provider="sim") as url:
        yield url


@pytest.fixture(scope="module")
def live_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("live")) as url:
        yield url


@pytest.fixture(scope="module")
def docker_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("docker"), provider="docker", max_desktops=6) as url:
        yield url


@pytest.fixture(scope="module")
def libvirt_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its first desktop boots, which takes long where machines are emulated; the tests find its snapshot."""
    environment = {"DART_DESKTOP_MEMORY_MIB": "768", "DART_DESKTOP_DISK_MIB": "256"}
    with (
        tempfile.TemporaryDirectory(prefix="dart-test-") as place,
        served_farm(Path(place), provider="libvirt", environment=environment) as url,
    ):
        # Module fixtures of asynchronous tests are made inside a running loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(booted(url))).result()
        yield url


async def booted(url: str) -> None:
    async with await AsyncFarm.connect(url) as farm:
        await farm.lease(SHAPE, wait_s=240)


LIVE = (
    pytest.param("live", marks=pytest.mark.desktop),
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("libvirt", marks=pytest.mark.libvirt),
)


@pytest.fixture(params=["fake", "sim", *LIVE])
async def desktop(request: pytest.FixtureRequest) -> AsyncIterator[Desktop]:
    if request.param == "fake":
        yield ScriptedDesktop(SHAPE.resolution)
        return
    url = request.getfixturevalue(f"{request.param}_farm")
    async with await AsyncFarm.connect(url) as farm:
        yield await farm.lease(SHAPE)


async def test_a_desktop_keeps_its_promises(desktop: Desktop, request: pytest.FixtureRequest) -> None:
    runs_programs = "sim" not in request.node.name
    await check_desktop(desktop, programs=runs_programs)


async def test_the_suite_notices_broken_promises() -> None:
    class Careless(ScriptedDesktop):
        async def step(self, events: list[InputEvent], settle: SettleSpec | None = None, **_options: object) -> Frame:
            frame = await super().step(events, settle)
            return Frame(frame.image[:, :-1], frame.header)

        async def read_file(self, path: str) -> bytes | None:
            return (await super().read_file(path) or b"").replace(b"\n", b"\r\n")

    with pytest.raises(ConformanceError) as broken:
        await check_desktop(Careless())
    failed = {line.split(":")[0] for line in str(broken.value).splitlines()}
    assert failed == {
        "frames_have_the_screen_size",
        "every_kind_of_event_is_taken",
        "files_come_back_as_they_went",
        "a_missing_file_is_none",
    }


async def takes_snapshots(farm: AsyncFarm) -> bool:
    return (await farm.view()).capabilities["memory_snapshot"]


@pytest.fixture(params=["sim", *LIVE])
def farm_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_farm")
    return url


@pytest.mark.filterwarnings("ignore:.*Not able to test alternative render modes.*")
def test_check_env_passes(farm_url: str) -> None:
    import gymnasium as gym

    made = gym.make(
        "DartOSWorld-v0",
        task=NoteTask(),
        farm=farm_url,
        resolution=SHAPE.resolution,
        render_mode="rgb_array",
        max_steps=5,
    )
    try:
        check_env(made.unwrapped)
    finally:
        made.close()


async def test_a_reset_gives_an_untouched_desktop(farm_url: str) -> None:
    async with await AsyncFarm.connect(farm_url) as farm:
        lease = await farm.lease(SHAPE)
        for _ in range(2):
            assert await lease.read_file("/tmp/left") is None
            await lease.write_file("/tmp/left", b"dirt")
            fence = lease.fence
            await lease.reset()
            assert lease.fence > fence
        assert (await lease.health()).alive


async def test_a_snapshot_brings_a_desktop_back(farm_url: str) -> None:
    async with await AsyncFarm.connect(farm_url) as farm:
        if not await takes_snapshots(farm):
            pytest.skip("this farm's provider declares no memory_snapshot")
        lease = await farm.lease(SHAPE)
        await lease.write_file("/tmp/kept", b"before")
        view = await lease.snapshot(name="here")
        await lease.write_file("/tmp/kept", b"after")
        fence = lease.fence
        await lease.reset(snapshot_id=view.snapshot_id)
        assert lease.fence > fence
        assert await lease.read_file("/tmp/kept") == b"before"
        await lease.reset()
        assert await lease.read_file("/tmp/kept") is None
        await farm.delete_snapshot(view.snapshot_id)


@pytest.mark.parametrize("publish", [True, False])
async def test_episodes_start_from_the_prepared_state(farm_url: str, publish: bool) -> None:
    task = NoteTask(id=f"contract/note/{publish}", publish_setup=publish)
    async with await AsyncFarm.connect(farm_url) as farm:
        async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
            for solved in (1.0, 0.0):
                observation, _ = await env.reset(task)
                assert observation.screenshot.shape == (400, 640, 3)
                assert env.lease is not None
                assert await env.lease.read_file(NOTE) == b"open"
                assert (await env.step(Action(ActionType.MOVE, x=5, y=5))).end is None
                if solved:
                    await env.lease.write_file(NOTE, b"solved")
                result = await env.step(Action(ActionType.DONE))
                assert (result.end, result.reward) == (EndReason.DONE, solved)
        assert task.prepared == (1 if publish and await takes_snapshots(farm) else 2)
        assert (await farm.view()).leases_active == 0


async def test_a_group_is_prepared_once(farm_url: str) -> None:
    task = NoteTask(id="contract/note/group")
    async with await AsyncFarm.connect(farm_url) as farm:
        envs = [AsyncDesktopEnv(farm, shape=SHAPE) for _ in range(3)]
        await asyncio.gather(*(env.reset(task) for env in envs))
        assert task.prepared == (1 if await takes_snapshots(farm) else 3)
        await asyncio.gather(*(env.aclose() for env in envs))


def test_a_desktop_env_with_all_observations(farm_url: str) -> None:
    env = DartOSWorldEnv(
        NoteTask(), farm=farm_url, resolution=SHAPE.resolution, observation=("screenshot", "a11y", "terminal")
    )
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space
    env.close()


def test_the_vector_env_steps_desktops_side_by_side(farm_url: str) -> None:
    envs = DartVectorEnv(2, NoteTask(max_steps=2), farm=farm_url, resolution=SHAPE.resolution)
    try:
        observations, _ = envs.reset(seed=3)
        assert observations in envs.observation_space
        move = Action(ActionType.MOVE, x=4, y=4)
        *_, truncated, infos = envs.step([move, move])
        assert not truncated.any()
        *_, truncated, infos = envs.step([move, move])
        assert truncated.all()
        assert list(infos["end"]) == ["max_steps"] * 2
        envs.send([move], [1])
        observations, *_, ids = envs.recv()
        assert ids.tolist() == [1]
        assert observations["screenshot"].shape == (1, 400, 640, 3)
    finally:
        envs.close()
