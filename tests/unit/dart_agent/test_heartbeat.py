"""What a rollout worker does beside its episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

from dart_agent.data_client.wire import WorkerHeartbeatReply
from dart_agent.errors import StoreError
from dart_agent.rollouts.upkeep import keep_alive
from dart_envs.errors import FarmError
from dart_envs.testing.fake_desktop import FakeDesktopState
from dart_envs.testing.fake_farm import FakeFarm
from tests.unit.dart_agent.fakes import FakeClock


class FakeDataManager:
    """Names two snapshots; the first heartbeat gets no answer. `enough`: there were four."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []
        self.enough = asyncio.Event()

    async def heartbeat(self, worker_id: str, deleted_snapshots: Sequence[str] = ()) -> WorkerHeartbeatReply:
        self.told.append(list(deleted_snapshots))
        if len(self.told) == 4:
            self.enough.set()
        if len(self.told) == 1:
            raise StoreError("the data manager does not answer")
        return WorkerHeartbeatReply(count=1, stopping=["a"], obsolete_snapshots=["gone", "stuck", "there"])


class FakeWorker:
    """Notes what it is told to stop."""

    name = "w1"

    def __init__(self) -> None:
        self.stopped: list[str] = []

    def stop(self, assignments: Iterable[str]) -> None:
        self.stopped += assignments


class StuckFarm(FakeFarm):
    """Cannot delete one of its snapshots."""

    async def delete_snapshot(self, name: str) -> None:
        if name == "stuck":
            raise FarmError("The snapshot is being read.", code="conflict")
        await super().delete_snapshot(name)


async def test_what_the_replies_to_heartbeats_name_is_stopped_and_deleted() -> None:
    farm, data, worker = StuckFarm(), FakeDataManager(), FakeWorker()
    farm.states["there"] = farm.states["stuck"] = FakeDesktopState()
    beats = asyncio.create_task(keep_alive(cast(Any, data), farm, worker, 10.0, FakeClock()))
    async with asyncio.timeout(10):
        await data.enough.wait()
    beats.cancel()
    await asyncio.gather(beats, return_exceptions=True)
    assert data.told == [[], [], ["gone", "there"], ["gone", "there"]]
    assert set(farm.states) == {"stuck"}
    assert worker.stopped == ["a", "a", "a"]
