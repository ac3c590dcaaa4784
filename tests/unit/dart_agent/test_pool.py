"""The pool and the rolling update, with workers in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dart_agent.errors import PolicyUnavailableError, WeightUpdateError
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.rolling_update import RollingUpdateReport, follow_versions, rolling_update
from dart_agent.inference.settings import PublishedWeights
from tests.unit.dart_agent.fakes import FakeClock, FakeWorkerClient, request

V1 = PublishedWeights(1, Path("/weights/v1"))
V2 = PublishedWeights(2, Path("/weights/v2"))


def pool_of(*workers: FakeWorkerClient, clock: FakeClock | None = None) -> VllmPool:
    return VllmPool(workers, clock=clock or FakeClock(), wait_for_worker_s=30.0)


async def until(condition: object, turns: int = 2000) -> None:
    assert callable(condition)
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


async def test_requests_go_to_the_worker_with_the_least_to_do() -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool:
        await until(lambda: len(pool.ready) == 2)
        first.hold = second.hold = asyncio.Event()
        running = [asyncio.create_task(pool.complete(request(f"r{index}"))) for index in range(6)]
        await until(lambda: sum(member.in_flight for member in pool.members) == 6)
        assert [member.in_flight for member in pool.members] == [3, 3]
        first.hold.set()
        await asyncio.gather(*running)
    assert first.closed
    assert second.closed


async def test_a_request_whose_worker_dies_is_answered_by_another() -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool:
        await until(lambda: len(pool.ready) == 2)
        first.hold, second.hold = asyncio.Event(), asyncio.Event()
        running = [asyncio.create_task(pool.complete(request(f"r{index}"))) for index in range(4)]
        await until(lambda: pool.members[0].in_flight == 2)
        first.die()
        second.hold.set()
        answers = await asyncio.gather(*running)
        assert [answer.worker for answer in answers] == ["b"] * 4
        assert pool.retries == 2
        assert [member.client.name for member in pool.ready] == ["b"]


async def test_while_no_worker_is_up_requests_wait_and_then_are_answered() -> None:
    worker = FakeWorkerClient("a")
    worker.die()
    async with pool_of(worker) as pool:
        running = asyncio.create_task(pool.complete(request()))
        await asyncio.sleep(0)
        worker.come_back()
        assert (await running).worker == "a"


async def test_without_any_worker_there_is_an_error_with_words() -> None:
    worker = FakeWorkerClient("a")
    worker.die()
    async with pool_of(worker) as pool:
        with pytest.raises(PolicyUnavailableError, match="no policy worker came up within 30 s"):
            await pool.complete(request())


async def test_a_worker_that_comes_back_gets_the_current_weights_before_any_request() -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool:
        await until(lambda: len(pool.ready) == 2)
        await rolling_update(pool, V1)
        first.die()
        assert (await pool.complete(request("x"))).worker in {"a", "b"}
        for index in range(4):
            await pool.complete(request(f"y{index}"))
        await until(lambda: len(pool.ready) == 1)
        first.come_back()
        await until(lambda: len(pool.ready) == 2)
        assert first.version == 1
        answers = [await pool.complete(request(f"z{index}")) for index in range(6)]
        assert {span.version for answer in answers for span in answer.version_spans} == {1}


async def test_rolling_touches_one_worker_at_a_time_and_is_idempotent() -> None:
    FakeWorkerClient.peak_loading = 0
    workers = [FakeWorkerClient(name) for name in "abc"]
    async with pool_of(*workers) as pool:
        await until(lambda: len(pool.ready) == 3)
        report = await rolling_update(pool, V1)
        assert (report.updated, report.version) == (("a", "b", "c"), 1)
        assert report.paused_s == pytest.approx((0.07, 0.07, 0.07))
        assert (await rolling_update(pool, V1)).updated == ()
    assert FakeWorkerClient.peak_loading == 1
    assert [worker.loads for worker in workers] == [[1]] * 3


async def test_refused_weights_leave_the_pool_as_it_was() -> None:
    worker = FakeWorkerClient("a")
    async with pool_of(worker) as pool:
        await until(lambda: len(pool.ready) == 1)
        await rolling_update(pool, V1)
        worker.refuses = True
        with pytest.raises(WeightUpdateError):
            await rolling_update(pool, V2)
        assert pool.target == V1
        assert (await pool.complete(request())).version_spans[0].version == 1


async def test_following_skips_to_the_newest_version_and_gives_up_on_one_that_is_refused_again_and_again() -> None:
    worker = FakeWorkerClient("a")
    versions: list[PublishedWeights | None] = [None, V1, V1, V2]
    reports: list[RollingUpdateReport] = []

    async def latest() -> PublishedWeights | None:
        return versions.pop(0) if len(versions) > 1 else versions[0]

    clock = FakeClock()
    async with pool_of(worker, clock=clock) as pool:
        await until(lambda: len(pool.ready) == 1)
        following = asyncio.create_task(follow_versions(pool, latest, clock=clock, on_update=reports.append))
        await until(lambda: len(reports) == 2)
        assert worker.loads == [1, 2]
        worker.refuses = True
        versions[:] = [PublishedWeights(3, Path("/weights/v3"))]
        with pytest.raises(WeightUpdateError):
            await following
