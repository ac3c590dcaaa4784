"""What the farm's tests share: a clock moved by hand, and the HTTP interface as one key sees it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from dart_server.farm import Farm

SETTLE_POLLS = 30
"""So many times 2 ms a woken sleeper has, of real time, to go to sleep again."""


class ManualClock:
    """Time stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1_700_000_000

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers in their order and letting what they do settle: one that comes back again and again has come back to
        sleep before time moves on, however slow the host is."""
        end = self.now + seconds
        for _ in range(SETTLE_POLLS):
            if any(not future.done() for _, _, future in self._sleepers):
                break
            await asyncio.sleep(0.002)
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            self.now = max(self.now, due)
            if future.done():
                continue
            asleep = len(self._sleepers)
            future.set_result(None)
            for _ in range(SETTLE_POLLS):
                await asyncio.sleep(0.002)
                if len(self._sleepers) > asleep:
                    break
        self.now = end


async def advance_until_done(clock: ManualClock, task: asyncio.Task[httpx.Response], seconds: float) -> httpx.Response:
    """The reply to a request that waits, with the clock moved on by `seconds` again and again: what it waits for may not sleep yet."""
    async with asyncio.timeout(30):
        while not task.done():
            await clock.advance(seconds)
    return await task


async def wait_until(condition: Callable[[], bool], every_s: float = 0.002) -> None:
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
