"""Steps in the event history: counted as they happen, written together once per tick.

Rule: a step costs no write of its own. Of each lease, desktop and fencing_token that stepped since the last tick there is one event
`stepped`, with how many steps, how long they took together, and the slowest; so the history tells who stepped which desktop when, to the
tick. Non-goals: what was done in a step (`dashboard.replay`), figures over all leases (`metrics`).
"""

from __future__ import annotations

from dart_server.database.repository import NewEvent, Repository
from dart_server.records import LeaseRecord


class StepCounter:
    """Counts of the running tick."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], list[float]] = {}

    def add(self, lease: LeaseRecord, desktop_id: str, fencing_token: int, duration_s: float) -> None:
        """Count one step."""
        counted = self._counts.get((lease.lease_id, desktop_id, fencing_token))
        if counted is None:
            self._counts[(lease.lease_id, desktop_id, fencing_token)] = [1, duration_s, duration_s]
            return
        counted[0] += 1
        counted[1] += duration_s
        counted[2] = max(counted[2], duration_s)

    def write(self, repository: Repository) -> None:
        """Queue the events of what was counted, and begin anew."""
        counts, self._counts = self._counts, {}
        for (lease_id, desktop_id, fencing_token), (steps, seconds, slowest_s) in counts.items():
            data = {"steps": int(steps), "seconds": round(seconds, 4), "slowest_s": round(slowest_s, 4)}
            repository.add_event(NewEvent("stepped", desktop_id, lease_id, fencing_token, data))
