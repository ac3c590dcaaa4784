"""A task's own time of day on live desktops: running programs, later ones and the evaluator agree, however old the snapshot is."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from served_farm import served_farm

from dart_envs.core import AsyncDesktopEnv
from dart_envs.farm.client import AsyncFarm
from dart_envs.farm.lease import AsyncLease
from dart_envs.tasks.model import parse_task
from dart_envs.types import Action, ActionType
from dart_server.guest.client import GuestClient
from dart_server.providers.base import DesktopSpec
from dart_server.providers.runc import RuncProvider
from dart_server.settings import default_home
from dart_server.wire import DesktopShape

pytestmark = pytest.mark.desktop
SHAPE = DesktopShape(resolution=(640, 400))
STARTS_AT = datetime(2024, 2, 28, 23, 50, tzinfo=UTC)
MONTH_S = 30 * 24 * 3600.0
AGREE_S = 2.0
"""Readings of one clock, one after the other, on a busy host."""

RUNNING = (
    "import os, time\n"
    "while True:\n"
    " open('/tmp/new', 'w').write(repr(time.time())); os.rename('/tmp/new', '/tmp/running'); time.sleep(0.02)\n"
)
LOOKS = (
    ["date", "+%s.%N"],
    ["sudo", "-S", "date", "+%s.%N"],
    ["python3", "-c", "import time; print(time.time())"],
    ["bash", "-c", "echo $EPOCHREALTIME"],
    ["perl", "-e", "print time"],
)


def task(**changes: Any) -> Any:
    data: dict[str, Any] = {
        "id": "clock/0",
        "instruction": "Write today's date into the file /home/user/today.",
        "config": [{"type": "launch", "parameters": {"command": ["python3", "-c", RUNNING]}}],
        "starts_at": STARTS_AT.isoformat(),
        "evaluator": {
            "func": "literal_match",
            "result": {"type": "vm_file", "path": "/home/user/today"},
            "expected": {"type": "desktop_time", "format": "%Y-%m-%d"},
        },
    }
    return parse_task(data | changes, name="clock")


async def readings(lease: AsyncLease) -> list[float]:
    """What the desktop's programs say, the one that was running when the snapshot was taken first; then the agent."""
    async with asyncio.timeout(20):
        running = await lease.read_file("/tmp/running")
        while running is None:
            await asyncio.sleep(0.02)
            running = await lease.read_file("/tmp/running")
    said = [float(running)]
    for argv in LOOKS:
        reply = await lease.exec(argv, stdin="password\n")
        assert reply.returncode == 0, (argv, reply.stderr)
        said.append(float(reply.stdout))
    return [*said, (await lease.clock()).time.timestamp()]


async def test_everything_in_a_declared_episode_agrees_on_the_time(tmp_path: Path) -> None:
    with served_farm(tmp_path, environment={"DART_SNAPSHOT_DIR": "/dev/shm"}) as url:
        async with await AsyncFarm.connect(url) as farm, AsyncDesktopEnv(farm, shape=SHAPE) as env:
            await env.reset(task())
            lease = env.lease
            assert isinstance(lease, AsyncLease)
            said = await readings(lease)
            assert max(said) - min(said) < AGREE_S, said
            since_s = said[-1] - STARTS_AT.timestamp()
            assert 0 < since_s < 60
            await asyncio.sleep(5.0)
            await env.reset(task())
            again = await readings(lease)
            assert max(again) - min(again) < AGREE_S, again
            assert abs(again[0] - said[0]) < AGREE_S, "each episode begins at the same time of day"
            await lease.exec(["sh", "-c", "date +%Y-%m-%d | tr -d '\\n' > /home/user/today"])
            assert (await env.step(Action(ActionType.DONE))).reward == 1.0
            await env.reset(task())
            await lease.write_file("/home/user/today", datetime.now(UTC).strftime("%Y-%m-%d").encode())
            assert (await env.step(Action(ActionType.DONE))).reward == 0.0
            await env.reset(task(starts_at=None))
            real = await readings(lease)
            assert max(abs(reading - time.time()) for reading in real) < 10 * AGREE_S, (
                "a task without one has the real one"
            )
            assert not (await lease.clock()).declared


class Aged:
    """A provider whose time of day can be moved on, and calls into its desktops."""

    def __init__(self, runtime: Path) -> None:
        self.ahead_s = 0.0
        home = Path(os.environ.get("DART_HOME") or default_home())
        self.provider = RuncProvider(
            home=home, runtime_dir=runtime, snapshot_dir=Path("/dev/shm"), wall_clock=self.time
        )

    def time(self) -> float:
        return time.time() + self.ahead_s

    async def call(self, desktop_id: str, method: str, path: str, body: Any = None) -> Any:
        guest = GuestClient(lambda port: self.provider.dial(desktop_id, port))
        try:
            content = None if body is None else json.dumps(body).encode()
            reply = await guest.request(method, path, timeout_s=30.0, content=content)
        finally:
            await guest.hang_up()
        assert reply.status == 200, reply.content
        return json.loads(reply.content)

    async def exec(self, desktop_id: str, *argv: str, **more: Any) -> str:
        return str((await self.call(desktop_id, "POST", "/v1/exec", {"argv": argv, **more}))["stdout"])

    async def readings(self, desktop_id: str) -> tuple[float, float, float]:
        """Running program, later program, agent."""
        running = float(await self.exec(desktop_id, "cat", "/tmp/running"))
        later = float(await self.exec(desktop_id, "date", "+%s.%N"))
        return running, later, float((await self.call(desktop_id, "GET", "/v1/clock"))["time_s"])


@pytest.fixture
async def aged() -> AsyncIterator[Aged]:
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    made = Aged(runtime)
    await made.provider.start()
    try:
        yield made
    finally:
        await made.provider.aclose()
        shutil.rmtree(runtime)


@pytest.mark.parametrize("age_s", [1.0, MONTH_S])
@pytest.mark.parametrize("declared", [True, False])
async def test_a_snapshot_of_any_age_is_in_one_time(aged: Aged, age_s: float, declared: bool) -> None:
    provider = aged.provider
    await provider.create("d1", DesktopSpec("basic", (640, 400), memory_mib=768))
    if declared:
        await aged.call("d1", "POST", "/v1/clock", {"time_s": STARTS_AT.timestamp()})
    await aged.exec("d1", "python3", "-c", RUNNING, detach=True)
    await aged.exec("d1", "sh", "-c", "until [ -e /tmp/running ]; do sleep 0.02; done", timeout_s=20)
    await provider.snapshot("d1", "s1")
    frozen = (await aged.readings("d1"))[2]
    aged.ahead_s += age_s
    for desktop_id in ("d1", "d2"):
        await provider.restore(desktop_id, "s1")
        await aged.exec(desktop_id, "sleep", "0.2")
        said = await aged.readings(desktop_id)
        assert max(said) - min(said) < AGREE_S, said
        if declared:
            assert abs(said[0] - frozen) < 10 * AGREE_S, "it stood still while it was a snapshot"
        else:
            assert abs(said[0] - aged.time()) < AGREE_S, "it is what the farm says that it is"
