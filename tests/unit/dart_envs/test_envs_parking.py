"""Parked episodes: another environment goes on with the same desktop, or with a copy of it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from toy_task import ToyTask

from dart_envs.envs.parking import ParkedDesktop, ResumableDesktopEnv
from dart_envs.errors import DartEnvError, FarmError, FarmUnreachableError
from dart_envs.testing.fake_farm import FakeFarm, FakeLease
from dart_envs.types import Action, ActionType, EndReason
from dart_server.wire import DesktopShape

SHAPE = DesktopShape(resolution=(64, 64))
CLICK = Action(ActionType.CLICK, x=3, y=4)


async def typed_half(farm: FakeFarm) -> tuple[ResumableDesktopEnv, np.ndarray]:
    """An episode in which the oracle has typed and not yet said that it is done, and what it sees."""
    env = ResumableDesktopEnv(farm, shape=SHAPE)
    task = ToyTask()
    await env.reset(task)
    assert env.lease is not None
    typing, _ = await task.oracle(env.lease)
    return env, (await env.step(typing)).observation.screenshot


@pytest.mark.parametrize("keep_lease", [True, False])
async def test_a_parked_episode_goes_on_in_another_environment(farm: FakeFarm, keep_lease: bool) -> None:
    env, seen = await typed_half(farm)
    parked = await env.park(keep_lease=keep_lease)
    assert (parked.steps, parked.acted) == (1, True)
    assert (parked.lease is None) == (parked.snapshot_id is not None) == (not keep_lease)
    assert env.lease is None
    assert farm.leases[0].released == (not keep_lease)
    await env.aclose()

    other = ResumableDesktopEnv(farm, shape=SHAPE)
    observation = await other.resume(ToyTask(), parked)
    assert np.array_equal(observation.screenshot, seen)
    last = await other.step(Action(ActionType.DONE))
    assert (last.reward, last.end, last.info["steps"]) == (1.0, EndReason.DONE, 2)
    await other.aclose()
    assert farm.leases[-1].released
    if not keep_lease:  # until the snapshot is deleted, the episode can be taken up again
        assert np.array_equal((await other.resume(ToyTask(), parked)).screenshot, seen)


async def test_the_budget_of_steps_goes_on_where_it_was(farm: FakeFarm) -> None:
    env, _ = await typed_half(farm)
    parked = await env.park()
    await env.resume(ToyTask(), parked, step_limit=2)
    last = await env.step(CLICK)
    assert (last.end, last.info["steps"]) == (EndReason.MAX_STEPS, 2)


async def test_a_desktop_that_is_gone_is_said_so_and_the_environment_starts_another_episode(farm: FakeFarm) -> None:
    env, _ = await typed_half(farm)
    for gone in (
        ParkedDesktop(1, True, snapshot_id="snap_x"),
        ParkedDesktop(1, True, lease="fake#x"),
        ParkedDesktop(1, True),
    ):
        with pytest.raises(FarmError):
            await env.resume(ToyTask(), gone)
    assert all(lease.released for lease in farm.leases)
    await env.reset(ToyTask())
    assert (await env.step(CLICK)).end is None


async def test_a_lease_survives_the_death_of_its_process_for_another(farm: FakeFarm) -> None:
    env, seen = await typed_half(farm)
    parked = env.held_desktop()
    assert parked is not None
    other = ResumableDesktopEnv(farm, shape=SHAPE)
    assert np.array_equal((await other.resume(ToyTask(), parked)).screenshot, seen)


async def test_a_kept_lease_outlives_a_farm_that_does_not_answer(
    farm: FakeFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, seen = await typed_half(farm)
    parked = await env.park(keep_lease=True)
    failures = [FarmUnreachableError("The farm is away.", code="unreachable")]
    step = FakeLease.step

    async def fail_once(self: FakeLease, *args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await step(self, *args, **options)

    monkeypatch.setattr(FakeLease, "step", fail_once)
    with pytest.raises(FarmUnreachableError):
        await env.resume(ToyTask(), parked)
    assert env.lease is None
    assert not any(lease.released for lease in farm.leases)
    assert np.array_equal((await env.resume(ToyTask(), parked)).screenshot, seen)


async def test_a_kept_lease_stays_where_taking_it_up_is_cancelled(
    farm: FakeFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, seen = await typed_half(farm)
    parked = await env.park(keep_lease=True)
    looking = asyncio.Event()

    async def hang(*args: Any) -> Any:
        looking.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as stopped:
        stopped.setattr(FakeLease, "step", hang)
        resuming = asyncio.create_task(env.resume(ToyTask(), parked))
        await looking.wait()
        resuming.cancel()
        await asyncio.gather(resuming, return_exceptions=True)
        await env.aclose()
    observation = await ResumableDesktopEnv(farm, shape=SHAPE).resume(ToyTask(), parked)
    assert np.array_equal(observation.screenshot, seen)


async def test_only_a_running_episode_is_parked(farm: FakeFarm) -> None:
    env = ResumableDesktopEnv(farm, shape=SHAPE)
    assert env.held_desktop() is None
    with pytest.raises(DartEnvError, match="No episode"):
        await env.park()
