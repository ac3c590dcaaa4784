"""`dart-envs demos record` on a live desktop: what is done in the live view becomes a demonstration that earns the same again.

The human is a viewer of this test, on the channel that the page's own viewer uses; where to click it learns from the task's solution.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from dart_envs.demos import read_demonstration
from dart_envs.demos.store import load_screen
from dart_envs.farm import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.tasks import load
from dart_envs.types import Action, ActionType
from dart_train.warmup.screens import read_screens

TASK = "basics/write_line/0000"
VIEW = "test-human-0001"
KEYSYMS = {
    "enter": 0xFF0D,
    "ctrl": 0xFFE3,
    "end": 0xFF57,
    "alt": 0xFFE9,
    "shift": 0xFFE1,
    "tab": 0xFF09,
    "home": 0xFF50,
}
pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, str]]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "DART_RUNTIME_DIR": str(runtime), "DART_PROVIDER": "runc", "PYTHONUNBUFFERED": "1"}
    for name in ("DART_FARM_URL", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        environment.pop(name, None)
    yield environment
    subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], env=environment, check=False, timeout=60)


def dart_envs(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dart_envs.cli.main", *arguments]


class Person:
    """Hands on the live view of a lease, through the farm's own page."""

    def __init__(self, browser: httpx.AsyncClient, lease_id: str, csrf: str, socket: ClientConnection) -> None:
        self._browser, self._lease_id, self._csrf, self._socket = browser, lease_id, csrf, socket

    async def control(self, method: str) -> None:
        path = f"/dashboard/api/leases/{self._lease_id}/control"
        headers = {"x-dart-csrf": self._csrf}
        reply = await self._browser.request(method, path, json={"view": VIEW}, headers=headers)
        assert reply.status_code == 200, reply.text

    async def _pointer(self, buttons: int, x: int, y: int) -> None:
        await self._socket.send(struct.pack(">BBHH", 5, buttons, x, y))
        await asyncio.sleep(0.03)

    async def _key(self, keysym: int, *, down: bool) -> None:
        await self._socket.send(struct.pack(">BBHI", 4, down, 0, keysym))
        await asyncio.sleep(0.01)

    async def do(self, action: Action) -> None:
        """What a hand does for an action, at a hand's pace."""
        if action.type in (ActionType.CLICK, ActionType.DOUBLE_CLICK):
            assert action.x is not None
            assert action.y is not None
            await self._pointer(0, action.x, action.y)
            for _ in range(2 if action.type is ActionType.DOUBLE_CLICK else 1):
                await self._pointer(1, action.x, action.y)
                await self._pointer(0, action.x, action.y)
            return
        if action.type is ActionType.TYPE:
            for letter in action.text:
                await self._key(ord(letter), down=True)
                await self._key(ord(letter), down=False)
            return
        if action.type is ActionType.WAIT:
            await asyncio.sleep(action.duration_s)
            return
        assert action.type is ActionType.KEY, action
        keysyms = [KEYSYMS[key] if len(key) > 1 else ord(key) for key in action.keys]
        for keysym in keysyms:
            await self._key(keysym, down=True)
        for keysym in reversed(keysyms):
            await self._key(keysym, down=False)


@contextlib.asynccontextmanager
async def person_at(address: str) -> AsyncIterator[Person]:
    """Open an address that the command told, as a browser does: its ticket for a session, then the live view."""
    parts = urlsplit(address)
    found = re.fullmatch(r"/leases/(\w+)\?ticket=([\w-]+)", parts.fragment)
    assert found is not None, address
    lease_id, ticket = found.groups()
    origin = f"http://{parts.netloc}"
    async with httpx.AsyncClient(base_url=origin, headers={"origin": origin}, trust_env=False) as browser:
        entered = await browser.post("/dashboard/api/ticket", json={"ticket": ticket})
        assert entered.status_code == 200, entered.text
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        url = f"ws://{parts.netloc}/dashboard/api/leases/{lease_id}/live?view={VIEW}"
        async with connect(url, origin=origin, additional_headers={"cookie": cookie}, proxy=None) as socket:  # type: ignore[arg-type]
            await socket.send(b"RFB 003.008\n\x01\x01")
            for _ in range(4):  # version, kinds of security, its result, the screen's size
                await socket.recv()
            yield Person(browser, lease_id, entered.json()["csrf"], socket)


async def settled(lease: AsyncLease) -> None:
    from dart_envs.envs.settling import RESET_SETTLE

    await lease.step([], RESET_SETTLE)


async def demonstrate(address: str, socket_path: Path) -> None:
    """Solve the task by hand."""
    task = load(TASK)
    async with await AsyncFarmClient.connect(f"unix://{socket_path}") as farm, person_at(address) as human:
        lease = await farm.attach(urlsplit(address).fragment.split("/")[2].partition("?")[0])
        await human.control("POST")
        step = 0
        while plays := await task.resolve_script(lease, step=step):
            action = plays[0].action
            assert isinstance(action, Action)
            if action.type is ActionType.DONE:
                break
            await human.do(action)
            await asyncio.sleep(0.8)  # a human looks at what came of it
            await settled(lease)
            step += 1
        await human.control("DELETE")


def test_a_person_in_the_live_view_makes_a_demonstration_that_earns_the_same_again(
    place: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    recording = subprocess.Popen(
        dart_envs("demos", "record", TASK, str(folder)),
        env=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert recording.stdout is not None
    told = ""
    try:
        while "give the desktop back" not in told:
            line = recording.stdout.readline()
            assert line, told
            told += line
        found = re.search(r"http://\S+", told)
        assert found is not None, told
        asyncio.run(demonstrate(found.group(), Path(place["DART_RUNTIME_DIR"]) / "farm.sock"))
        told += recording.communicate(timeout=120)[0]
    finally:
        recording.kill()
        recording.wait()
    assert recording.returncode == 0, told
    assert "reward 1" in told

    made = read_demonstration(folder)
    assert (made.task_id, made.recorded_by, made.end, made.reward) == (TASK, "human", "done", 1.0)
    assert made.outcome.get("evaluated_on") == "copy", told
    kinds = [step.action.type for step in made.steps if step.action is not None]
    assert ActionType.TYPE in kinds, told
    assert kinds[-1] is ActionType.DONE
    for step, following in zip(made.steps, made.steps[1:], strict=False):
        assert step.after == following.before
    height, width = load_screen(folder, made.steps[0].before).shape[:2]
    assert (width, height) == made.shape.resolution
    text = "".join(path.read_text() for path in folder.rglob("*.json*"))
    assert "ticket" not in text
    assert (Path(place["DART_RUNTIME_DIR"]) / "farm.key").read_text().strip() not in text + told

    taught = read_screens(folder / "screens")
    assert {screen.task_id for screen in taught} == {TASK}
    assert all(screen.elements for screen in taught)

    again = subprocess.run(
        dart_envs("demos", "replay", str(folder)), env=place, capture_output=True, text=True, timeout=200, check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "The reward is the same: 1 then, 1 now." in again.stdout
