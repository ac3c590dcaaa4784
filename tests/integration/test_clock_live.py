"""A task's own time of day in episodes on live desktops: the desktop's programs and the evaluator agree, and every episode begins at it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from clock_programs import LOOKS, RUNNING
from served_farm import served_farm

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.tasks.model import parse_task
from dart_envs.types import Action, ActionType
from dart_server.wire import DesktopShape

SHAPE = DesktopShape(resolution=(640, 400))
STARTS_AT = datetime(2024, 2, 28, 23, 50, tzinfo=UTC)
AGREE_S = 2.0
"""Readings of one clock, one after the other, on a busy host."""


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


@pytest.mark.parametrize(
    "provider",
    [pytest.param("runc", marks=pytest.mark.desktop), pytest.param("docker", marks=pytest.mark.docker)],
)
async def test_everything_in_a_declared_episode_agrees_on_the_time(tmp_path: Path, provider: str) -> None:
    with served_farm(tmp_path, provider=provider, environment={"DART_SNAPSHOT_DIR": "/dev/shm"}) as url:
        async with await AsyncFarmClient.connect(url) as farm, AsyncDesktopEnv(farm, shape=SHAPE) as env:
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
            assert abs(again[0] - said[0]) < 2 * AGREE_S, "each episode begins at the same time of day"
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
