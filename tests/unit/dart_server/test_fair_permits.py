"""Permits for looking into desktops: few at once, and no owner keeps another waiting."""

from __future__ import annotations

import asyncio

import pytest

from dart_server.errors import ApiError
from dart_server.guest.fair_permits import FairPermits

SOON_S = 5.0


class Crowd:
    """Requests of owners that hold their permit until they are told to end."""

    def __init__(self, permits: FairPermits) -> None:
        self._permits = permits
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, *, timeout_s: float = SOON_S) -> None:
        """A request; its owner is the letter that its name begins with."""
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, timeout_s))
        await settle()

    async def _hold(self, name: str, timeout_s: float) -> None:
        async with self._permits.permit(name[0], timeout_s=timeout_s):
            self.began.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_owners_are_served_in_turn_however_many_requests_one_has() -> None:
    crowd = Crowd(FairPermits(2))
    for name in ("a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1"):
        await crowd.come(name)
    assert crowd.began == ["a1", "a2"]
    for name in ("a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"):
        await crowd.end(name)
    assert crowd.began == ["a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"]
    await crowd.come("d1")
    await crowd.come("d2")
    assert crowd.began[-2:] == ["d1", "d2"], "all permits are free again"


async def test_who_gives_up_waiting_loses_no_permit() -> None:
    crowd = Crowd(FairPermits(1))
    for name in ("a1", "b1", "b2"):
        await crowd.come(name)
    await crowd.come("c1", timeout_s=0.01)
    with pytest.raises(ApiError, match="other desktops") as late:
        await crowd.tasks["c1"]
    assert late.value.code == "host_fault"
    crowd.tasks["b1"].cancel()
    await settle()
    await crowd.end("a1")
    assert crowd.began == ["a1", "b2"]
    await crowd.end("b2")
    await crowd.come("a2")
    assert crowd.began[-1] == "a2"


async def test_a_permit_that_came_as_its_request_was_cancelled_goes_on() -> None:
    crowd = Crowd(FairPermits(1))
    for name in ("a1", "b1", "c1"):
        await crowd.come(name)
    crowd._ends["a1"].set()
    await asyncio.sleep(0)  # the permit is b1's now, and b1 has not run yet
    crowd.tasks["b1"].cancel()
    await settle()
    assert crowd.began[-1] == "c1"
