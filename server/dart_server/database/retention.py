"""How long the farm remembers: what ended longer ago than `history_days`, or lies before the last `history_events` events, is forgotten, a
little at a time.

Rule: called on every tick; it does a bounded piece of work every second, more than the busiest farm writes in that time, and none while the
database is behind or away. Non-goals: what may be forgotten (`repository.retention`).
"""

from __future__ import annotations

from dart_server.database.repository import Repository
from dart_server.database.write_queue import Database
from dart_server.wire import Clock

EVERY_S = 1.0
EVENTS, BATCH_ROWS = 3000, 500
"""Rows of a piece: more than the fastest farm that was measured writes in that time, with some four events for each lease."""
SELDOM = 10
"""Snapshots and keys, which are made more slowly, have a piece of every so many."""
MAX_PENDING_WRITES = 1000
"""Writes that wait: then there is something better to do."""
DAY_S = 86_400.0
FOR_EVER = 0.0


class Retention:
    """Forgets what is old. `days` 0: nothing for its age; `events` 0: nothing for the length of the history."""

    def __init__(self, repository: Repository, database: Database, clock: Clock, *, days: float, events: int) -> None:
        self._repository = repository
        self._database = database
        self._clock = clock
        self._days = days
        self._events = events
        self._not_before_s = clock.monotonic()
        self._pieces = 0

    async def tick(self) -> None:
        """Raises `DatabaseUnavailableError`."""
        now_s = self._clock.monotonic()
        if not (self._days or self._events) or now_s < self._not_before_s:
            return
        self._not_before_s = now_s + EVERY_S
        if self._database.unavailable_reason is not None or self._database.pending_writes > MAX_PENDING_WRITES:
            return
        before = self._clock.time() - self._days * DAY_S if self._days else FOR_EVER
        if await self._repository.has_expired_events(before, self._events or None):
            self._repository.delete_old_events(before, EVENTS, max_events=self._events or None)
        self._repository.delete_old_leases(before, BATCH_ROWS)
        self._repository.delete_old_desktops(before, BATCH_ROWS)
        if self._pieces % SELDOM == 0:
            self._repository.delete_old_snapshots(before, BATCH_ROWS)
            self._repository.delete_old_keys(before, BATCH_ROWS)
        self._pieces += 1
