"""A scheduler state with the moves that tests make."""

from __future__ import annotations

from itertools import count
from typing import Any, TypeVar

from dart_agent.types import Purpose
from dart_train.scheduling.commands import AssignRollout, Command, SearchPool
from dart_train.scheduling.decide import decide
from dart_train.scheduling.events import (
    BatchAsked,
    BatchDone,
    Event,
    PhasePlan,
    PhaseStarted,
    PolicyPublished,
    PoolSearched,
    RolloutEnded,
    WorkAsked,
)
from dart_train.scheduling.settings import SchedulerSettings
from dart_train.scheduling.state import SchedulerState

TASKS = tuple(f"s/{family}/{number}" for family in ("tick", "type") for number in range(6))
C = TypeVar("C")


class SchedulingHarness:
    """Events in, commands out; time is `now_s`."""

    def __init__(self, **settings: Any) -> None:
        ids = count()
        batch = {"min_groups": 2, "max_groups": 2, "max_staleness": 2}
        self.settings = SchedulerSettings.model_validate({"batch": batch} | settings)
        self.state = SchedulerState(self.settings, lambda prefix: f"{prefix}_{next(ids)}")
        self.now_s = 0.0
        self.requests = count()
        self.log: list[Command] = []
        self.pool: set[str] = set()
        """Tasks that the experience pool has a success of."""

    def do(self, event: Event) -> list[Command]:
        commands = decide(self.state, event)
        self.log += commands
        for search in only(commands, SearchPool):
            commands += self.do(PoolSearched(self.now_s, search.group_id, search.task_id in self.pool))
        return commands

    def train(self, name: str = "train", **changes: Any) -> list[Command]:
        spec: dict[str, Any] = {
            "purpose": Purpose.TRAIN,
            "task_ids": TASKS,
            "rollouts_per_task": 4,
            "max_steps": 10,
            "endless": True,
        }
        return self.do(PhaseStarted(self.now_s, PhasePlan(name, **(spec | changes))))

    def evaluate(self, name: str = "eval", **changes: Any) -> list[Command]:
        return self.train(
            name,
            **({"purpose": Purpose.EVAL, "task_ids": TASKS[:2], "rollouts_per_task": 1, "endless": False} | changes),
        )

    def ask(self, worker: str = "w", **options: Any) -> AssignRollout | None:
        found = only(self.do(WorkAsked(self.now_s, worker, f"request-{next(self.requests)}", **options)), AssignRollout)
        return found[0] if found else None

    def must_ask(self, worker: str = "w", **options: Any) -> AssignRollout:
        assigned = self.ask(worker, **options)
        assert assigned is not None
        return assigned

    def end(self, rollout_id: str, reward: float | None = 1.0, version: int = 0, **options: Any) -> list[Command]:
        return self.do(
            RolloutEnded(self.now_s, rollout_id, reward, steps=3, version_min=version, version_max=version, **options)
        )

    def group(self, rewards: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0), version: int = 0) -> str:
        """Ask for and end one whole group; returns its id."""
        assigned = [self.must_ask() for _ in rewards]
        assert len({each.group_id for each in assigned}) == 1
        for each, reward in zip(assigned, rewards, strict=True):
            self.end(each.rollout_id, reward, version)
        return assigned[0].group_id

    def batch(self, version: int = 0) -> list[Command]:
        return self.do(BatchAsked(self.now_s, version))

    def update(self, version: int) -> list[Command]:
        return self.do(PolicyPublished(self.now_s, version)) + self.do(BatchDone(self.now_s, version))


def only(commands: list[Command], kind: type[C]) -> list[C]:
    """The commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]
