"""The policy as a pool of workers.

Role: `VllmPool` is a `Policy`: it carries out what `decisions.routing`, `decisions.retries` and `decisions.health` decide. Rule: it knows
each worker's state from the worker itself, which answers a held request the moment its state changes; so every process that has a pool
keeps away from workers that update or drain. A request is answered once or fails with a reason: an attempt that failed, was aborted, or
came to a worker that went away is made again elsewhere until its deadline. Non-goals: starting workers (`supervisor`), new weights
(`weight_updater`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from dart_agent.errors import PolicyUnavailableError, WorkerError
from dart_agent.inference.client import WeightUpdateTimes
from dart_agent.inference.decisions import health, retries
from dart_agent.inference.decisions.health import HealthAction, HealthEvent, HealthSettings, HealthState
from dart_agent.inference.decisions.retries import RequestFailure, Retry, RetrySettings
from dart_agent.inference.decisions.routing import Route, Router, RouteRequest, RoutingSettings, WorkerState
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.inference.pointer_wire import PointAnswer, PointRequest
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.wire import WorkerHealth
from dart_agent.types import Completion, FinishReason, PolicyRequest, PolicyVersion
from dart_envs.clock import SYSTEM_CLOCK, wait_first
from dart_server.wire import Clock

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class PolicyWorker(Protocol):
    """What the pool and the updater need of a worker: `WorkerClient`, or a fake in tests."""

    name: str

    async def health(self, *, after: int | None = None, wait_s: float = 0.0) -> WorkerHealth:
        """With `after`, as soon as the revision is another. Raises WorkerError when the worker cannot serve."""
        ...

    async def complete(self, request: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
        """Raises RequestRejected or WorkerError."""
        ...

    async def point(self, asked: PointRequest, *, timeout_s: float | None = None) -> PointAnswer:
        """Raises RequestRejected or WorkerError."""
        ...

    async def stage(self, published: PublishedWeights) -> float:
        """Raises WeightUpdateError or WorkerError."""
        ...

    async def swap(self, weights: WeightsId, *, pause: bool = True) -> WeightUpdateTimes:
        """Raises WeightUpdateError or WorkerError."""
        ...

    async def pause(self) -> None:
        """Raises WorkerError."""
        ...

    async def resume(self) -> None:
        """Raises WorkerError."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class PoolMember:
    """One worker as the pool sees it."""

    def __init__(self, client: PolicyWorker, router: Router) -> None:
        self.client = client
        self.seen: WorkerHealth | None = None
        self.answered = 0
        self.health = HealthState()
        self.taken_out = asyncio.Event()
        self._router = router

    @property
    def ready(self) -> bool:
        """Whether it gets requests."""
        return self.health.in_service

    @property
    def in_flight(self) -> int:
        """Requests of this pool that run or wait on it."""
        return self._router.loads[self.client.name].in_flight

    @property
    def version(self) -> int:
        """The policy version that it served when it was last heard of."""
        return 0 if self.seen is None else self.seen.version


WorkerSeen = Callable[[str, WorkerHealth | None], None]
"""Told of every worker that reported itself (its name and state), or was taken out (None)."""


class VllmPool:
    """Routes requests over workers. `async with VllmPool(clients)` starts and ends the health checks."""

    def __init__(
        self,
        clients: Sequence[PolicyWorker],
        *,
        clock: Clock | None = None,
        routing: RoutingSettings | None = None,
        retry: RetrySettings | None = None,
        health_checks: HealthSettings | None = None,
        chance: random.Random | None = None,
        wait_for_worker_s: float = 300.0,
        probe_ready_s: float = 5.0,
        probe_down_s: float = 0.5,
        on_seen: WorkerSeen | None = None,
        holding: Collection[str] = (),
    ) -> None:
        """wait_for_worker_s: how long a request waits while no worker is up.

        holding: workers that hold the version of an evaluation. A request that asks for a version goes to one of them that has it; others
        go to them only while they are not behind. chance: draws the pauses of retries. probe_ready_s: longest time between two signs of
        life of a worker that serves; probe_down_s: pause between two probes of one that does not.
        """
        if not clients:
            raise ValueError("a pool needs at least one worker")
        self.router = Router(routing)
        for client in clients:
            self.router.set_worker(client.name, WorkerState.DOWN)
        self.members = tuple(PoolMember(client, self.router) for client in clients)
        self.retries = 0
        self.failures: dict[RequestFailure, int] = dict.fromkeys(RequestFailure, 0)
        self.on_seen = on_seen
        self._by_name = {member.client.name: member for member in self.members}
        self._holding = tuple(self._by_name[name] for name in holding)
        self._clock = clock or SYSTEM_CLOCK
        self._retry = retry or RetrySettings()
        self._health_checks = health_checks or HealthSettings()
        self._chance = chance or random.Random()
        self._wait_for_worker_s = wait_for_worker_s
        self._probe_ready_s = probe_ready_s
        self._probe_down_s = probe_down_s
        self._changed = asyncio.Event()
        self._outage_before_s = 0.0
        self._out_since_s: float | None = self._clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._watch(member)) for member in self.members]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self.members:
            await member.client.aclose()

    @property
    def ready(self) -> tuple[PoolMember, ...]:
        """The workers that serve."""
        return tuple(member for member in self.members if member.ready)

    @property
    def kv_cache_usage(self) -> float:
        """Mean share of the key-value caches that running requests use and waiting ones need, by the need of a running one.

        1.0 where no worker serves; above 1 where requests wait for room. A worker that holds an older version does not count.
        """
        behind = self._behind
        seen = [each.seen for each in self.ready if each.seen is not None and each.client.name not in behind]
        shares = [each.kv_cache_usage * (1 + each.waiting / max(1, each.in_flight - each.waiting)) for each in seen]
        return sum(shares) / len(shares) if shares else 1.0

    @property
    def outage_s(self) -> float:
        """Seconds so far in which no worker served: each was down, drained, or stood still for new weights."""
        since_s = self._out_since_s
        return self._outage_before_s + (0.0 if since_s is None else self._clock.monotonic() - since_s)

    async def complete(self, request: PolicyRequest) -> Completion:
        """Sample one response; its `queue_s` contains the time before the attempt that was answered.

        Raises RequestRejected for a hopeless request, PolicyUnavailableError when no worker could answer.
        """
        asked_s = self._clock.monotonic()

        async def sample(client: PolicyWorker, request_id: str, timeout_s: float) -> Completion:
            tried = dataclasses.replace(request, request_id=request_id)
            waited_s = self._clock.monotonic() - asked_s
            completion = await client.complete(tried, timeout_s=timeout_s)
            if completion.finish_reason is FinishReason.ABORT:
                raise WorkerError(f"{client.name} stopped before the answer was complete", RequestFailure.ABORTED)
            asked = request.sampling.version
            if asked is not None and any(span.version != asked for span in completion.version_spans):
                raise WorkerError(f"{client.name} went on from version {asked} meanwhile", RequestFailure.ABORTED)
            return dataclasses.replace(completion, queue_s=completion.queue_s + waited_s)

        return await self._answered(request.request_id, sample, request.sampling.version)

    async def point(self, asked: PointRequest) -> PointAnswer:
        """Ask the action head of a worker. Raises like `complete`."""

        async def ask(client: PolicyWorker, request_id: str, timeout_s: float) -> PointAnswer:
            return await client.point(dataclasses.replace(asked, request_id=request_id), timeout_s=timeout_s)

        return await self._answered(asked.request_id, ask)

    async def _answered(
        self,
        request_id: str,
        ask: Callable[[PolicyWorker, str, float], Awaitable[Answer]],
        version: PolicyVersion | None = None,
    ) -> Answer:
        """The answer to a request, from the first worker that gives one; of one policy version where one is asked for."""
        began_s = self._clock.monotonic()
        key = prefix_key(request_id)
        avoid: frozenset[str] = frozenset()
        sent = failed = 0
        last: WorkerError | None = None
        while True:
            member = await self._pick(RouteRequest(key, avoid), version, began_s, last)
            tried = f"{request_id}#{sent}" if sent else request_id
            sent += 1
            left_s = began_s + self._retry.deadline_s - self._clock.monotonic()
            try:
                return await self._attempt(member, ask, tried, key, min(self._retry.attempt_timeout_s, left_s))
            except WorkerError as error:
                last = error
            self.retries += 1
            self.failures[last.failure] += 1
            failed += last.failure is not RequestFailure.BUSY
            avoid |= {member.client.name}
            self._note_failure(member, last)
            elapsed_s = self._clock.monotonic() - began_s
            decision = retries.decide(last.failure, failed, elapsed_s, self._retry, self._chance.random())
            if not isinstance(decision, Retry):
                raise PolicyUnavailableError(f"request {request_id}: {decision.reason}; the last failure: {last}")
            await self._clock.sleep(decision.delay_s)

    async def _attempt(
        self,
        member: PoolMember,
        ask: Callable[[PolicyWorker, str, float], Awaitable[Answer]],
        request_id: str,
        key: str,
        timeout_s: float,
    ) -> Answer:
        name = member.client.name
        self.router.started(name, key)
        try:
            answer = await ask(member.client, request_id, timeout_s)
        finally:
            self.router.ended(name)
            self._wake()
        member.answered += 1
        return answer

    def _among_versions(self, request: RouteRequest, version: PolicyVersion | None) -> RouteRequest:
        """What the versions of the workers that hold one mean for a request."""
        if version is not None:
            holding = self._holding or self.members
            having = frozenset(each.client.name for each in holding if each.ready and each.version == version)
            return dataclasses.replace(request, among=having)
        behind = self._behind
        return dataclasses.replace(request, avoid=request.avoid | behind) if behind else request

    @property
    def _behind(self) -> frozenset[str]:
        """Workers that hold a version older than that of all others which serve."""
        if not self._holding:
            return frozenset()
        others = [member.version for member in self.ready if member not in self._holding]
        return frozenset(each.client.name for each in self._holding if others and each.version < min(others))

    async def _pick(
        self, request: RouteRequest, version: PolicyVersion | None, began_s: float, last: WorkerError | None
    ) -> PoolMember:
        """The worker that the router chooses, as soon as there is one."""
        waiting_since_s = self._clock.monotonic()
        while True:
            chosen = self.router.route(self._among_versions(request, version))
            if isinstance(chosen, Route):
                return self._by_name[chosen.worker]
            now_s = self._clock.monotonic()
            left_s = min(waiting_since_s + self._wait_for_worker_s, began_s + self._retry.deadline_s) - now_s
            if left_s <= 0:
                because = "" if last is None else f" (the last failure: {last})"
                reason = chosen.reason if version is None else f"no worker serves version {version}"
                raise PolicyUnavailableError(f"{reason}; waited {now_s - waiting_since_s:.0f} s{because}")
            await self._wait_for_change(self._changed, min(left_s, self._probe_down_s))

    async def _wait_for_change(self, changed: asyncio.Event, timeout_s: float) -> None:
        waiter = asyncio.ensure_future(changed.wait())
        try:
            await wait_first(self._clock, timeout_s, [waiter])
        finally:
            waiter.cancel()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _note_failure(self, member: PoolMember, error: WorkerError) -> None:
        if error.failure is RequestFailure.CONNECTION:
            self._observe(member, HealthEvent.CONNECTION_LOST, str(error))
        elif error.failure is RequestFailure.BUSY:
            self._set_state(member, WorkerState.DRAINING)

    def _observe(self, member: PoolMember, event: HealthEvent, why: str) -> None:
        member.health, actions = health.decide(member.health, event, self._health_checks)
        for action in actions:
            if action is HealthAction.TAKE_OUT:
                logger.info("%s is taken out: %s", member.client.name, why)
                member.seen = None
                self._set_state(member, WorkerState.DOWN)
                member.taken_out.set()
                if self.on_seen is not None:
                    self.on_seen(member.client.name, None)
            elif action is HealthAction.PUT_IN:
                logger.info("%s serves: %s", member.client.name, why)

    def _set_state(self, member: PoolMember, state: WorkerState) -> None:
        self.router.set_worker(member.client.name, state)
        if any(load.state is WorkerState.SERVING for load in self.router.loads.values()):
            self._outage_before_s, self._out_since_s = self.outage_s, None
        elif self._out_since_s is None:
            self._out_since_s = self._clock.monotonic()
        self._wake()

    def _note_health(self, member: PoolMember, seen: WorkerHealth) -> None:
        before, member.seen = member.seen, seen
        self._observe(member, HealthEvent.ANSWERED, f"version {seen.version}")
        if not member.ready:
            return
        if before is not None and before.weights != seen.weights:
            self.router.cache_cleared(member.client.name)
        self._set_state(member, seen.state)
        if self.on_seen is not None:
            self.on_seen(member.client.name, seen)

    async def _watch(self, member: PoolMember) -> None:
        """Know the worker's state: a held request while it serves, probes while it does not."""
        after: int | None = None
        while True:
            member.taken_out.clear()
            probe = asyncio.ensure_future(member.client.health(after=after, wait_s=self._probe_ready_s))
            gone = asyncio.ensure_future(member.taken_out.wait())
            try:
                await asyncio.wait({probe, gone}, return_when=asyncio.FIRST_COMPLETED)
                if probe.done():
                    self._note_health(member, probe.result())
                    after = probe.result().revision
                    continue
            except WorkerError as error:
                self._observe(member, HealthEvent.MISSED, str(error))
            finally:
                probe.cancel()
                gone.cancel()
            # Whoever answers next may be another process, which counts its revisions from 0: ask without holding.
            after = None
            await self._clock.sleep(self._probe_down_s)


def prefix_key(request_id: str) -> str:
    """What requests that share a prefix have in common: the part of `{rollout_id}.{step}` before the last dot.

    Args:
        request_id: Of a request.

    Returns:
        The key; empty where the id has no dot.
    """
    return request_id.rpartition(".")[0]
