"""Failures on live desktops have owners: what is done from inside is the policy's and scores 0, what the host does is masked.

Each case is done to a real desktop in the middle of an episode whose note is already solved, so that breaking it would pay if it could.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from broken_desktops import DONE, MOVE, SHAPE, SolvedTask, episodes, limited_farm
from guest_insides import processes_of

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.types import EndReason, StepResult
from dart_server.wire import FaultOwner

pytestmark = pytest.mark.desktop


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with limited_farm(tmp_path_factory.mktemp("dart-faults"), memory_mib=512, disk_mib=64, pids=256) as url:
        yield url


@pytest.fixture
async def env(url: str) -> AsyncIterator[AsyncDesktopEnv]:
    async with episodes(url) as env:
        yield env


@pytest.fixture
async def capabilities(url: str) -> dict[str, bool]:
    async with await AsyncFarmClient.connect(url) as farm:
        return (await farm.view()).capabilities


async def _quietly(work: Awaitable[object]) -> None:
    """Do damage; the desktop may well not live to answer."""
    try:
        await work
    except DartEnvError:
        return


async def _kill_the_x_server(lease: AsyncLease) -> None:
    await _quietly(lease.exec(["pkill", "-KILL", "-x", "Xvfb"], user="root"))


async def _log_out(lease: AsyncLease) -> None:
    await _quietly(lease.exec(["openbox", "--exit"]))


async def _eat_all_memory(lease: AsyncLease) -> None:
    code = "b = []\nwhile True: b.append(b'x' * (16 << 20))"
    await _quietly(lease.exec(["python3", "-c", code], timeout_s=60))


async def _use_up_the_processes(lease: AsyncLease) -> None:
    await _quietly(lease.exec(["sh", "-c", "while sleep 600 >/dev/null 2>&1 & do :; done"], timeout_s=60))


async def _fill_the_disk(lease: AsyncLease) -> None:
    await _quietly(lease.exec(["dd", "if=/dev/zero", "of=/home/user/big", "bs=1M", "count=200"], timeout_s=30))


Damage = Callable[[AsyncLease], Awaitable[None]]
BREAKING: list[tuple[Damage, str]] = [
    (_kill_the_x_server, "session_dead"),
    (_log_out, "session_dead"),
    (_eat_all_memory, "oom"),
    (_use_up_the_processes, "pids"),
    (_fill_the_disk, "disk_full"),
]
"""What is done from inside, and the cause that the farm gives; after the last three the session still lives."""


def _named(desktop_id: str, name: str) -> list[int]:
    return [pid for pid in processes_of(desktop_id) if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"]


async def _lease(env: AsyncDesktopEnv) -> AsyncLease:
    await env.reset(SolvedTask())
    assert isinstance(env.lease, AsyncLease)
    assert (await env.step(MOVE)).end is None
    return env.lease


async def _finish(env: AsyncDesktopEnv) -> StepResult:
    result = await env.step(MOVE)
    return result if result.end is not None else await env.step(DONE)


@pytest.mark.parametrize(("damage", "cause"), BREAKING, ids=[damage.__name__.strip("_") for damage, _ in BREAKING])
async def test_breaking_the_desktop_from_inside_never_pays(
    env: AsyncDesktopEnv, capabilities: dict[str, bool], damage: Damage, cause: str
) -> None:
    lease = await _lease(env)
    if damage is _fill_the_disk and not capabilities.get("limit_disk"):
        pytest.skip("this provider enforces no disk limit on this host")
    await damage(lease)
    result = await _finish(env)
    assert (result.end, result.reward, result.terminated) == (EndReason.BROKE_DESKTOP, 0.0, True), result.info
    assert (result.info["cause"], result.info["masked"]) == (cause, False)
    await env.reset(SolvedTask())
    assert (await env.step(DONE)).reward == 1.0


@pytest.mark.parametrize("damage", [_kill_the_x_server, _eat_all_memory], ids=["x_server", "memory"])
async def test_what_breaks_before_the_first_action_is_masked(env: AsyncDesktopEnv, damage: Damage) -> None:
    await env.reset(SolvedTask())
    assert isinstance(env.lease, AsyncLease)
    await damage(env.lease)
    result = await env.step(MOVE)
    assert (result.end, result.info["masked"]) == (EndReason.FARM_FAULT, True), result.info


async def test_a_leased_desktop_that_nobody_called_is_the_hosts(url: str) -> None:
    async with await AsyncFarmClient.connect(url) as farm:
        lease = await farm.lease(SHAPE)
        await lease.reset(None)
        (x_server,) = _named(lease.desktop_id, "Xvfb")
        pidfd = os.pidfd_open(x_server)
        os.kill(x_server, signal.SIGKILL)
        assert select.select([pidfd], [], [], 20.0)[0], "the X server did not end"
        os.close(pidfd)
        health = await lease.health()
        await lease.release()
    assert (health.cause, health.fault_owner) == ("session_dead", FaultOwner.HOST)


async def test_a_desktop_killed_by_the_host_is_masked_and_replaced(env: AsyncDesktopEnv) -> None:
    lease = await _lease(env)
    processes = processes_of(lease.desktop_id)
    assert processes, f"no process belongs to {lease.desktop_id}"
    os.kill(processes[0], signal.SIGKILL)
    result = await _finish(env)
    assert (result.end, result.reward, result.truncated) == (EndReason.FARM_FAULT, 0.0, True), result.info
    assert result.info["masked"]
    await env.reset(SolvedTask())
    assert env.lease is not lease
    assert (await env.step(DONE)).reward == 1.0
