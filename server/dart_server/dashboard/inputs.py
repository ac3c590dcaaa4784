"""What people do on desktops, for the lease's holder who records it.

Rule: noted only while somebody listens (the first request begins it, `FORGET_S` without one ends it), for one lease each, at most
`MOST` inputs; what the guest was given, in its order, with the time of each. Non-goals: who may listen (asked before), what it means.
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

MOST = 4096
"""Inputs kept for one lease; who listens too seldom misses the oldest, and is told."""
FORGET_S = 120.0


@dataclass(slots=True, eq=False)
class _Tape:
    """What was done under one lease since somebody listens."""

    asked_s: float
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    inputs: deque[wire.HumanInput] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class HumanInputLog:
    """The tapes of all leases to which somebody listens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tapes: dict[str, _Tape] = {}

    def note(self, lease_id: str, at_s: float, events: Iterable[dict[str, Any]]) -> None:
        """The guest was given these events; `at_s` in seconds since 1970."""
        tape = self._tapes.get(lease_id)
        if tape is None:
            return
        said = {"number": next(tape.numbers), "at": utc(at_s), "events": list(events)}
        tape.inputs.append(wire.HumanInput.model_validate(said))
        if len(tape.inputs) > MOST:
            tape.inputs.popleft()
        tape.changed.set()

    def turned(self, lease_id: str) -> None:
        """Control was taken or let go: who waits is answered."""
        if lease_id in self._tapes:
            self._tapes[lease_id].changed.set()

    async def listen(self, lease_id: str, after: int, wait_s: float) -> tuple[list[wire.HumanInput], int]:
        """Inputs with a number above `after`, waiting up to `wait_s` for the first, and how many of those are gone already."""
        tape = self._tapes.setdefault(lease_id, _Tape(self._clock.monotonic()))
        tape.asked_s = self._clock.monotonic()
        fresh = [said for said in tape.inputs if said.number > after]
        if not fresh and wait_s:
            tape.changed.clear()
            with contextlib.suppress(TimeoutError):
                await wait_for(self._clock, wait_s, tape.changed.wait())
            tape.asked_s = self._clock.monotonic()
            fresh = [said for said in tape.inputs if said.number > after]
        missed = fresh[0].number - after - 1 if fresh else 0
        return fresh, missed

    def keep(self, active: set[str]) -> None:
        """Forget leases that have ended, and those to which nobody listens any more."""
        for lease_id, tape in list(self._tapes.items()):
            if lease_id not in active or self._clock.monotonic() - tape.asked_s >= FORGET_S:
                del self._tapes[lease_id]
