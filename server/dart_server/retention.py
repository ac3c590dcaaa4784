"""How long the farm remembers: what ended longer ago than `history_days` is forgotten, a little at a time.

Rule: called on every tick; it does a bounded piece of work every few seconds, and none while the database is behind or away.
Non-goals: what may be forgotten (`repository.retention`).
"""

from __future__ import annotations

from dart_server.clock import Clock
from dart_server.db import Database
from dart_server.repository import Repository

EVERY_S = 5.0
EVENTS, OTHERS = 5000, 500
"""Rows of a piece: more than the busiest farm writes in that time."""
BEHIND = 1000
"""Writes that wait: then there is something better to do."""
DAY_S = 86_400.0


class Retention:
    """Forgets what is old. `days` 0 keeps everything."""

    def __init__(self, repository: Repository, database: Database, clock: Clock, days: float) -> None:
        self._repository = repository
        self._database = database
        self._clock = clock
        self._days = days
        self._not_before_s = clock.monotonic()

    def tick(self) -> None:
        now_s = self._clock.monotonic()
        if not self._days or now_s < self._not_before_s:
            return
        self._not_before_s = now_s + EVERY_S
        if self._database.away is not None or self._database.waiting > BEHIND:
            return
        before = self._clock.time() - self._days * DAY_S
        self._repository.forget_events(before, EVENTS)
        self._repository.forget_leases(before, OTHERS)
        self._repository.forget_desktops(before, OTHERS)
        self._repository.forget_snapshots(before, OTHERS)
