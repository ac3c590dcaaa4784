"""Every desktop keeps the same promises: the scripted fake, the simulated farm, and live desktops."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from PIL import Image
from served_farm import served_farm

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.env import DartOSWorldEnv
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.testing.conformance import ConformanceError, check_desktop
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.types import Action, ActionType, Desktop, EndReason, Frame, Outcome, RgbImage
from dart_server.wire import DesktopShape, FrameSpec, InputEvent, MoveEvent, SettleSpec

SHAPE = DesktopShape(resolution=(640, 400))
NOTE = "/tmp/note.txt"


@dataclass
class NoteTask:
    """Needs no application: the note that the setup wrote must hold "solved"."""

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
    async with await AsyncFarmClient.connect(url) as farm:
        await farm.lease(SHAPE, wait_s=240)


LIVE = (
    pytest.param("live", marks=pytest.mark.desktop),
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("libvirt", marks=pytest.mark.libvirt),
)


@pytest.fixture(params=["fake", "sim", *LIVE])
async def desktop(request: pytest.FixtureRequest) -> AsyncIterator[Desktop]:
    if request.param == "fake":
        yield FakeDesktop(SHAPE.resolution)
        return
    url = request.getfixturevalue(f"{request.param}_farm")
    async with await AsyncFarmClient.connect(url) as farm:
        yield await farm.lease(SHAPE)


async def test_a_desktop_keeps_its_promises(desktop: Desktop, request: pytest.FixtureRequest) -> None:
    runs_programs = "sim" not in request.node.name
    await check_desktop(desktop, programs=runs_programs)


async def test_the_suite_notices_broken_promises() -> None:
    class Careless(FakeDesktop):
        async def step(self, events: list[InputEvent], settle: SettleSpec | None = None, **_options: object) -> Frame:
            frame = await super().step(events, settle)
            return Frame(frame.image[:, :-1], frame.header)

        async def read_file(self, path: str) -> bytes | None:
            return (await super().read_file(path) or b"").replace(b"\n", b"\r\n")

    with pytest.raises(ConformanceError) as broken:
        await check_desktop(Careless())
    assert broken_by(broken.value) == {
        "frames_have_the_screen_size",
        "a_format_without_loss_shows_the_very_pixels",
        "a_format_with_losses_shows_nearly_the_pixels",
        "no_picture_comes_when_none_is_asked_for",
        "the_cursor_is_drawn_only_when_it_is_asked_for",
        "every_kind_of_event_is_taken",
        "files_come_back_as_they_went",
        "a_missing_file_is_none",
    }


def broken_by(error: ConformanceError) -> set[str]:
    """The promises that a desktop broke."""
    return {line.split(":")[0] for line in str(error).splitlines()}


Wrong = Callable[[Frame, FrameSpec], Frame]


def pixels(change: Callable[[RgbImage, FrameSpec], object]) -> Wrong:
    """A frame whose picture is changed in place."""

    def wrong(frame: Frame, spec: FrameSpec) -> Frame:
        change(frame.image, spec)
        return frame

    return wrong


def one_pixel(image: RgbImage, spec: FrameSpec) -> None:
    if spec.encoding == "webp":
        image[9, 9] ^= 1


def swapped(image: RgbImage, spec: FrameSpec) -> None:
    if spec.encoding in ("png", "webp", "jpeg"):
        image[:] = image[..., ::-1].copy()


def blot(image: RgbImage, spec: FrameSpec) -> None:
    if spec.cursor:
        image[:4, :4] = 0


def always_drawn(image: RgbImage, _: FrameSpec) -> None:
    height, width = image.shape[:2]
    image[height // 2 :, width // 2 :] = 16


@pytest.mark.parametrize(
    ("wrong", "promises"),
    [
        (pixels(one_pixel), {"a_format_without_loss_shows_the_very_pixels"}),
        (
            pixels(swapped),
            {"a_format_without_loss_shows_the_very_pixels", "a_format_with_losses_shows_nearly_the_pixels"},
        ),
        (pixels(blot), {"the_cursor_is_drawn_only_when_it_is_asked_for"}),
        (pixels(always_drawn), {"the_cursor_is_drawn_only_when_it_is_asked_for"}),
    ],
)
async def test_the_suite_notices_wrong_pictures(wrong: Wrong, promises: set[str]) -> None:
    class Wrongly(FakeDesktop):
        async def step(
            self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
        ) -> Frame:
            return wrong(await super().step(events, settle, frame=frame), frame or FrameSpec())

    with pytest.raises(ConformanceError) as broken:
        await check_desktop(Wrongly())
    assert broken_by(broken.value) == promises


async def takes_snapshots(farm: AsyncFarmClient) -> bool:
    return (await farm.view()).capabilities["memory_snapshot"]


@pytest.fixture(params=["sim", *LIVE])
def farm_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_farm")
    return url


@pytest.fixture(params=LIVE)
def live_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_farm")
    return url


def colours(width: int, height: int) -> RgbImage:
    """A picture [H, W, 3] in which no two colours of a pixel are alike and neighbours are nearly so."""
    rows, columns = np.mgrid[0:height, 0:width]
    bands = [columns * 255 // width, rows * 255 // height, 255 - (rows + columns) * 255 // (width + height)]
    return np.stack(bands, axis=2).astype(np.uint8)


async def test_frames_of_every_format_are_the_picture_on_the_screen(live_url: str) -> None:
    """The suite compares frames with each other; here it is known what is on the screen."""
    picture = colours(*SHAPE.resolution)
    Image.fromarray(picture).save(file := io.BytesIO(), "PNG")
    async with await AsyncFarmClient.connect(live_url) as farm:
        lease = await farm.lease(SHAPE)
        await lease.write_file("/tmp/colours.png", file.getvalue())
        reply = await lease.guest("POST", "/setup/change_wallpaper", json={"path": "/tmp/colours.png"})
        assert reply.status == 200, reply.content
        await lease.step([MoveEvent(x=320, y=200)])
        for spec in (FrameSpec(), FrameSpec(encoding="png"), FrameSpec(encoding="webp", quality=100)):
            frame = await lease.step([], frame=spec)
            assert frame.header.encoding == spec.encoding
            assert np.array_equal(frame.image, picture), spec
        jpeg = (await lease.step([], frame=FrameSpec(encoding="jpeg", quality=90))).image
        assert 0 < np.abs(jpeg.astype(int) - picture).mean() < 2
        pointed = (await lease.step([], frame=FrameSpec(encoding="png", cursor=True))).image
        rows, columns = np.nonzero((pointed != picture).any(axis=2))
        assert 0 < len(rows) < 48 * 48
        assert np.hypot(columns - 320, rows - 200).max() < 48
        shot = await lease.guest("GET", "/screenshot")
        with Image.open(io.BytesIO(shot.content)) as shown:
            assert np.array_equal(np.asarray(shown.convert("RGB")), pointed), "OSWorld's screenshots have the pointer"


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
    async with await AsyncFarmClient.connect(farm_url) as farm:
        lease = await farm.lease(SHAPE)
        for _ in range(2):
            assert await lease.read_file("/tmp/left") is None
            await lease.write_file("/tmp/left", b"dirt")
            fencing_token = lease.fencing_token
            await lease.reset()
            assert lease.fencing_token > fencing_token
        assert (await lease.health()).alive


async def test_a_snapshot_brings_a_desktop_back(farm_url: str) -> None:
    async with await AsyncFarmClient.connect(farm_url) as farm:
        if not await takes_snapshots(farm):
            pytest.skip("this farm's provider declares no memory_snapshot")
        lease = await farm.lease(SHAPE)
        await lease.write_file("/tmp/kept", b"before")
        view = await lease.snapshot(name="here")
        await lease.write_file("/tmp/kept", b"after")
        fencing_token = lease.fencing_token
        await lease.reset(snapshot_id=view.snapshot_id)
        assert lease.fencing_token > fencing_token
        assert await lease.read_file("/tmp/kept") == b"before"
        await lease.reset()
        assert await lease.read_file("/tmp/kept") is None
        await farm.delete_snapshot(view.snapshot_id)


@pytest.mark.parametrize("publish", [True, False])
async def test_episodes_start_from_the_prepared_state(farm_url: str, publish: bool) -> None:
    task = NoteTask(id=f"contract/note/{publish}/{uuid.uuid4().hex}", publish_setup=publish)
    async with await AsyncFarmClient.connect(farm_url) as farm:
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
    task = NoteTask(id=f"contract/note/group/{uuid.uuid4().hex}")  # another run of this test finds nothing prepared
    async with await AsyncFarmClient.connect(farm_url) as farm:
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
