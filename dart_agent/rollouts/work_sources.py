"""Work without a data manager: a fixed list of rollouts.

Role: `InMemoryWorkSource` is a `WorkSource` for the command line and for small scripts. Rule: every item ends exactly once: reported, or
given up after a few tries. Non-goals: storing anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from dart_agent.errors import StoreError
from dart_agent.types import Trajectory, WorkItem
from dart_envs.types import RgbImage

MAX_ATTEMPTS = 3


class InMemoryWorkSource:
    """Hands out items in order. `finished`: every one has ended; `failed`: those without a trajectory, with their causes."""

    def __init__(
        self, items: Iterable[WorkItem], on_report: Callable[[Trajectory, Mapping[str, RgbImage]], None] | None = None
    ) -> None:
        self._queue = deque(items)
        self._held: dict[str, WorkItem] = {}
        self._attempts: Counter[str] = Counter()
        self._finished_ids: set[str] = set()
        self._left = len(self._queue)
        self._on_report = on_report
        self.failed: dict[str, str] = {}
        self.finished = asyncio.Event()

    async def acquire(self, worker_id: str) -> WorkItem | None:
        """Next item, None when all are handed out."""
        if not self._queue:
            return None
        item = self._queue.popleft()
        self._held[item.rollout_id] = item
        return item

    async def report(self, trajectory: Trajectory, images: Mapping[str, RgbImage]) -> None:
        """The item has ended. Raises StoreError for one that was never handed out."""
        if self._held.pop(trajectory.rollout_id, None) is None:
            if trajectory.rollout_id not in self._finished_ids:
                raise StoreError(f"{trajectory.rollout_id} was never handed out")
            return
        if self._on_report is not None:
            self._on_report(trajectory, images)
        self._ended(trajectory.rollout_id)

    async def abandon(self, item: WorkItem, cause: str, *, uses_attempt: bool = True) -> None:
        """Back to the end of the list, or given up after `MAX_ATTEMPTS`: all of them count, because nobody starts again what is away."""
        rollout_id = item.rollout_id
        if self._held.pop(rollout_id, None) is None:
            return
        self._attempts[rollout_id] += 1
        if self._attempts[rollout_id] < MAX_ATTEMPTS:
            self._queue.append(item)
            return
        self.failed[rollout_id] = cause
        self._ended(rollout_id)

    def _ended(self, rollout_id: str) -> None:
        self._finished_ids.add(rollout_id)
        self._left -= 1
        if self._left == 0:
            self.finished.set()
