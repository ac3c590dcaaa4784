"""What people do on desktops, for the lease's holder who records it.

Rule: noted only while somebody listens (the first request begins it, `LISTENER_TIMEOUT_S` without one ends it), for one lease each, at most
`MAX_INPUTS` inputs; what the guest was given, in its order, with the time of each. Non-goals: who may listen (asked before), what it means.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dart_server import wire
from dart_server.clock import utc, wait_for
from dart_server.wire import Clock

MAX_INPUTS = 4096
"""HumanInputLog kept for one lease; who listens too seldom misses the oldest, and is told."""
LISTENER_TIMEOUT_S = 120.0


@dataclass(slots=True, eq=False)
class _LeaseInputs:
    """What was done under one lease since somebody listens."""

    asked_s: float
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    inputs: deque[wire.HumanInput] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class HumanInputLog:
    """The tapes of all leases to which somebody listens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_lease: dict[str, _LeaseInputs] = {}

    def record(self, lease_id: str, at_s: float, events: Iterable[dict[str, Any]]) -> None:
        """The guest was given these events; `at_s` in seconds since 1970."""
        lease_inputs = self._by_lease.get(lease_id)
        if lease_inputs is None:
            return
        said = {"number": next(lease_inputs.numbers), "at": utc(at_s), "events": list(events)}
        lease_inputs.inputs.append(wire.HumanInput.model_validate(said))
        if len(lease_inputs.inputs) > MAX_INPUTS:
            lease_inputs.inputs.popleft()
        lease_inputs.changed.set()

    def notify(self, lease_id: str) -> None:
        """Control was taken or let go: who waits is answered."""
        if lease_id in self._by_lease:
            self._by_lease[lease_id].changed.set()

    async def wait(self, lease_id: str, after: int, wait_s: float) -> tuple[list[wire.HumanInput], int]:
        """HumanInputLog with a number above `after`, waiting up to `wait_s` for the first, and how many of those are gone already."""
        lease_inputs = self._by_lease.setdefault(lease_id, _LeaseInputs(self._clock.monotonic()))
        lease_inputs.asked_s = self._clock.monotonic()
        fresh = [said for said in lease_inputs.inputs if said.number > after]
        if not fresh and wait_s:
            lease_inputs.changed.clear()
            with contextlib.suppress(TimeoutError):
                await wait_for(self._clock, wait_s, lease_inputs.changed.wait())
            lease_inputs.asked_s = self._clock.monotonic()
            fresh = [said for said in lease_inputs.inputs if said.number > after]
        missed = fresh[0].number - after - 1 if fresh else 0
        return fresh, missed

    def prune(self, active: set[str]) -> None:
        """Forget leases that have ended, and those to which nobody listens any more."""
        for lease_id, lease_inputs in list(self._by_lease.items()):
            if lease_id not in active or self._clock.monotonic() - lease_inputs.asked_s >= LISTENER_TIMEOUT_S:
                del self._by_lease[lease_id]
