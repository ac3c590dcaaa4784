"""Desktops and episodes as objects, and what the simulated trainer and the simulated weight updates need of the system.

Role: `SimulatedSystem`, the protocol that `system.Simulation` fulfils, so that the parts do not import it. Rule: only what is used.
Non-goals: an extension point.
"""

from __future__ import annotations

from typing import Protocol

from dart_agent.inference.decisions.routing import Router
from dart_train.scheduling.events import Event
from dart_train.simulation.engine import SimulatedEngine, SimulatedRequest
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
    def coupled(self) -> bool:
        """Whether rollouts and trainer take turns."""
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


class SimulatedEpisode:
    """A rollout as it is played: what it will be, and how far it is.

    Args:
        rollout_id: The rollout.
        group_id: Its group.
        task_id: Its task.
        steps: How many steps it will have.
        succeeds: Whether its reward will be 1.

    Attributes:
        step: Steps so far.
        rows: Oldest and newest version of each step's tokens.
        min_version: Oldest version so far.
        max_version: Newest version so far.
    """

    __slots__ = ("group_id", "max_version", "min_version", "rollout_id", "rows", "step", "steps", "succeeds", "task_id")

    def __init__(self, rollout_id: str, group_id: str, task_id: str, steps: int, succeeds: bool) -> None:
        self.rollout_id = rollout_id
        self.group_id = group_id
        self.task_id = task_id
        self.steps = steps
        self.succeeds = succeeds
        self.step = 0
        self.rows: list[tuple[int, int]] = []
        self.min_version: int | None = None
        self.max_version: int | None = None


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
