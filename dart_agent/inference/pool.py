"""The policy as a pool of workers: every request goes to the worker with the least to do.

Role: `VllmPool` is a `Policy`. Rule: a request is lost only when no worker can answer it: it is retried on another worker when its own
dies, and waits while none is up. A worker that comes back is brought to the current policy version before it is given a request.
Non-goals: starting and restarting workers (`dart_agent.inference.supervisor`): the pool only sees whether they answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from dart_agent.errors import PolicyUnavailableError, WeightUpdateError, WorkerError
from dart_agent.inference.client import WeightUpdateTimes, WorkerHealth
from dart_agent.inference.settings import PublishedWeights
from dart_agent.types import Completion, PolicyRequest, PolicyVersion
from dart_envs.clock import SystemClock
from dart_server.wire import Clock

logger = logging.getLogger(__name__)


class PolicyWorker(Protocol):
    """What the pool needs of a worker: `WorkerClient`, or a fake in tests."""

    name: str

    async def health(self, *, timeout_s: float = 10.0) -> WorkerHealth:
        """Raises WorkerError when the worker cannot serve."""
        ...

    async def complete(self, request: PolicyRequest) -> Completion:
        """Raises RequestRejected or WorkerError."""
        ...

    async def load(self, path: Path, version: PolicyVersion) -> WeightUpdateTimes:
        """Raises WeightUpdateError or WorkerError."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class PoolMember:
    """One worker as the pool sees it."""

    def __init__(self, client: PolicyWorker) -> None:
        self.client = client
        self.ready = False
        self.updating = False
        self.in_flight = 0
        self.version: PolicyVersion = 0
        self.answered = 0


class VllmPool:
    """Routes requests over workers. `async with VllmPool(clients)` starts and ends the health checks."""

    def __init__(
        self,
        clients: Sequence[PolicyWorker],
        *,
        clock: Clock | None = None,
        max_attempts: int = 5,
        wait_for_worker_s: float = 300.0,
        probe_ready_s: float = 5.0,
        probe_down_s: float = 0.5,
    ) -> None:
        """wait_for_worker_s: how long a request waits while no worker is up. probe_*_s: pause between two health checks of a worker."""
        if not clients:
            raise ValueError("a pool needs at least one worker")
        self.members = tuple(PoolMember(client) for client in clients)
        self.target: PublishedWeights | None = None
        self.retries = 0
        self._clock = clock or SystemClock()
        self._max_attempts = max_attempts
        self._wait_for_worker_s = wait_for_worker_s
        self._probe_ready_s = probe_ready_s
        self._probe_down_s = probe_down_s
        self._changed = asyncio.Event()
        self._update_lock = asyncio.Lock()
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

    async def complete(self, request: PolicyRequest) -> Completion:
        """Sample one response. Raises RequestRejected for a hopeless request, PolicyUnavailableError when no worker could answer."""
        last: WorkerError | None = None
        for attempt in range(self._max_attempts):
            member = await self._pick(last)
            tried = dataclasses.replace(request, request_id=f"{request.request_id}#{attempt}") if attempt else request
            member.in_flight += 1
            try:
                completion = await member.client.complete(tried)
            except WorkerError as error:
                last = error
                self.retries += 1
                self._set_ready(member, False, str(error))
                continue
            finally:
                member.in_flight -= 1
            member.answered += 1
            return completion
        raise PolicyUnavailableError(f"{self._max_attempts} workers failed on one request; the last one: {last}")

    async def update(self, member: PoolMember) -> WeightUpdateTimes | None:
        """Bring one worker to the target version; None when it is there. Raises WeightUpdateError or WorkerError."""
        target = self.target
        if target is None or member.version == target.version:
            return None
        async with self._update_lock:
            member.updating = True
            try:
                times = await member.client.load(target.path, target.version)
            except WeightUpdateError:
                raise
            except WorkerError as error:
                self._set_ready(member, False, str(error))
                raise
            finally:
                member.updating = False
        member.version = target.version
        return times

    async def _pick(self, last: WorkerError | None) -> PoolMember:
        """The ready worker with the least in flight; one that is taking new weights only when there is no other."""
        deadline_s = self._clock.monotonic() + self._wait_for_worker_s
        while not self.ready:
            remaining_s = deadline_s - self._clock.monotonic()
            if remaining_s <= 0:
                because = "" if last is None else f" (the last one failed: {last})"
                raise PolicyUnavailableError(
                    f"no policy worker came up within {self._wait_for_worker_s:.0f} s{because}"
                )
            await self._wait_for_change(min(remaining_s, self._probe_down_s))
        return min(self.ready, key=lambda member: (member.updating, member.in_flight, member.answered))

    async def _wait_for_change(self, timeout_s: float) -> None:
        """Until a worker came or went, at most `timeout_s`."""
        waiters = {
            asyncio.ensure_future(self._changed.wait()),
            asyncio.ensure_future(self._clock.sleep(timeout_s)),
        }
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    def _set_ready(self, member: PoolMember, ready: bool, why: str) -> None:
        if member.ready == ready:
            return
        logger.info("%s %s: %s", member.client.name, "serves" if ready else "is taken out", why)
        member.ready = ready
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, member: PoolMember) -> None:
        """Take a worker out when it stops answering, and in again when it answers with the current weights."""
        while True:
            try:
                health = await member.client.health()
                member.version = health.version
                if not member.ready:
                    await self.update(member)
            except WeightUpdateError as error:
                # Whoever set the target hears of it too (`rolling_update`). A worker that serves goes on with what it has.
                logger.warning("%s stays with version %d: %s", member.client.name, member.version, error)
            except WorkerError as error:
                self._set_ready(member, False, str(error))
            else:
                self._set_ready(member, True, f"version {member.version}")
            was_ready = member.ready
            until_s = self._clock.monotonic() + (self._probe_ready_s if was_ready else self._probe_down_s)
            while member.ready == was_ready and (left_s := until_s - self._clock.monotonic()) > 0:
                await self._wait_for_change(left_s)
