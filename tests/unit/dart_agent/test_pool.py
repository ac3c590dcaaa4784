"""The pool, with workers in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest

from dart_agent.errors import PolicyUnavailableError
from dart_agent.inference.decisions.retries import RequestFailure, RetrySettings
from dart_agent.inference.decisions.routing import RoutingSettings, WorkerState
from dart_agent.inference.pool import VllmPool, prefix_key
from dart_agent.types import Completion, FinishReason, PolicyRequest
from tests.unit.dart_agent.fakes import FakeClock, FakeWorkerClient, completion, request


def pool_of(
    *workers: FakeWorkerClient,
    clock: FakeClock | None = None,
    retry: RetrySettings | None = None,
    routing: RoutingSettings | None = None,
) -> VllmPool:
    return VllmPool(
        workers,
        clock=clock or FakeClock(),
        wait_for_worker_s=30.0,
        retry=retry,
        routing=routing,
        chance=random.Random(0),
    )


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
        assert [member.in_flight for member in pool.members] == [0, 0]
    assert first.closed
    assert second.closed


async def test_an_episode_stays_with_its_worker() -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool:
        await until(lambda: len(pool.ready) == 2)
        for step in range(5):
            for episode in ("roll_1", "roll_2"):
                await pool.complete(request(f"{episode}.{step}"))
    assert {prefix_key(name) for name in first.served} == {"roll_1"}
    assert {prefix_key(name) for name in second.served} == {"roll_2"}
    assert prefix_key("chatcmpl-1-0") == ""


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


async def test_time_without_a_worker_that_serves_is_an_outage() -> None:
    first, second, clock = FakeWorkerClient("a"), FakeWorkerClient("b"), FakeClock()
    async with pool_of(first, second, clock=clock) as pool:
        clock.now_s += 7.0
        assert pool.outage_s == 7.0, "no worker has answered yet"
        await until(lambda: len(pool.ready) == 2)
        before_s = pool.outage_s
        first.die()
        await until(lambda: len(pool.ready) == 1)
        clock.now_s += 100.0
        assert pool.outage_s == before_s, "the other serves"
        second.set_state(WorkerState.UPDATING)
        await until(lambda: pool.router.loads["b"].state is WorkerState.UPDATING)
        out_s = pool.outage_s
        clock.now_s += 30.0
        assert pool.outage_s == out_s + 30.0
        second.set_state(WorkerState.SERVING)
        await until(lambda: pool.router.loads["b"].state is WorkerState.SERVING)
        over_s = pool.outage_s
        clock.now_s += 30.0
        assert pool.outage_s == over_s >= out_s + 30.0


async def test_without_any_worker_there_is_an_error_with_words() -> None:
    worker = FakeWorkerClient("a")
    worker.die()
    async with pool_of(worker) as pool:
        with pytest.raises(PolicyUnavailableError, match="no worker serves; waited 30 s"):
            await pool.complete(request())


async def test_a_router_in_another_process_keeps_away_from_a_worker_that_updates() -> None:
    """Nobody tells this pool of the update: it hears of it from the worker."""
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool:
        await until(lambda: len(pool.ready) == 2)
        first.set_state(WorkerState.UPDATING)
        await until(lambda: pool.router.loads["a"].state is WorkerState.UPDATING)
        assert {(await pool.complete(request(f"r{index}"))).worker for index in range(4)} == {"b"}
        first.set_state(WorkerState.SERVING)
        await until(lambda: pool.router.loads["a"].state is WorkerState.SERVING)
        assert (await pool.complete(request("after"))).worker == "a"


async def test_the_only_worker_gets_requests_while_it_updates() -> None:
    worker = FakeWorkerClient("a")
    async with pool_of(worker) as pool:
        await until(lambda: len(pool.ready) == 1)
        worker.set_state(WorkerState.UPDATING)
        await until(lambda: pool.router.loads["a"].state is WorkerState.UPDATING)
        assert (await pool.complete(request())).worker == "a"


async def test_a_draining_worker_gets_nothing_and_its_refusal_costs_no_attempt() -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second, retry=RetrySettings(max_attempts=1)) as pool:
        await until(lambda: len(pool.ready) == 2)
        first.failures = [RequestFailure.BUSY]
        assert (await pool.complete(request("r0"))).worker == "b"
        assert pool.router.loads["a"].state is WorkerState.DRAINING


@pytest.mark.parametrize("failure", [RequestFailure.ENGINE, RequestFailure.ABORTED, RequestFailure.TIMEOUT])
async def test_an_attempt_that_failed_is_made_elsewhere_and_the_worker_stays(failure: RequestFailure) -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    async with pool_of(first, second) as pool:
        await until(lambda: len(pool.ready) == 2)
        first.failures = [failure]
        assert (await pool.complete(request("r0"))).worker == "b"
        assert len(pool.ready) == 2
        assert pool.failures[failure] == 1
    assert second.served == ["r0#1"]


async def test_an_answer_that_was_aborted_is_never_returned() -> None:
    class AbortingWorkerClient(FakeWorkerClient):
        async def complete(self, request: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
            answer = completion("half an ans", worker=self.name)
            return dataclasses.replace(answer, finish_reason=FinishReason.ABORT)

    async with pool_of(AbortingWorkerClient("a"), FakeWorkerClient("b")) as pool:
        await until(lambda: len(pool.ready) == 2)
        answer = await pool.complete(request("r0"))
        assert (answer.worker, answer.finish_reason) == ("b", FinishReason.STOP)


async def test_a_request_is_given_up_after_its_attempts_and_after_its_deadline() -> None:
    worker = FakeWorkerClient("a")
    worker.failures = [RequestFailure.ENGINE] * 100
    async with pool_of(worker, retry=RetrySettings(max_attempts=3)) as pool:
        with pytest.raises(PolicyUnavailableError, match="request r0: 3 attempts failed; the last failure: a failed"):
            await pool.complete(request("r0"))
    clock = FakeClock()
    settings = RetrySettings(max_attempts=100, deadline_s=20.0, base_delay_s=8.0, max_delay_s=8.0)
    async with pool_of(worker, clock=clock, retry=settings) as pool:
        with pytest.raises(PolicyUnavailableError, match="its deadline of 20 s has passed"):
            await pool.complete(request("r0"))


async def test_requests_wait_while_every_worker_is_full() -> None:
    worker = FakeWorkerClient("a")
    worker.hold = asyncio.Event()
    async with pool_of(worker, routing=RoutingSettings(max_in_flight=1)) as pool:
        await until(lambda: len(pool.ready) == 1)
        running = [asyncio.create_task(pool.complete(request(f"r{index}"))) for index in range(2)]
        await until(lambda: pool.members[0].in_flight == 1)
        assert pool.members[0].in_flight == 1
        worker.hold.set()
        await asyncio.gather(*running)
    assert worker.served == ["r0", "r1"]


async def test_kv_pressure_is_the_mean_of_those_that_serve() -> None:
    first, second = FakeWorkerClient("a"), FakeWorkerClient("b")
    second.die()
    async with pool_of(first, second) as pool:
        assert pool.kv_cache_usage == 1.0
        await until(lambda: len(pool.ready) == 1)
        assert pool.kv_cache_usage == 0.25
        seen = pool.ready[0].seen
        assert seen is not None
        pool.ready[0].seen = dataclasses.replace(seen, in_flight=6, waiting=4)
        assert pool.kv_cache_usage == 0.75, "two running requests use 0.25; four wait for room"


async def test_an_answer_says_how_long_no_engine_computed_it() -> None:
    clock, worker = FakeClock(), FakeWorkerClient("a")
    async with pool_of(worker, clock=clock) as pool:
        await until(lambda: len(pool.ready) == 1)
        began_s = clock.now_s
        worker.failures = [RequestFailure.ENGINE]
        answer = await pool.complete(request("r.0"))
        assert 0 < answer.queue_s <= clock.now_s - began_s, "the pause before the second attempt"
        assert (await pool.complete(request("r.1"))).queue_s == 0.0
