"""Setup snapshots: built once per key, restored for everybody, and never left half-built."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from toy_task import ToyTask

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DesktopFailedError, FarmError, GuestError, SetupError
from dart_envs.testing.fake_farm import FakeFarm, FakeLease
from dart_envs.types import Desktop
from dart_server.wire import DesktopShape, ErrorCode, FaultOwner, SnapshotView

SHAPE = DesktopShape(resolution=(64, 64))


async def test_one_builder_per_key_and_the_others_wait(farm: FakeFarm) -> None:
    task = ToyTask()
    envs = [AsyncDesktopEnv(farm, shape=SHAPE) for _ in range(4)]
    observations = await asyncio.gather(*(env.reset(task) for env in envs))
    assert task.prepared == 1
    first = observations[0][0].screenshot
    assert all((observation.screenshot == first).all() for observation, _ in observations)
    assert {lease.setup_key for lease in farm.leases} == {task.setup_key(farm.image_digest, SHAPE)}


async def test_the_second_episode_restores_a_clean_copy(farm: FakeFarm) -> None:
    task = ToyTask()
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.reset(task)
        farm.leases[0].state.typed = "left over"
        await env.reset(task)
        assert farm.leases[0].state.typed == ""
        assert len(farm.leases) == 1
        assert task.prepared == 1


async def test_a_fresh_lease_on_the_right_copy_needs_no_reset(farm: FakeFarm) -> None:
    task = ToyTask()
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.reset(task)
        await env.release_lease()
        await env.reset(task)
        assert "reset" not in farm.leases[1].calls
        assert "acquire_setup" not in farm.leases[1].calls


async def test_a_builder_that_fails_lets_the_next_one_try(farm: FakeFarm) -> None:
    class Flaky(ToyTask):
        async def prepare(self, desktop: Desktop) -> None:
            await super().prepare(desktop)
            if self.prepared == 1:
                raise SetupError("the window never came")

    task = Flaky()
    envs = [AsyncDesktopEnv(farm, shape=SHAPE) for _ in range(2)]
    await asyncio.gather(*(env.reset(task) for env in envs))
    assert task.prepared == 2
    assert farm.abandoned[0][1] == "SetupError: the window never came"


async def test_an_interrupted_builder_gives_its_grant_back(farm: FakeFarm) -> None:
    started = asyncio.Event()

    class Slow(ToyTask):
        async def prepare(self, desktop: Desktop) -> None:
            started.set()
            await asyncio.Event().wait()

    env = AsyncDesktopEnv(farm, shape=SHAPE)
    building = asyncio.create_task(env.reset(Slow()))
    await started.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert len(farm.abandoned) == 1
    quick = AsyncDesktopEnv(farm, shape=SHAPE)
    await quick.reset(ToyTask())


async def test_an_evicted_state_is_built_again(farm: FakeFarm) -> None:
    task = ToyTask()
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.reset(task)
        farm.states.clear()
        await env.reset(task)
        assert task.prepared == 2


async def test_a_state_that_breaks_between_claim_and_restore_is_claimed_again(farm: FakeFarm) -> None:
    task = ToyTask()
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.reset(task)
        farm.leases[0].fail_next("reset", FarmError("damaged", code=ErrorCode.SNAPSHOT_BROKEN))
        await env.reset(task)
        assert len(farm.leases) == 1
        assert farm.leases[0].setup_key is not None


async def test_a_farm_without_snapshots_runs_the_setup_each_time(farm: FakeFarm) -> None:
    task = ToyTask()
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.release_lease()
        farm.on_lease = _refuse_snapshots
        await env.reset(task)
        await env.reset(task)
        assert task.prepared == 2
        assert farm.leases[0].calls.count("acquire_setup") == 1
        assert farm.states == {}


def _refuse_snapshots(lease: FakeLease) -> None:
    lease.fail_next("snapshot", FarmError("no CRIU", code=ErrorCode.CAPABILITY_MISSING))


async def test_a_quick_setup_is_run_on_the_booted_base_each_time(farm: FakeFarm) -> None:
    task = ToyTask(publish_setup=False)
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.reset(task)
        farm.leases[0].state.typed = "left over"
        await env.reset(task)
        assert task.prepared == 2
        assert farm.leases[0].state.typed == ""
        assert {"acquire_setup", "snapshot"} & set(farm.leases[0].calls) == set()
        assert farm.leases[0].calls.count("reset") == 1


async def test_a_caller_with_many_episodes_of_a_task_shares_even_a_quick_setup(farm: FakeFarm) -> None:
    task = ToyTask(publish_setup=False)
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.reset(task, share_setup=True)
        await env.reset(task, share_setup=True)
        assert task.prepared == 1
        assert farm.leases[0].calls.count("snapshot") == 1


async def test_a_full_quota_costs_the_snapshot_and_not_the_episode(farm: FakeFarm) -> None:
    farm.on_lease = lambda lease: lease.fail_next("snapshot", FarmError("full", code=ErrorCode.QUOTA))
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.reset(ToyTask())
        assert len(farm.leases) == 1


async def test_a_setup_that_breaks_its_desktop_is_a_setup_error(farm: FakeFarm) -> None:
    broke = DesktopFailedError("died", fault_owner=FaultOwner.POLICY, cause="oom")
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        with pytest.raises(SetupError, match="oom"):
            await env.reset(ToyTask(prepare_error=broke))
        with pytest.raises(SetupError, match="not today"):
            await env.reset(ToyTask(prepare_error=GuestError("not today")))


async def test_waiting_for_another_builder_ends(farm: FakeFarm) -> None:
    task = ToyTask()
    await farm.acquire_setup(task.setup_key(farm.image_digest, SHAPE), 0)
    async with AsyncDesktopEnv(farm, shape=SHAPE, setup_wait_s=0.01) as env:
        with pytest.raises(SetupError, match="still being built"):
            await env.reset(task)


async def test_publishing_needs_the_builders_grant(farm: FakeFarm) -> None:
    lease = await farm.lease(SHAPE)
    await farm.acquire_setup("a" * 64, 0)
    with pytest.raises(FarmError, match="grant"):
        await lease.snapshot(publish_key="a" * 64, grant="forged")
    view = await lease.snapshot(name="mine")
    assert isinstance(view, SnapshotView)
    lease.state.typed = "later"
    await lease.reset(snapshot_id=view.snapshot_id)
    assert lease.state.typed == ""


async def test_a_declared_clock_is_set_before_the_setup_and_kept_in_the_state(farm: FakeFarm) -> None:
    @dataclass
    class Dated(ToyTask):
        starts_at: datetime | None = datetime(2024, 2, 29, 12, tzinfo=UTC)
        seen: list[datetime] = field(default_factory=list)

        async def prepare(self, desktop: Desktop) -> None:
            assert isinstance(desktop, FakeLease)
            self.seen.append((await desktop.clock()).time)

    task = Dated()
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        for _ in range(2):
            await env.reset(task)
            assert isinstance(env.lease, FakeLease)
            assert (await env.lease.clock()).time == task.starts_at
        assert task.seen == [task.starts_at], "built once"
        await env.reset(ToyTask(id="toy/type/0001"))
        assert not (await env.lease.clock()).declared
