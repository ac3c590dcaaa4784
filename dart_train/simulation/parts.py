"""Desktops, episodes and prepared tasks as objects, and what the simulated trainer and the simulated weight updates need of the system.

Role: `SimulatedSystem`, the protocol that `system.Simulation` fulfils, so that the parts do not import it. Rule: only what is used.
Non-goals: an extension point.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Protocol

from dart_agent.inference.decisions.routing import Router
from dart_train.scheduling.events import Event
from dart_train.simulation.engine import SimulatedEngine, SimulatedRequest
from dart_train.simulation.episodes import EpisodeDraw
from dart_train.simulation.event_heap import EventHeap
from dart_train.simulation.models import SystemModels
from dart_train.simulation.records import RunRecorder
from dart_train.simulation.scenario import Scenario
from dart_train.utilisation import SlotActivity


class SimulatedSystem(Protocol):
    """The system as its parts see it.

    Attributes:
        scenario: What is simulated.
        models: Its latencies.
        heap: Virtual time.
        router: Production's router.
        engines: The inference workers by name.
        record: What happened.
    """

    scenario: Scenario
    models: SystemModels
    heap: EventHeap
    router: Router
    engines: dict[str, SimulatedEngine]
    record: RunRecorder

    @property
    def waits_for_workers(self) -> bool:
        """Whether the next batch begins only when all workers have the new weights."""
        ...

    def decide(self, event: Event) -> None:
        """Let production decide, and do what it says."""
        ...

    def publish(self, version: int) -> None:
        """Bring all inference workers to a version."""
        ...

    def workers_updated(self) -> None:
        """All inference workers have the newest version."""
        ...

    def send_waiting(self) -> None:
        """Route the requests that no worker could take."""
        ...

    def send_again(self, request: SimulatedRequest, failed: str) -> None:
        """Send a request that a worker failed."""
        ...

    def slot_waits(self, request: SimulatedRequest, activity: SlotActivity) -> None:
        """Note that a request stands still, or goes on."""
        ...


class PreparedTasks:
    """Snapshots of prepared tasks: those of open groups, and the latest of the others.

    Args:
        kept: How many of the others.
    """

    def __init__(self, kept: int) -> None:
        self._limit = kept
        self._groups: dict[str, str] = {}
        self._open: Counter[str] = Counter()
        self._snapshots: set[str] = set()
        self._unused: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._snapshots

    def opened(self, group_id: str, task_id: str) -> None:
        """A group of a task begins.

        Args:
            group_id: The group.
            task_id: Its task.
        """
        self._groups[group_id] = task_id
        self._open[task_id] += 1
        self._unused.pop(task_id, None)

    def closed(self, group_id: str) -> None:
        """A group ends, or is dropped after its end.

        Args:
            group_id: The group.
        """
        task_id = self._groups.pop(group_id, None)
        if task_id is not None:
            self._open[task_id] -= 1
            self._make_room(task_id)

    def add(self, task_id: str) -> None:
        """A task was prepared, and the snapshot of it taken.

        Args:
            task_id: The task.
        """
        self._snapshots.add(task_id)
        self._make_room(task_id)

    def _make_room(self, task_id: str) -> None:
        if self._open[task_id] or task_id not in self._snapshots:
            return
        self._unused[task_id] = None
        while len(self._unused) > self._limit:
            self._snapshots.discard(self._unused.popitem(last=False)[0])


class SimulatedEpisode:
    """A rollout as it is played: what it will be, and how far it is.

    Args:
        rollout_id: The rollout.
        task_id: Its task.
        draw: Its length and its outcome.

    Attributes:
        step: Steps so far.
        rows: Oldest and newest version of each step's tokens.
        min_version: Oldest version so far.
        max_version: Newest version so far.
    """

    __slots__ = ("draw", "max_version", "min_version", "rollout_id", "rows", "step", "task_id")

    def __init__(self, rollout_id: str, task_id: str, draw: EpisodeDraw) -> None:
        self.rollout_id = rollout_id
        self.task_id = task_id
        self.draw = draw
        self.step = 0
        self.rows: list[tuple[int, int]] = []
        self.min_version: int | None = None
        self.max_version: int | None = None

    @property
    def is_ending(self) -> bool:
        """Whether the present step is the last one."""
        return self.step + 1 >= self.draw.steps


class SimulatedSlot:
    """One desktop and what it does.

    Args:
        name: Its name.
        worker_id: The rollout worker that holds it.

    Attributes:
        episode: What it plays.
        request: The request that it waits for.
        request_id: Its latest request for work.
        generation: Grows when the desktop fails, so that older events do not count any more.
        stop: Whether it was told to stop: True: and to keep the rollout; None: it was not.
        assigned_s: When it got its rollout.
        prepare_s: How long it was prepared.
    """

    __slots__ = (
        "assigned_s",
        "episode",
        "generation",
        "name",
        "prepare_s",
        "request",
        "request_id",
        "stop",
        "worker_id",
    )

    def __init__(self, name: str, worker_id: str) -> None:
        self.name = name
        self.worker_id = worker_id
        self.episode: SimulatedEpisode | None = None
        self.request: SimulatedRequest | None = None
        self.request_id = ""
        self.generation = 0
        self.stop: bool | None = None
        self.assigned_s = 0.0
        self.prepare_s = 0.0
