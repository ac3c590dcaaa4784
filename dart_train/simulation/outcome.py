"""The figures of a simulation.

Role: `simulate` runs a scenario and returns an `SimulationOutcome` of plain numbers. Rule: utilisation, rates, staleness and lag are
computed by `dart_train.utilisation`. Non-goals: tables, charts, advice (`tables`, `gantt`, `planning`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dart_train.simulation.scenario import Scenario
from dart_train.simulation.system import Simulation
from dart_train.utilisation import (
    MetricSummary,
    SlotShares,
    TrainerShares,
    WorkerShares,
    in_use_share,
    per_minute,
    slot_shares,
    summarize,
    trainer_shares,
    withheld_fraction,
    worker_shares,
)


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """Figures of the window of one simulation.

    Attributes:
        window_s: Length of the window.
        slots: Shares of slot time.
        workers: Shares of worker time.
        trainer: Shares of the trainer's time.
        workers_in_use: Share of worker time in which a request that the worker answered was under way (`in_use_share`).
        worker_load: Computed tokens over those that the workers compute at their largest batch, as seconds of work per second.
        actions_per_min: Performed steps per minute, those of abandoned rollouts included.
        wasted_actions_per_min: Steps of rollouts that were abandoned and start again.
        episodes_per_min: Finished episodes per minute.
        trained_rows_per_min: Trained samples per minute.
        trained_rollouts: Trajectories in trained groups of the window.
        updates: Train steps.
        withheld_fraction: Rows withheld as stale over those that reached a batch or the group filter.
        staleness: Staleness of trained rows in versions.
        lag_s: Lag of trained trajectories.
        group_s: Seconds from the opening of a group to its closing.
        groups_closed: Closed groups by state or reason.
        mean_steps_attempted: Mean length of finished episodes.
        mean_steps_trained: Mean length of the trajectories of trained groups.
        prefix_hit_rate: Prompt tokens found in the prefix cache.
        requests: Requests sent.
        retried: Requests sent again.
        parked: Rollouts stopped and kept.
        masked: Masked episodes.
        desktop_faults: Failed desktops.
        finished_twice: Rollouts that ended twice, since the start.
        trained_twice: Groups that were trained on twice, since the start.
        late: Rollouts that ended after their group had closed, and are not trained on, since the start.
        stuck: Rollouts that were queued or assigned for longer than `Scenario.stuck_after_s` without a change, since the start.
        lost: Unfinished rollouts that the scheduler does not know, and finished ones that were neither trained on, nor wait for it, nor
            were dropped with a cause, since the start.
        events: Events of the simulation, since the start.
        intervals: Kept intervals of slots, workers and trainer, for a chart.
    """

    window_s: float
    slots: SlotShares
    workers: WorkerShares
    trainer: TrainerShares
    workers_in_use: float
    worker_load: float
    actions_per_min: float
    wasted_actions_per_min: float
    episodes_per_min: float
    trained_rows_per_min: float
    trained_rollouts: int
    updates: int
    withheld_fraction: float
    staleness: MetricSummary
    lag_s: MetricSummary
    group_s: MetricSummary
    groups_closed: dict[str, int]
    mean_steps_attempted: float
    mean_steps_trained: float
    prefix_hit_rate: float
    requests: int
    retried: int
    parked: int
    masked: int
    desktop_faults: int
    finished_twice: int
    trained_twice: int
    late: int
    stuck: int
    lost: int
    events: int
    intervals: dict[str, list[tuple[str, str, float, float]]] = field(default_factory=dict, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain data, without the intervals."""
        data = asdict(self)
        del data["intervals"]
        data["slots"]["utilisation"] = self.slots.utilisation
        data["workers"]["utilisation"] = self.workers.utilisation
        data["trainer"]["utilisation"] = self.trainer.utilisation
        return {key: _rounded(value) for key, value in data.items()}


def simulate(scenario: Scenario) -> SimulationOutcome:
    """Run a scenario.

    Args:
        scenario: What is simulated.

    Returns:
        The figures of its window.
    """
    simulation = Simulation(scenario)
    simulation.run()
    return _outcome(simulation)


def _outcome(simulation: Simulation) -> SimulationOutcome:
    scenario, record, now_s = simulation.scenario, simulation.record, simulation.heap.now_s
    window_s = now_s - record.begin_s
    for recorder in (record.slots, record.workers, record.trainer):
        recorder.finish_chart()
    engines = simulation.engines.values()
    reused = sum(engine.reused_tokens for engine in engines)
    computed = sum(engine.prefill_tokens for engine in engines)
    model = simulation.models.engine
    full_step_s = (model.step_s + model.step_s_per_request * model.max_requests) / model.max_requests
    work_s = computed / model.prefill_tokens_per_s + sum(engine.decoded_tokens for engine in engines) * full_step_s
    episodes = sum(record.lengths.values())
    return SimulationOutcome(
        window_s=window_s,
        slots=slot_shares(record.slots.times.seconds(now_s), scenario.desktops, window_s),
        workers=worker_shares(record.workers.times.seconds(now_s), scenario.workers, window_s),
        trainer=trainer_shares(record.trainer.times.seconds(now_s), window_s),
        workers_in_use=in_use_share(record.answered.values(), scenario.workers, (record.begin_s, now_s)),
        worker_load=work_s / (now_s * scenario.workers),
        actions_per_min=per_minute(record.actions, window_s),
        wasted_actions_per_min=per_minute(record.wasted_actions, window_s),
        episodes_per_min=per_minute(record.episodes, window_s),
        trained_rows_per_min=per_minute(record.trained_rows, window_s),
        trained_rollouts=len(record.lags_s),
        updates=record.updates,
        withheld_fraction=withheld_fraction(record.withheld_rows, record.trained_rows),
        staleness=summarize(float(value) for value in record.staleness.elements()),
        lag_s=summarize(record.lags_s),
        group_s=summarize(record.group_spans_s),
        groups_closed=dict(sorted(record.groups_closed.items())),
        mean_steps_attempted=sum(steps * count for steps, count in record.lengths.items()) / max(1, episodes),
        mean_steps_trained=(record.trained_rows + record.withheld_in_batches) / max(1, len(record.lags_s)),
        prefix_hit_rate=reused / (reused + computed) if computed else 0.0,
        requests=record.requests,
        retried=record.retried,
        parked=record.parked,
        masked=record.masked,
        desktop_faults=record.desktop_faults,
        finished_twice=len(record.tracker.ended_twice),
        trained_twice=len(record.tracker.trained_twice),
        late=record.tracker.late,
        stuck=len(record.tracker.stuck()),
        lost=len(record.tracker.lost(simulation.scheduler.rollouts, simulation.scheduler.groups)),
        events=simulation.heap.processed,
        intervals={
            "desktops": record.slots.intervals,
            "workers": record.workers.intervals,
            "trainer": record.trainer.intervals,
        },
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value
