"""How much one key may do at a time: requests under way, open WebSockets, requests per second, bytes of files in the farm's memory; and how
many WebSockets and bytes there are in all.

Rule: what is over a limit is refused at once with `too_many_requests` and Retry-After, before any work is done; keys of scope `admin`
have no limit of their own. When a key ends, whatever runs under it ends (`cut`). Non-goals: leases and claims (their quotas are the key's).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dart_server.clock import Clock
from dart_server.errors import FarmError
from dart_server.wire import ErrorCode

BURST_S = 2.0
"""A key that was silent may send this many seconds' worth of requests at once."""


@dataclass(slots=True, eq=False)
class Visit:
    """One request or WebSocket under way. `cut` when its key ended meanwhile."""

    key_id: str
    stream: bool
    task: asyncio.Task[object] | None
    cut: bool = False
    unlimited: bool = False
    nbytes: int = 0


@dataclass(slots=True)
class _Use:
    allowance: float
    counted_at_s: float
    visits: set[Visit] = field(default_factory=set)
    streams: int = 0
    nbytes: int = 0


class Limits:
    """Counts what runs, by key."""

    def __init__(
        self,
        clock: Clock,
        *,
        requests_per_key: int,
        streams_per_key: int,
        streams: int,
        requests_per_s: float,
        nbytes_per_key: int,
        nbytes: int,
    ) -> None:
        self._clock = clock
        self._requests_per_key = requests_per_key
        self._streams_per_key = streams_per_key
        self._streams = streams
        self._requests_per_s = requests_per_s
        self._nbytes_per_key = nbytes_per_key
        self._nbytes = nbytes
        self.nbytes_held = 0
        self._uses: dict[str, _Use] = {}
        self.streams_open = 0

    def enter(self, key_id: str, *, stream: bool, unlimited: bool) -> Visit:
        """Count one in. Raises `too_many_requests`."""
        now_s = self._clock.monotonic()
        burst = self._requests_per_s * BURST_S
        use = self._uses.get(key_id)
        if use is None:
            use = self._uses[key_id] = _Use(burst, now_s)
        use.allowance = min(burst, use.allowance + (now_s - use.counted_at_s) * self._requests_per_s)
        use.counted_at_s = now_s
        if not unlimited:
            if use.allowance < 1:
                raise _refused(f"this key sends more than {self._requests_per_s:g} requests per second")
            if len(use.visits) - use.streams >= self._requests_per_key and not stream:
                raise _refused(f"this key has {self._requests_per_key} requests under way")
            if stream and use.streams >= self._streams_per_key:
                raise _refused(f"this key has {self._streams_per_key} WebSockets open")
            if stream and self.streams_open >= self._streams:
                raise _refused(f"the farm has {self._streams} WebSockets open")
            use.allowance -= 1
        visit = Visit(key_id, stream, asyncio.current_task(), unlimited=unlimited)
        use.visits.add(visit)
        use.streams += stream
        self.streams_open += stream
        return visit

    def leave(self, visit: Visit) -> None:
        """Count one out."""
        use = self._uses[visit.key_id]
        use.visits.discard(visit)
        use.streams -= visit.stream
        use.nbytes -= visit.nbytes
        self.streams_open -= visit.stream
        self.nbytes_held -= visit.nbytes

    def hold(self, visit: Visit, nbytes: int) -> None:
        """The request keeps so many bytes more in memory until its end. Raises `too_many_requests`; `invalid` where it alone is more than
        there is room for, ever."""
        use = self._uses[visit.key_id]
        room = self._nbytes if visit.unlimited else min(self._nbytes, self._nbytes_per_key)
        if visit.nbytes + nbytes > room:
            detail = f"this request would hold {visit.nbytes + nbytes} bytes, and there is room for {room}"
            hint = "Move the file in parts, or through a tunnel."
            raise FarmError(ErrorCode.INVALID, detail, hint=hint, status=413)
        if use.nbytes + nbytes > self._nbytes_per_key and not visit.unlimited:
            raise _refused(f"this key has {use.nbytes} bytes of files under way, of {self._nbytes_per_key} at most")
        if self.nbytes_held + nbytes > self._nbytes:
            raise _refused(f"the farm has {self.nbytes_held} bytes of files under way, of {self._nbytes} at most")
        visit.nbytes += nbytes
        use.nbytes += nbytes
        self.nbytes_held += nbytes

    def cut(self, key_id: str) -> int:
        """End what runs under a key; how many that were."""
        use = self._uses.get(key_id)
        visits = list(use.visits) if use else []
        for visit in visits:
            visit.cut = True
            if visit.task is not None and visit.task is not asyncio.current_task():
                visit.task.cancel()
        return len(visits)

    def under_way(self, key_id: str) -> int:
        """Requests and WebSockets of a key."""
        use = self._uses.get(key_id)
        return len(use.visits) if use else 0


def _refused(detail: str) -> FarmError:
    return FarmError(ErrorCode.TOO_MANY_REQUESTS, detail, hint="Wait for some to end, then repeat; Retry-After tells.")
