"""What is simulated: sizes, settings of production, latency models.

Role: `Scenario`, the input of a simulation. Rule: settings of scheduling, routing and weight updates are the classes of production.
Non-goals: the simulation (`system`), a recipe's scenario (`command`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dart_agent.inference.decisions.retries import RetrySettings
from dart_agent.inference.decisions.routing import RoutingSettings
from dart_train.scheduling.settings import SchedulerSettings
from dart_train.simulation.models import SystemModels


@dataclass(frozen=True, slots=True)
class Scenario:
    """One system, and how long it is looked at.

    Attributes:
        desktops: Number of desktops.
        workers: Number of inference workers.
        rollout_workers: Processes that hold the desktops.
        tasks: Number of training tasks.
        families: Number of task families.
        named_tasks: Ids of the training tasks, in the place of `tasks` and `families`; empty: made from these.
        rollouts_per_task: Rollouts of a group.
        max_steps: Step limit of an episode.
        hours: Length of the window in which figures are taken.
        warm_up_hours: Simulated time before it.
        seed: Seed of everything random.
        scheduler: Settings of the scheduler.
        routing: Settings of the router.
        retries: Settings of retries.
        max_updating: Most workers that take weights at the same time.
        batch_waits_for_workers: Whether mode `batch` begins the next batch only when all workers have the new weights, as a system that
            samples and trains in turns does; a run of ours begins it when they are published.
        models: Latencies.
        stuck_after_s: A rollout that is queued or assigned for longer without a change counts as stuck. Longer than any episode, train step
            and repair that is simulated.
        gantt_s: How many seconds from the begin of the window the states of slots and workers are recorded for a chart; 0: none.
    """

    desktops: int
    workers: int
    rollout_workers: int = 1
    tasks: int = 200
    families: int = 10
    named_tasks: tuple[str, ...] = ()
    rollouts_per_task: int = 8
    max_steps: int = 30
    hours: float = 1.0
    warm_up_hours: float = 0.5
    seed: int = 0
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    retries: RetrySettings = field(default_factory=RetrySettings)
    max_updating: int = 1
    batch_waits_for_workers: bool = False
    models: SystemModels = field(default_factory=SystemModels)
    stuck_after_s: float = 3600.0
    gantt_s: float = 0.0

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Ids of the training tasks; where they have no names, spread evenly over the families."""
        return self.named_tasks or tuple(
            f"simulated/family-{index % self.families:03d}/{index:05d}" for index in range(self.tasks)
        )
