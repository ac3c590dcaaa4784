"""What the farm's tests share: a clock moved by hand, and the HTTP interface as one key sees it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx

from dart_server.farm import Farm

POLL_S = 0.002
SETTLE_POLLS = 30
"""So many polls of real time a woken sleeper has to go to sleep again, where it may be one that sleeps only once."""
LOOP_SETTLE_S = 0.5
"""So long, in real time, a loop has to go to sleep again: a task that has slept here more than once."""

T = TypeVar("T")


class ManualClock:
    """Time stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._asleep: set[asyncio.Task[Any]] = set()
        self._sleeps: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1_700_000_000

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), future))
        task = asyncio.current_task()
        assert task is not None
        self._sleeps[task] = self._sleeps.get(task, 0) + 1
        self._asleep.add(task)
        try:
            await future
        finally:
            self._asleep.discard(task)

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers in their order and letting what they do settle: a loop has come back to sleep before time moves on,
        however slow the host is, unless it waits for something else for `LOOP_SETTLE_S`."""
        end = self.now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            self.now = max(self.now, due)
            if future.done():
                continue
            future.set_result(None)
            await asyncio.sleep(0)
            await self._settle()
        self.now = end

    async def _settle(self) -> None:
        """Wait until every loop sleeps, and until one that has slept only once is done or had the time to sleep again."""
        started_s = time.monotonic()
        for polls in itertools.count():
            awake = [task for task in self._sleeps if not task.done() and task not in self._asleep]
            loops = [task for task in awake if self._sleeps[task] > 1]
            if not (loops or (awake and polls < SETTLE_POLLS)) or time.monotonic() - started_s > LOOP_SETTLE_S:
                return
            await asyncio.sleep(POLL_S)


async def advance_until_done(clock: ManualClock, task: asyncio.Task[T], seconds: float) -> T:
    """The result of a task that waits, with the clock moved on by `seconds` again and again: what it waits for may not sleep yet."""
    async with asyncio.timeout(30):
        while not task.done():
            await clock.advance(seconds)
    return await task


async def wait_until(condition: Callable[[], bool], every_s: float = POLL_S) -> None:
    """Wait (in real time, shortly) until something has become true; `every_s` 0 looks at every turn of the event loop."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - conditions are about the whole farm
            await asyncio.sleep(every_s)


class Api:
    """The farm's HTTP interface as one key sees it."""

    def __init__(self, farm: Farm, client: httpx.AsyncClient, key: str) -> None:
        self.farm = farm
        self.client = client
        self.key = key
        self._numbers = itertools.count()

    async def call(
        self, method: str, path: str, *, lease: dict[str, Any] | None = None, **options: Any
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key}", **options.pop("headers", {})}
        if lease is not None:
            headers |= {"X-Dart-Lease-Token": lease["token"], "X-Dart-Fencing-Token": str(lease["fencing_token"])}
        return await self.client.request(method, path, headers=headers, **options)

    async def create_lease(self, **fields: Any) -> dict[str, Any]:
        body = {"client_request_id": f"request-{next(self._numbers):04d}", **fields}
        reply = await self.call("POST", "/v1/leases", json=body)
        assert reply.status_code == 200, reply.text
        lease: dict[str, Any] = reply.json()
        return lease

    async def reset(self, lease: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Reset and remember the new fencing token."""
        reply = await self.call("POST", f"/v1/leases/{lease['lease_id']}/reset", lease=lease, json=fields)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        lease["fencing_token"] = answer["fencing_token"]
        return answer

    async def publish(self, lease: dict[str, Any], key: str) -> httpx.Response:
        grant = (
            await self.call("POST", "/v1/setups/acquire", json={"key": key, "lease_id": lease["lease_id"], "wait_s": 0})
        ).json()
        assert grant["state"] == "build", grant
        body = {"publish_key": key, "grant": grant["grant"]}
        return await self.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json=body)


MakeApi = Callable[..., Awaitable[Api]]
