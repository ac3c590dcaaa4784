"""The state of the scheduler: which phases, groups, rollouts and workers there are, and who waits for work.

Role: counters and queues over the objects of `entities` that make every event cost O(1) or O(log n). Rule: only `dart_train.scheduling`
changes them, and finished rollouts and groups leave them; a state can be rebuilt at any time from what its commands stored (`restoring`).
Non-goals: decisions (`decide`), storing.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping

from dart_agent.types import PolicyVersion, family_of
from dart_train.curation.task_sampler import TaskSampler
from dart_train.scheduling.entities import Group, Phase, Reservation, Rollout, RolloutState, Worker
from dart_train.scheduling.events import PhasePlan
from dart_train.scheduling.measures import Measures
from dart_train.scheduling.outcomes import Outcomes
from dart_train.scheduling.settings import SchedulerSettings


class SchedulerState:
    """Everything that decisions are made from.

    Args:
        settings: The settings.
        new_id: Makes a unique id from a prefix (`grp`, `roll`); a counter is enough in a simulation.

    Attributes:
        settings: The settings.
        phases: Phases by name, those that have ended included.
        active: Active phases in the order in which they get desktops.
        rollouts: Unfinished rollouts by id.
        groups: Open and ready groups by id, and those that the trainer has.
        workers: Rollout workers by name.
        requests: Assigned rollouts by the request that they answered.
        asks: Requests that wait for work, and the name of their worker.
        reserved: What waits for the next process of a worker, by its name.
        issued: Groups of the batch that the trainer has, in its order; None: it has none.
        version: Newest published version.
        trainer_version: Newest version that a train step made.
        outcomes: How the latest training rollouts of each task and family went.
        groups_by_task: Groups that the run's training phases have opened, by task.
        measures: Running estimates.
    """

    def __init__(self, settings: SchedulerSettings, new_id: Callable[[str], str]) -> None:
        self.settings = settings
        self.new_id = new_id
        self.phases: dict[str, Phase] = {}
        self.active: list[Phase] = []
        self.rollouts: dict[str, Rollout] = {}
        self.groups: dict[str, Group] = {}
        self.ready: dict[str, Group] = {}
        self.workers: dict[str, Worker] = {}
        self.requests: dict[str, Rollout] = {}
        self.asks: dict[str, str] = {}
        self.waiting_workers: dict[str, Worker] = {}
        self.reserved: dict[str, Reservation] = {}
        self.issued: tuple[Group, ...] | None = None
        self.version: PolicyVersion = 0
        self.trainer_version: PolicyVersion = 0
        self.outcomes = Outcomes(settings.curation.task_sampler.window, settings.curation.success_at)
        self.groups_by_task: Counter[str] = Counter()
        self.measures = Measures()
        self.group_seq = 0
        self.open_training_groups = 0
        self.training_rollouts = 0
        """Unfinished training rollouts."""
        self.running_training = 0
        """Assigned training rollouts."""
        self.desktops = 0
        """Desktops of all workers that gave a sign of life."""
        self.expiries: list[tuple[float, str]] = []
        """Heap of (when to look at a worker, its name); one entry per worker."""

    # Questions

    @property
    def training_active(self) -> bool:
        """Whether a training batch may still come."""
        return self.training_rollouts > 0 or self.issued is not None or any(phase.trains for phase in self.active)

    # Changes, for `dart_train.scheduling` only

    def add_phase(
        self,
        plan: PhasePlan,
        *,
        state: str = "active",
        counts: Mapping[str, int] | None = None,
        groups_opened: int = 0,
    ) -> Phase:
        """Add a phase; phases are added in the order of their start.

        The task sampler of an endless phase knows what all training phases of the run have opened and how their rollouts went.

        Args:
            plan: What it runs.
            state: active, stopped or done.
            counts: Its finished rollouts by state, of a phase that was stored.
            groups_opened: Groups that it has opened, where it is for training and was stored.

        Returns:
            The phase.
        """
        phase = Phase(plan, seq=len(self.phases) + 1, state=state, groups_opened=groups_opened)
        phase.counts.update(counts or {})
        if plan.endless:
            by_family: dict[str, list[str]] = defaultdict(list)
            for task_id in plan.task_ids:
                by_family[family_of(task_id)].append(task_id)
            phase.sampler = TaskSampler(
                by_family,
                self.settings.curation.task_sampler,
                self.groups_by_task,
                success_at=self.settings.curation.success_at,
                by_family=self.settings.curation.evidence == "family",
            )
            self._tell_all(phase.sampler)
        self.phases[plan.name] = phase
        if state == "active":
            insort(self.active, phase, key=Phase.order)
        return phase

    def tell_samplers(self, task_id: str) -> None:
        """Let the task samplers see how the latest rollouts of a task, or of its family, went.

        Args:
            task_id: The task.
        """
        curation = self.settings.curation
        if curation.task_sampler.rule == "learnability":
            name = task_id if curation.evidence == "task" else family_of(task_id)
            rewards = self.outcomes.evidence(task_id, curation.evidence).latest(curation.task_sampler.window)
            for phase in self.active:
                if phase.sampler is not None:
                    phase.sampler.observe(name, rewards)

    def _tell_all(self, sampler: TaskSampler) -> None:
        """Let a new task sampler see everything that `tell_samplers` has told."""
        curation = self.settings.curation
        if curation.task_sampler.rule == "learnability":
            histories = self.outcomes.tasks if curation.evidence == "task" else self.outcomes.families
            for name, history in histories.items():
                if history.rewards:
                    sampler.observe(name, history.latest(curation.task_sampler.window))

    def count_group(self, phase: Phase, task_id: str, *, chosen: bool = False) -> None:
        """Count a group that a phase opens; the task samplers of all active phases count those for training.

        Args:
            phase: The phase.
            task_id: The task of the group.
            chosen: Whether the phase's own sampler chose the task, and so counts it already.
        """
        if not phase.trains:
            return
        phase.groups_opened += 1
        self.groups_by_task[task_id] += 1
        for each in self.active:
            if each.sampler is not None and not (chosen and each is phase):
                each.sampler.take(task_id)

    def see_worker(
        self, worker_id: str, now_s: float, desktops: int | None = None, kv_cache_usage: float | None = None
    ) -> Worker:
        """Note a sign of life of a worker."""
        worker = self.workers.get(worker_id)
        if worker is None:
            worker = self.workers[worker_id] = Worker(worker_id)
        if not worker.expires_s:
            heapq.heappush(self.expiries, (now_s + self.settings.assignment_timeout_s, worker_id))
        worker.expires_s = now_s + self.settings.assignment_timeout_s
        if desktops is not None and desktops != worker.desktops:
            self.desktops += desktops - (worker.desktops or 0)
            worker.desktops = desktops
        if kv_cache_usage is not None:
            worker.see_kv_cache(kv_cache_usage, now_s)
        return worker

    def forget_worker(self, worker: Worker) -> None:
        """Remove a worker that is gone and holds nothing."""
        self.desktops -= worker.desktops or 0
        for request_id in worker.waiting:
            self.asks.pop(request_id, None)
        self.waiting_workers.pop(worker.worker_id, None)
        self.workers.pop(worker.worker_id, None)

    def add_rollout(self, rollout: Rollout) -> None:
        """Add an unfinished rollout; it enters a state next."""
        group, phase = rollout.group, rollout.group.phase
        self.rollouts[rollout.rollout_id] = rollout
        group.unfinished[rollout.rollout_id] = rollout
        phase.unfinished += 1
        if phase.trains:
            self.training_rollouts += 1

    def enter_queue(self, rollout: Rollout, *, first: bool = False) -> None:
        """Queue a rollout: behind the others, or before them."""
        group, phase = rollout.group, rollout.group.phase
        rollout.state = "queued"
        phase.counts["queued"] += 1
        group.queued += 1
        if phase.plan.endless:
            (group.queue.appendleft if first else group.queue.append)(rollout)
            phase.nfilling += group.queued == 1
            if not group.in_filling:
                group.in_filling = True
                (phase.filling.appendleft if first else phase.filling.append)(group)
        else:
            (phase.queue.appendleft if first else phase.queue.append)(rollout)

    def enter_parked(self, rollout: Rollout) -> None:
        """Keep a rollout with its partial trajectory until it is continued."""
        group, phase = rollout.group, rollout.group.phase
        rollout.state = "parked"
        phase.counts["parked"] += 1
        if group.state == "open":
            phase.parked.append(rollout)
        else:
            phase.leftovers.setdefault(group.task_id, deque()).append(rollout)

    def enter_assigned(self, rollout: Rollout, worker: Worker, request_id: str, now_s: float) -> None:
        """Assign a rollout to a worker."""
        group, phase = rollout.group, rollout.group.phase
        rollout.state = "assigned"
        rollout.worker, rollout.request_id = worker, request_id
        rollout.assigned_s, rollout.assigned_version = now_s, self.version
        rollout.leads = not group.led
        group.led = True
        phase.counts["assigned"] += 1
        worker.running[rollout.rollout_id] = rollout
        self.requests[request_id] = rollout
        if phase.trains:
            self.running_training += 1

    def leave(self, rollout: Rollout) -> None:
        """Take a rollout out of the state in which it is; it enters another, or is removed."""
        phase = rollout.group.phase
        phase.counts[rollout.state] -= 1
        if rollout.state == "queued":
            rollout.group.queued -= 1
            if phase.plan.endless:
                phase.nfilling -= rollout.group.queued == 0
        elif rollout.state == "assigned":
            worker = rollout.worker
            assert worker is not None, "an assigned rollout has a worker"
            worker.running.pop(rollout.rollout_id, None)
            worker.stopping.pop(rollout.rollout_id, None)
            if self.requests.get(rollout.request_id or "") is rollout:
                del self.requests[rollout.request_id or ""]
            rollout.worker = rollout.request_id = None
            if phase.trains:
                self.running_training -= 1

    def remove(self, rollout: Rollout, state: RolloutState) -> None:
        """Remove a rollout for good, as `state`."""
        group, phase = rollout.group, rollout.group.phase
        self.leave(rollout)
        rollout.state = state
        phase.counts[state] += 1
        del self.rollouts[rollout.rollout_id]
        del group.unfinished[rollout.rollout_id]
        phase.unfinished -= 1
        if phase.trains:
            self.training_rollouts -= 1

    def add_ready(self, group: Group) -> None:
        """Add a group to those that wait for the trainer."""
        self.ready[group.group_id] = group
        group.phase.ready_groups += 1

    def take_ready(self, group: Group) -> None:
        """Take a group out of those that wait for the trainer."""
        del self.ready[group.group_id]
        group.phase.ready_groups -= 1
