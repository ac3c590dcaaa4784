"""Simulated weight updates and failures of inference workers, by production's order.

Role: `SimulatedUpdates` carries out the commands of `UpdatePlanner` on the engines and tells the router what each worker can do. Rule: the
planner decides; staging happens while a worker serves. Non-goals: the order itself (`dart_agent.inference.decisions.weight_updates`).
"""

from __future__ import annotations

from dart_agent.inference.decisions import weight_updates
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.decisions.weight_updates import UpdateMode, UpdatePlanner, UpdateSettings, WeightsId
from dart_train.simulation.engine import SimulatedRequest
from dart_train.simulation.parts import SimulatedSystem
from dart_train.utilisation import SlotActivity, WorkerActivity


class SimulatedUpdates:
    """The updates of all workers.

    Args:
        simulation: The system.
    """

    def __init__(self, simulation: SimulatedSystem) -> None:
        self._simulation = simulation
        scheduling = simulation.scenario.scheduler.scheduling
        mode = UpdateMode.GLOBAL if scheduling.mode.weight_sync == "global" else UpdateMode.PER_WORKER
        self.planner = UpdatePlanner(UpdateSettings(mode=mode, max_updating=simulation.scenario.max_updating))
        self._lives: dict[str, int] = dict.fromkeys(simulation.engines, 0)
        self._target = 0

    def report(self, worker: str, version: int) -> None:
        """Tell the planner that a worker serves.

        Args:
            worker: The worker.
            version: Version of its weights.
        """
        self._apply(weight_updates.WorkerReported(worker, WeightsId(version)))

    def publish(self, version: int) -> None:
        """Bring all workers to a version.

        Args:
            version: The version.
        """
        self._target = version
        self._apply(weight_updates.VersionPublished(WeightsId(version)))
        self._note_complete()

    def lose(self, worker: str) -> None:
        """Let a worker fail: its requests are sent to others, and it comes back with the weights that it started with.

        Args:
            worker: The worker.
        """
        simulation = self._simulation
        engine = simulation.engines[worker]
        self._lives[worker] += 1
        lost = engine.drop_all()
        engine.paused = True
        simulation.record.worker_faults += 1
        simulation.record.workers.change(worker, WorkerActivity.DOWN)
        simulation.router.set_worker(worker, WorkerState.DOWN)
        self._apply(weight_updates.WorkerLost(worker))
        self._send_again(lost, worker)
        repair_s = simulation.models.faults.worker_repair_s
        simulation.heap.after(repair_s, self._come_back, (worker, self._lives[worker]))

    def _come_back(self, argument: tuple[str, int]) -> None:
        worker, life = argument
        if life != self._lives[worker]:
            return
        simulation = self._simulation
        engine = simulation.engines[worker]
        engine.resume(0, keeps_prefixes=False)
        simulation.record.workers.change(worker, WorkerActivity.IDLE)
        self.report(worker, 0)
        if self._target == 0:
            simulation.router.set_worker(worker, WorkerState.SERVING)
            simulation.send_waiting()

    def _send_again(self, lost: list[SimulatedRequest], worker: str) -> None:
        simulation = self._simulation
        for request in lost:
            simulation.router.ended(worker)
            simulation.slot_waits(request, SlotActivity.QUEUED)
            simulation.send_again(request, worker)

    def _apply(self, event: weight_updates.UpdateEvent) -> None:
        simulation, model = self._simulation, self._simulation.models.publish
        for command in self.planner.apply(event):
            if isinstance(command, weight_updates.StageWeights):
                facts = (command.worker, self._lives[command.worker], command.weights)
                simulation.heap.after(model.stage_s_per_gib * model.weights_gib, self._staged, facts)
            elif isinstance(command, weight_updates.PauseWorker):
                self._stand_still(command.worker)
                facts = (command.worker, self._lives[command.worker], WeightsId(0))
                simulation.heap.after(0.0, self._paused, facts)
            elif isinstance(command, weight_updates.SwapWeights):
                if command.pause:
                    self._stand_still(command.worker)
                if not model.keeps_requests:
                    self._send_again(simulation.engines[command.worker].drop_all(), command.worker)
                facts = (command.worker, self._lives[command.worker], command.weights)
                simulation.heap.after(model.swap_s, self._swapped, facts)
            elif isinstance(command, weight_updates.ResumeWorker):
                self._go_on(command.worker)

    def _stand_still(self, worker: str) -> None:
        simulation = self._simulation
        engine = simulation.engines[worker]
        simulation.router.set_worker(worker, WorkerState.UPDATING)
        for request in engine.running():
            simulation.slot_waits(request, SlotActivity.QUEUED)
        engine.pause()
        simulation.record.workers.change(worker, WorkerActivity.UPDATING)

    def _go_on(self, worker: str) -> None:
        simulation = self._simulation
        engine = simulation.engines[worker]
        keeps = simulation.models.publish.keeps_prefixes
        if not keeps:
            simulation.router.cache_cleared(worker)
        simulation.record.workers.change(worker, WorkerActivity.IDLE)
        engine.resume(engine.version, keeps_prefixes=keeps)
        for request in engine.running():
            simulation.slot_waits(request, SlotActivity.RUNNING)
        simulation.router.set_worker(worker, WorkerState.SERVING)
        simulation.send_waiting()

    def _staged(self, facts: tuple[str, int, WeightsId]) -> None:
        worker, life, weights = facts
        if life == self._lives[worker]:
            self._apply(weight_updates.WorkerStaged(worker, weights))

    def _paused(self, facts: tuple[str, int, WeightsId]) -> None:
        worker, life, _ = facts
        if life == self._lives[worker]:
            self._apply(weight_updates.WorkerPaused(worker))

    def _swapped(self, facts: tuple[str, int, WeightsId]) -> None:
        worker, life, weights = facts
        if life != self._lives[worker]:
            return
        self._simulation.engines[worker].version = weights.number
        if self.planner.settings.mode is UpdateMode.PER_WORKER:
            self._go_on(worker)
        self._apply(weight_updates.WorkerUpdated(worker, weights))
        self._note_complete()

    def _note_complete(self) -> None:
        if not self.planner.outdated and not self.planner.updating:
            self._simulation.workers_updated()
