"""Weight updates of a pool, with workers in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dart_agent.data_client.wire import VersionRecord
from dart_agent.errors import PolicyUnavailableError, StoreError, WeightUpdateError, WorkerError
from dart_agent.inference.component import _updater, hold_newest
from dart_agent.inference.config import InferenceConfig
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.decisions.weight_updates import UpdateMode, UpdateSettings, WeightsId
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.settings import PublishedWeights, WorkerSettings
from dart_agent.inference.weight_updater import WeightRollout, WeightUpdater, roll_out
from dart_agent.inference.weights.leases import make_leasable, try_remove
from dart_agent.types import PolicyRequest
from tests.unit.dart_agent.fakes import FakeClock, FakeWorkerClient, request
from tests.unit.dart_agent.test_pool import pool_of, until


class FakeStore:
    """The data manager's newest version, set by the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.newest: PublishedWeights | None = None
        self.down = False
        self.asked_in_vain = 0

    def publish(self, version: int, digest: str | None = None) -> PublishedWeights:
        directory = self.root / f"v{version}"
        directory.mkdir(exist_ok=True)
        make_leasable(directory)
        self.newest = PublishedWeights(version, directory, digest)
        return self.newest

    async def latest(self) -> PublishedWeights | None:
        if self.down:
            self.asked_in_vain += 1
            raise StoreError("the data manager does not answer")
        return self.newest


@pytest.fixture
def store(tmp_path: Path) -> FakeStore:
    return FakeStore(tmp_path)


@contextlib.asynccontextmanager
async def updating(
    pool: VllmPool, store: FakeStore, settings: UpdateSettings | None = None, **calls: Any
) -> AsyncIterator[tuple[WeightUpdater, asyncio.Task[None]]]:
    clock = FakeClock()
    updater = WeightUpdater(pool, store.latest, settings=settings, clock=clock, **calls)
    task = asyncio.create_task(updater.run())
    try:
        yield updater, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_worker_takes_each_version_one_at_a_time(store: FakeStore) -> None:
    FakeWorkerClient.peak_loading = 0
    workers = [FakeWorkerClient(name) for name in "abc"]
    rollouts: list[WeightRollout] = []
    async with pool_of(*workers) as pool, updating(pool, store, on_rollout=rollouts.append):
        await until(lambda: len(pool.ready) == 3)
        store.publish(1)
        await until(lambda: len(rollouts) == 1)
        assert rollouts[0].paused_s == pytest.approx(dict.fromkeys("abc", 0.07))
        assert rollouts[0].staged_s == dict.fromkeys("abc", 0.01)
        store.publish(2)
        await until(lambda: len(rollouts) == 2)
    assert FakeWorkerClient.peak_loading == 1
    assert [worker.loads for worker in workers] == [[1, 2]] * 3


async def test_a_worker_that_restarts_unnoticed_is_brought_up_to_date(store: FakeStore) -> None:
    """It answers every probe: only its version says that it is another process."""
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool, updating(pool, store):
        store.publish(1)
        await until(lambda: first.version == second.version == 1)
        first.come_back()
        assert first.version == 0
        await until(lambda: first.version == 1)


async def test_a_worker_that_was_down_during_a_roll_takes_the_version_when_it_comes_back(store: FakeStore) -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool, updating(pool, store):
        await until(lambda: len(pool.ready) == 2)
        first.die()
        store.publish(1)
        await until(lambda: second.version == 1)
        assert (await pool.complete(request())).worker == "b"
        first.come_back()
        await until(lambda: first.version == 1)


async def test_a_worker_that_died_while_it_swapped_is_brought_up_to_date(store: FakeStore) -> None:
    class DyingWorkerClient(FakeWorkerClient):
        async def swap(self, weights: WeightsId, *, pause: bool = True) -> object:  # type: ignore[override]
            if not self.loads:
                self.loads.append(-1)
                self.die()
            return await super().swap(weights, pause=pause)

    first, second = DyingWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool, updating(pool, store):
        await until(lambda: len(pool.ready) == 2)
        store.publish(1)
        await until(lambda: not first.alive and second.version == 1)
        first.come_back()
        await until(lambda: first.version == 1)
        assert first.loads[-1] == second.loads[-1] == 1


async def test_global_mode_lets_all_stand_still_before_the_first_swaps(store: FakeStore) -> None:
    workers = [FakeWorkerClient(name) for name in "ab"]
    rollouts: list[WeightRollout] = []
    settings = UpdateSettings(mode=UpdateMode.GLOBAL)
    async with pool_of(*workers) as pool, updating(pool, store, settings, on_rollout=rollouts.append):
        await until(lambda: len(pool.ready) == 2)
        store.publish(1)
        await until(lambda: len(rollouts) == 1)
        await until(lambda: not any(worker.standing for worker in workers))
    assert [worker.calls for worker in workers] == [["stage", "pause", "swap", "resume"]] * 2


async def test_a_worker_that_could_not_be_told_to_go_on_is_told_again(store: FakeStore) -> None:
    class UnheardWorkerClient(FakeWorkerClient):
        unheard = 2

        async def resume(self) -> None:
            if self.unheard:
                self.unheard -= 1
                raise WorkerError(f"{self.name} does not answer")
            await super().resume()

    first, second = UnheardWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool, updating(pool, store, UpdateSettings(mode=UpdateMode.GLOBAL)):
        await until(lambda: len(pool.ready) == 2)
        store.publish(1)
        for unheard in (1, 0):
            await until(lambda: first.unheard == unheard)  # noqa: B023 - awaited at once
            first.set_state(first.state)  # a held health request is answered after some seconds, too
        await until(lambda: first.state is WorkerState.SERVING)
        assert first.version == second.version == 1


async def test_a_worker_that_missed_its_probes_while_it_stood_still_goes_on(store: FakeStore) -> None:
    """The others do not wait for it at the barrier; its process lives on, and stands still."""

    class SlowWorkerClient(FakeWorkerClient):
        gate = asyncio.Event()

        async def pause(self) -> None:
            await self.gate.wait()
            await super().pause()

    first, second = FakeWorkerClient("a"), SlowWorkerClient("b")
    async with pool_of(first, second) as pool, updating(pool, store, UpdateSettings(mode=UpdateMode.GLOBAL)):
        await until(lambda: len(pool.ready) == 2)
        store.publish(1)
        await until(lambda: first.standing)
        first.die()
        await until(lambda: len(pool.ready) == 1)
        first.alive = True
        await until(lambda: not first.standing)
        second.gate.set()
        await until(lambda: first.version == second.version == 1)
        await until(lambda: not first.standing and not second.standing)
        assert (await pool.complete(request())).version_spans[0].version == 1


async def test_refused_weights_leave_the_workers_as_they_were_and_end_with_a_reason(store: FakeStore) -> None:
    worker = FakeWorkerClient("a")
    async with pool_of(worker) as pool, updating(pool, store) as (_, task):
        store.publish(1)
        await until(lambda: worker.version == 1)
        worker.refuses = True
        store.publish(2)
        for _ in range(3):
            await until(lambda: worker.calls[-1] == "stage" or task.done())
            worker.calls.append("seen")
            worker.set_state(worker.state)
        with pytest.raises(WeightUpdateError, match="version 2 was refused again and again: a: these weights"):
            await task
        assert (await pool.complete(request())).version_spans[0].version == 1


async def test_a_worker_that_does_not_answer_is_named_and_the_others_go_on(store: FakeStore) -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    late: list[str] = []
    async with pool_of(first, second) as pool, updating(pool, store, on_late=late.append):
        await until(lambda: len(pool.ready) == 2)
        first.late = True
        store.publish(1)
        await until(lambda: second.version == 1 and late == ["a"])
        first.late = False
        first.set_state(first.state)
        await until(lambda: first.version == 1)


async def test_a_store_that_is_down_is_asked_again(store: FakeStore) -> None:
    worker = FakeWorkerClient("a")
    async with pool_of(worker) as pool, updating(pool, store):
        store.down = True
        store.publish(1)
        await until(lambda: store.asked_in_vain >= 2)
        assert worker.version == 0
        store.down = False
        await until(lambda: worker.version == 1)


async def test_the_version_that_restarted_workers_begin_with_is_not_removed(store: FakeStore) -> None:
    worker = FakeWorkerClient("a")
    accepted: list[PublishedWeights] = []
    async with pool_of(worker) as pool, updating(pool, store, on_accepted=accepted.append):
        first = store.publish(1)
        await until(lambda: accepted == [first])
        assert not try_remove(first.path)
        second = store.publish(2)
        await until(lambda: accepted == [first, second])
        assert try_remove(first.path)
        assert not try_remove(second.path)
    assert try_remove(second.path)


async def test_a_version_that_is_held_for_an_evaluation_is_none_to_begin_with(store: FakeStore) -> None:
    """All workers of a component that is started again have the newest version; one of them goes back to the held one."""
    workers = {name: FakeWorkerClient(name) for name in "ab"}
    evaluated, newest = store.publish(1), store.publish(2)
    for worker in workers.values():
        worker.weights = newest.identity
    accepted: list[PublishedWeights] = []

    async def held() -> PublishedWeights:
        return evaluated

    pool = VllmPool(list(workers.values()), clock=FakeClock(), wait_for_worker_s=30.0, holding=["b"])
    async with pool, updating(pool, store, held=held, holding=["b"], on_accepted=accepted.append):
        await until(lambda: workers["b"].version == 1)
        third = store.publish(3)
        await until(lambda: workers["a"].version == 3)
        assert accepted in ([third], [newest, third])


async def test_workers_start_with_a_version_that_is_still_there(store: FakeStore) -> None:
    """The data manager's first answer is removed before anyone holds it."""
    assert await hold_newest(store.latest) == (None, None)
    old, new = store.publish(1), store.publish(2)
    assert try_remove(old.path)
    answers = [old, new]

    async def latest() -> PublishedWeights | None:
        return answers.pop(0)

    published, lease = await hold_newest(latest)
    assert published == new
    assert lease is not None
    assert not try_remove(new.path)
    lease.release()
    answers += [old] * 3
    with pytest.raises(WeightUpdateError, match="were removed"):
        await hold_newest(latest)


async def test_the_version_that_the_workers_started_with_can_be_removed_after_the_next_one(store: FakeStore) -> None:
    class FakeData:
        async def latest_version(self) -> VersionRecord | None:
            assert store.newest is not None
            return VersionRecord(version=store.newest.version, path=str(store.newest.path), digest=store.newest.digest)

    started = store.publish(40)
    published, lease = await hold_newest(store.latest)
    places = {name: store.root for name in ("directory", "addresses", "logs")}
    config = InferenceConfig(worker=WorkerSettings(model="m"), workers=1, **places)
    client, process = FakeWorkerClient("a"), SimpleNamespace(published=published)
    client.weights = started.identity
    newest = store.publish(41)
    async with pool_of(client) as pool:
        updater = _updater(config, [process], frozenset(), pool, None, FakeData(), lease)  # type: ignore[list-item,arg-type]
        following = asyncio.create_task(updater.run())
        assert not try_remove(started.path), "a worker that restarts now begins with it"
        await until(lambda: process.published == newest)
        assert try_remove(started.path)
        assert not try_remove(newest.path)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_one_version_is_rolled_out_and_waited_for(store: FakeStore) -> None:
    workers = [FakeWorkerClient(name) for name in "ab"]
    async with pool_of(*workers) as pool:
        await until(lambda: len(pool.ready) == 2)
        rollout = await roll_out(pool, store.publish(1))
        assert set(rollout.times) == {"a", "b"}
        workers[0].refuses = True
        workers[1].refuses = True
        with pytest.raises(WeightUpdateError, match="these weights do not fit"):
            await roll_out(pool, store.publish(2), settings=UpdateSettings(max_refusals=1))


def serving(pool: VllmPool) -> dict[str, int]:
    """Versions of the workers that serve, as the pool knows them."""
    return {
        member.client.name: member.version
        for member in pool.members
        if member.seen is not None and member.seen.state is WorkerState.SERVING
    }


async def test_one_version_plays_an_evaluation_and_training_goes_on_with_newer_ones(store: FakeStore) -> None:
    """`c` holds: it answers what asks for its version, and nothing else once it is behind."""
    workers = {name: FakeWorkerClient(name) for name in "abc"}
    evaluated: list[PublishedWeights] = []

    async def held() -> PublishedWeights | None:
        return evaluated[-1] if evaluated else None

    def asking(name: str, version: int | None) -> PolicyRequest:
        plain = request(name)
        return replace(plain, sampling=replace(plain.sampling, version=version))

    pool = VllmPool(list(workers.values()), clock=FakeClock(), wait_for_worker_s=30.0, holding=["c"])
    async with pool, updating(pool, store, held=held, holding=["c"]):
        first = store.publish(1)
        await until(lambda: serving(pool) == {"a": 1, "b": 1, "c": 1})
        evaluated.append(first)
        assert {(await pool.complete(asking(f"t{number}", None))).worker for number in range(6)} == set("abc")
        store.publish(2)
        await until(lambda: serving(pool) == {"a": 2, "b": 2, "c": 1})
        trained = [await pool.complete(asking(f"u{number}", None)) for number in range(6)]
        assert {completion.worker for completion in trained} == set("ab")
        played = [await pool.complete(asking(f"e{number}", 1)) for number in range(3)]
        assert {(completion.worker, completion.version_spans[0].version) for completion in played} == {("c", 1)}
        evaluated.clear()
        await until(lambda: workers["c"].version == 2)
        with pytest.raises(PolicyUnavailableError, match=r"no worker serves version 1; waited 3\d s"):
            await pool.complete(asking("late", 1))


async def test_a_request_for_a_version_waits_until_the_worker_that_holds_it_is_back(store: FakeStore) -> None:
    workers = {name: FakeWorkerClient(name) for name in "ab"}

    async def held() -> PublishedWeights:
        return PublishedWeights(1, store.root / "v1")

    pool = VllmPool(list(workers.values()), clock=FakeClock(), wait_for_worker_s=10_000.0, holding=["b"])
    async with pool, updating(pool, store, held=held, holding=["b"]):
        store.publish(1)
        await until(lambda: workers["b"].version == 1)
        store.publish(2)
        await until(lambda: workers["a"].version == 2)
        workers["b"].die()
        plain = request("e")
        waiting = asyncio.create_task(pool.complete(replace(plain, sampling=replace(plain.sampling, version=1))))
        await until(lambda: len(pool.ready) == 1)
        workers["b"].come_back()
        assert (await asyncio.wait_for(waiting, 20)).worker == "b"
        assert workers["b"].version == 1
