"""The simulated system: production's decisions, driven by an event heap.

Role: `Simulation` executes the commands of `dart_train.scheduling.decide` on simulated desktops, sends requests where `Router` says, lets
engines take weights when `UpdatePlanner` says, and trains the batches that the scheduler issues. Rule: nothing is decided here; what
desktops, engines and trainer take comes from the latency models; one seed gives one run. Non-goals: figures (`outcome`).

What a desktop does with a rollout:

    ask ─► assigned ─► reset or fork ─► request ─► queued ─► running ─► action ─┬─► next request
                                                                                ├─► evaluate ─► ended ─► ask
                                                                                └─► told to stop: park or abandon ─► ask
"""

from __future__ import annotations

import itertools
from collections import deque
from random import Random

from dart_agent.inference.decisions import retries
from dart_agent.inference.decisions.routing import Route, Router, RouteRequest, WorkerState
from dart_agent.types import Purpose
from dart_train.scheduling import commands as todo
from dart_train.scheduling import events
from dart_train.scheduling.decide import decide
from dart_train.scheduling.settings import SchedulingMode
from dart_train.scheduling.state import SchedulerState
from dart_train.simulation.engine import SimulatedEngine, SimulatedRequest
from dart_train.simulation.episodes import TaskBook, prompt_of, response_length
from dart_train.simulation.event_heap import EventHeap
from dart_train.simulation.parts import PreparedTasks, SimulatedEpisode, SimulatedSlot
from dart_train.simulation.records import RunRecorder
from dart_train.simulation.scenario import Scenario
from dart_train.simulation.training import SimulatedTrainer, StoredRollout
from dart_train.simulation.weights import SimulatedUpdates
from dart_train.utilisation import SlotActivity, WorkerActivity

TRAIN = "train"
HEARTBEAT_S = 10.0


class Simulation:
    """One run of a scenario.

    Args:
        scenario: What is simulated.

    Attributes:
        heap: Virtual time.
        scheduler: The state of production's scheduler.
        router: Production's router.
        trainer: The simulated trainer.
        updates: The weight updates.
        engines: The inference workers by name.
        record: What happened.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.models = scenario.models
        self.heap = EventHeap()
        self._random = Random(scenario.seed)
        self._book = TaskBook(self.models.episode, scenario.seed)
        numbers = itertools.count()
        self.scheduler = SchedulerState(scenario.scheduler, lambda prefix: f"{prefix}_{next(numbers)}")
        self.router = Router(scenario.routing)
        size = -(-scenario.desktops // scenario.rollout_workers)
        self._slots = [
            SimulatedSlot(f"desktop-{index}", f"rollout-{index // size}") for index in range(scenario.desktops)
        ]
        self._desktops: dict[str, int] = {}
        for slot in self._slots:
            self._desktops[slot.worker_id] = self._desktops.get(slot.worker_id, 0) + 1
        self._asking: dict[str, SimulatedSlot] = {}
        self._asks = itertools.count()
        self._running: dict[str, SimulatedSlot] = {}
        self._parked: dict[str, SimulatedEpisode] = {}
        self._solved: set[str] = set()
        """Tasks that a rollout succeeded in: the experience pool, without its limits."""
        self._prepared = PreparedTasks(self.models.desktop.prepared_tasks)
        self._waiting_for_snapshot: dict[str, list[tuple[SimulatedSlot, int]]] = {}
        self._unrouted: deque[SimulatedRequest] = deque()
        self.engines = {
            name: SimulatedEngine(name, self.models.engine, self.heap, self._on_running, self._on_done, self._on_busy)
            for name in (f"policy-{index}" for index in range(scenario.workers))
        }
        begin_s = scenario.warm_up_hours * 3600
        self.record = RunRecorder(
            self.heap,
            [slot.name for slot in self._slots],
            list(self.engines),
            begin_s,
            scenario.gantt_s,
            scenario.stuck_after_s,
        )
        self.trainer = SimulatedTrainer(self)
        self.updates = SimulatedUpdates(self)

    @property
    def waits_for_workers(self) -> bool:
        """Whether the next batch begins only when all workers have the new weights."""
        return self.scenario.batch_waits_for_workers and self.scenario.scheduler.scheduling.mode is SchedulingMode.BATCH

    def run(self) -> None:
        """Simulate the warm-up and the window."""
        scenario, heap = self.scenario, self.heap
        for name in self.engines:
            self.router.set_worker(name, WorkerState.SERVING)
            self.updates.report(name, 0)
        plan = events.PhasePlan(
            TRAIN,
            Purpose.TRAIN,
            scenario.task_ids,
            scenario.rollouts_per_task,
            scenario.max_steps,
            endless=True,
        )
        self.decide(events.PhaseStarted(0.0, plan))
        for worker_id in self._desktops:
            heap.after(HEARTBEAT_S, self._heartbeat, worker_id)
        for slot in self._slots:
            self._ask(slot)
        self._plan_faults()
        self.trainer.ask()
        begin_s = scenario.warm_up_hours * 3600
        heap.run(begin_s)
        self.record.begin()
        heap.run(begin_s + scenario.hours * 3600)

    def decide(self, event: events.Event) -> None:
        """Let production decide, and do what it says.

        Args:
            event: What happened.
        """
        ready = False
        for command in decide(self.scheduler, event):
            if isinstance(command, todo.AssignRollout):
                self._assign(command)
            elif isinstance(command, todo.StopRollout):
                slot = self._running.get(command.rollout_id)
                if slot is not None:
                    slot.stop = command.keep
            elif isinstance(command, todo.OpenGroup):
                self.record.opened(command)
                self._prepared.opened(command.group_id, command.task_id)
            elif isinstance(command, todo.CloseGroup):
                self._prepared.closed(command.group_id)
                ready = ready or command.state == "ready"
                self.record.closed(command)
                if command.state != "ready":
                    self.trainer.drop(command.group_id, command.reason)
            elif isinstance(command, todo.SearchPool):
                found = command.task_id in self._solved
                self.decide(events.PoolSearched(self.heap.now_s, command.group_id, found))
            elif isinstance(command, todo.UnassignRollout):
                if command.state in ("cancelled", "failed"):
                    self._parked.pop(command.rollout_id, None)
                    self.record.tracker.ended(command.rollout_id)
                else:
                    self.record.tracker.moved(command.rollout_id, parked=command.state == "parked")
            elif isinstance(command, todo.FinishRollout):
                self.record.tracker.ended(command.rollout_id)
            elif isinstance(command, (todo.IssueBatch, todo.RepeatBatch)):
                self.trainer.take(command.group_ids)
        if ready:
            self.trainer.ask()

    def publish(self, version: int) -> None:
        """Bring all inference workers to a version.

        Args:
            version: The version.
        """
        self.updates.publish(version)

    def workers_updated(self) -> None:
        """All inference workers have the newest version."""
        self.trainer.workers_updated()

    # Desktops

    def _ask(self, slot: SimulatedSlot) -> None:
        slot.request_id = f"ask-{next(self._asks)}"
        self._asking[slot.request_id] = slot
        self.record.slots.change(slot.name, SlotActivity.IDLE)
        self.decide(
            events.WorkAsked(
                self.heap.now_s,
                slot.worker_id,
                slot.request_id,
                desktops=self._desktops[slot.worker_id],
                wait=True,
            )
        )

    def _heartbeat(self, worker_id: str) -> None:
        engines = self.engines.values()
        usage = sum(engine.kv_cache_usage for engine in engines) / len(engines)
        self.decide(events.HeartbeatReceived(self.heap.now_s, worker_id, self._desktops[worker_id], usage))
        self.heap.after(HEARTBEAT_S, self._heartbeat, worker_id)

    def _assign(self, command: todo.AssignRollout) -> None:
        slot = self._asking.pop(command.request_id)
        now_s, desktop = self.heap.now_s, self.models.desktop
        self._running[command.rollout_id] = slot
        self.record.tracker.moved(command.rollout_id)
        slot.assigned_s, slot.prepare_s, slot.stop = now_s, 0.0, None
        self.record.slots.change(slot.name, SlotActivity.RESETTING)
        token = (slot, slot.generation)
        if command.partial is not None:
            slot.episode = self._parked.pop(command.rollout_id)
            self.heap.after(desktop.fork_s.draw(self._random), self._begin_step, token)
            return
        draw = self._book.draw(command.task_id, command.max_steps)
        slot.episode = SimulatedEpisode(command.rollout_id, command.task_id, draw)
        if not desktop.forks:
            self.heap.after(desktop.reset_s.draw(self._random), self._prepared_alone, token)
            return
        task_id = command.task_id
        if task_id in self._prepared:
            self.heap.after(desktop.fork_s.draw(self._random), self._begin_step, token)
        elif task_id in self._waiting_for_snapshot:
            self._waiting_for_snapshot[task_id].append(token)
        else:
            self._waiting_for_snapshot[task_id] = []
            self.heap.after(desktop.reset_s.draw(self._random), self._snapshot_made, (task_id, token))

    def _prepared_alone(self, token: tuple[SimulatedSlot, int]) -> None:
        token[0].prepare_s = self.heap.now_s - token[0].assigned_s
        self._begin_step(token)

    def _snapshot_made(self, argument: tuple[str, tuple[SimulatedSlot, int]]) -> None:
        task_id, token = argument
        waiting = self._waiting_for_snapshot.pop(task_id, [])
        slot, generation = token
        if slot.generation != generation:
            # The desktop failed while it prepared the task: the next one prepares it.
            while waiting:
                heir = waiting.pop(0)
                if heir[0].generation == heir[1]:
                    self._waiting_for_snapshot[task_id] = waiting
                    delay_s = self.models.desktop.reset_s.draw(self._random)
                    self.heap.after(delay_s, self._snapshot_made, (task_id, heir))
                    return
            return
        self._prepared.add(task_id)
        slot.prepare_s = self.heap.now_s - slot.assigned_s
        # Who made the snapshot starts from a copy of it, too.
        for each in (token, *waiting):
            self.heap.after(self.models.desktop.fork_s.draw(self._random), self._begin_step, each)

    def _begin_step(self, token: tuple[SimulatedSlot, int]) -> None:
        slot, generation = token
        episode = slot.episode
        if slot.generation != generation or episode is None:
            return
        if slot.stop is not None:
            self._stop(slot, episode)
            return
        model = self.models.episode
        shape = prompt_of(model, episode.step)
        slot.request = request = SimulatedRequest(
            slot,
            episode.rollout_id,
            shape.tokens,
            shape.reusable,
            shape.new_images,
            shape.images,
            response_length(model, self._random),
        )
        request.sent_s = self.heap.now_s
        self.record.slots.change(slot.name, SlotActivity.QUEUED)
        self._send(request)

    def _send(self, request: SimulatedRequest, avoid: frozenset[str] = frozenset()) -> None:
        choice = self.router.route(RouteRequest(request.episode, avoid))
        if not isinstance(choice, Route):
            self._unrouted.append(request)
            return
        self.router.started(choice.worker, request.episode)
        self.record.requests += 1
        self.engines[choice.worker].submit(request)

    def send_waiting(self) -> None:
        """Route the requests that no worker could take; called when a worker may take some."""
        for _ in range(len(self._unrouted)):
            request = self._unrouted.popleft()
            if not request.cancelled:
                self._send(request)

    def send_again(self, request: SimulatedRequest, failed: str) -> None:
        """Send a request that a worker failed, as production's rule says.

        Args:
            request: The request.
            failed: The worker.
        """
        request.attempt += 1
        self.record.retried += 1
        answer = retries.decide(retries.RequestFailure.CONNECTION, 1, 0.0, self.scenario.retries, self._random.random())
        delay_s = answer.delay_s if isinstance(answer, retries.Retry) else 0.0
        self.heap.after(delay_s, self._resend, (request, frozenset({failed})))

    def _resend(self, argument: tuple[SimulatedRequest, frozenset[str]]) -> None:
        if not argument[0].cancelled:
            self._send(*argument)

    def _on_running(self, request: SimulatedRequest) -> None:
        slot = request.owner
        assert isinstance(slot, SimulatedSlot)
        self.record.slots.change(slot.name, SlotActivity.RUNNING)

    def _on_busy(self, worker: str, busy: bool) -> None:
        if not self.engines[worker].paused:
            self.record.workers.change(worker, WorkerActivity.SERVING if busy else WorkerActivity.IDLE)

    def _on_done(self, request: SimulatedRequest, worker: str) -> None:
        self.on_response(worker)
        self.record.answered[worker].add(request.sent_s, self.heap.now_s)
        slot = request.owner
        assert isinstance(slot, SimulatedSlot)
        episode = slot.episode
        assert episode is not None, "a request belongs to an episode"
        assert slot.request is request, "a slot has one request"
        slot.request = None
        oldest, newest = request.versions
        episode.rows.append(request.versions)
        if episode.min_version is None or oldest < episode.min_version:
            episode.min_version = oldest
        if episode.max_version is None or newest > episode.max_version:
            episode.max_version = newest
        if episode.is_ending and episode.draw.stops and not self.models.desktop.performs_done:
            self._end_step((slot, slot.generation))
            return
        self.record.slots.change(slot.name, SlotActivity.EXECUTING)
        delay_s = self.models.desktop.step_s.draw(self._random)
        self.heap.after(delay_s, self._end_step, (slot, slot.generation))

    def on_response(self, worker: str) -> None:
        """Tell the router that a worker has one request less."""
        self.router.ended(worker)
        if self._unrouted:
            self.send_waiting()

    def _end_step(self, token: tuple[SimulatedSlot, int]) -> None:
        slot, generation = token
        episode = slot.episode
        if slot.generation != generation or episode is None:
            return
        episode.step += 1
        self.record.actions += 1
        if episode.step < episode.draw.steps:
            self._begin_step(token)
            return
        self.record.slots.change(slot.name, SlotActivity.RESETTING)
        self.heap.after(self.models.desktop.evaluate_s.draw(self._random), self._end_episode, token)

    def _end_episode(self, token: tuple[SimulatedSlot, int]) -> None:
        slot, generation = token
        episode = slot.episode
        if slot.generation != generation or episode is None:
            return
        now_s = self.heap.now_s
        self._leave(slot, episode)
        # A group that closes early passes its running members on to another group of their task.
        known = self.scheduler.rollouts.get(episode.rollout_id)
        group_id = "" if known is None else known.group.group_id
        self.trainer.store(
            StoredRollout(episode.rollout_id, group_id, now_s, tuple(episode.rows), episode.draw.steps),
            known=group_id in self.scheduler.groups,
        )
        self.record.ended(episode.draw.steps, masked=False)
        if episode.draw.succeeds:
            self._solved.add(episode.task_id)
        self.decide(
            events.RolloutEnded(
                now_s,
                episode.rollout_id,
                1.0 if episode.draw.succeeds else 0.0,
                episode.draw.steps,
                duration_s=now_s - slot.assigned_s,
                prepare_s=slot.prepare_s or None,
                version_min=episode.min_version,
                version_max=episode.max_version,
            )
        )
        self._ask(slot)

    def _leave(self, slot: SimulatedSlot, episode: SimulatedEpisode) -> None:
        """The slot has nothing to do with its rollout any more."""
        self._running.pop(episode.rollout_id, None)
        self.router.finished(episode.rollout_id)
        slot.episode = None

    def _stop(self, slot: SimulatedSlot, episode: SimulatedEpisode) -> None:
        """The worker stops a rollout at a step, as it was told."""
        if slot.stop and episode.step:
            self.record.slots.change(slot.name, SlotActivity.RESETTING)
            self.heap.after(self.models.desktop.park_s.draw(self._random), self._park, (slot, slot.generation))
            return
        self._leave(slot, episode)
        self.record.wasted_actions += episode.step
        self.decide(events.RolloutAbandoned(self.heap.now_s, episode.rollout_id, "told to stop", uses_attempt=False))
        self._ask(slot)

    def _park(self, token: tuple[SimulatedSlot, int]) -> None:
        slot, generation = token
        episode = slot.episode
        if slot.generation != generation or episode is None:
            return
        self._leave(slot, episode)
        self._parked[episode.rollout_id] = episode
        self.record.parked += 1
        self.decide(
            events.RolloutParked(
                self.heap.now_s, episode.rollout_id, f"parked/{episode.rollout_id}", episode.min_version
            )
        )
        self._ask(slot)

    # Faults

    def _plan_faults(self) -> None:
        faults = self.models.faults
        if faults.desktops_per_hour:
            self._plan_desktop_fault()
        if faults.worker_lost_at_s is not None:
            self.heap.at(faults.worker_lost_at_s, self.updates.lose, next(iter(self.engines)))
        if faults.trainer_lost_at_s is not None:
            self.heap.at(faults.trainer_lost_at_s, self.trainer.lose)

    def _plan_desktop_fault(self) -> None:
        rate = self.models.faults.desktops_per_hour * len(self._slots) / 3600
        self.heap.after(self._random.expovariate(rate), self._fail_desktop)

    def _fail_desktop(self, _: object) -> None:
        self._plan_desktop_fault()
        slot = self._random.choice(self._slots)
        slot.generation += 1
        if slot.request_id in self._asking:
            del self._asking[slot.request_id]
            self.decide(events.AskWithdrawn(self.heap.now_s, slot.request_id))
        request, episode = slot.request, slot.episode
        if request is not None:
            slot.request = None
            request.cancelled = True
            if request.engine is not None:
                engine = request.engine
                engine.cancel(request)
                self.on_response(engine.name)
        self.record.slots.change(slot.name, SlotActivity.IDLE)
        self.record.desktop_faults += 1
        self.heap.after(self.models.faults.repair_s, self._repair, (slot, slot.generation))
        if episode is not None:
            self._leave(slot, episode)
            self.record.ended(episode.step, masked=True)
            self.decide(events.RolloutEnded(self.heap.now_s, episode.rollout_id, None, episode.step))

    def _repair(self, token: tuple[SimulatedSlot, int]) -> None:
        slot, generation = token
        if slot.generation == generation:
            self._ask(slot)

    def slot_waits(self, request: SimulatedRequest, activity: SlotActivity) -> None:
        """Note that a request stands still, or goes on.

        Args:
            request: The request.
            activity: What its slot does now: waiting for a queued or for a running request.
        """
        slot = request.owner
        assert isinstance(slot, SimulatedSlot)
        if slot.request is request:
            self.record.slots.change(slot.name, activity)
