"""Figures that a recorded run and the simulator both have, with the same definitions.

Role: `recorded_figures` computes them from the metric lines of a run folder and from what the senders of requests saw;
`simulated_figures` selects them of a simulation. Rule: shares are those of `dart_train.utilisation`; what a run has not recorded is
None, never an estimate. Non-goals: who did what (`farm`, `policy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dart_train.report.throughput import (
    episode_lines,
    recorded_worker_shares,
    update_lines,
    workers_lines,
)
from dart_train.report.utilisation_rows import inside_fractions, slot_seconds
from dart_train.simulation.outcome import SimulationOutcome
from dart_train.utilisation import Interval, IntervalUnion, in_use_share, overlap_s, per_minute, slot_shares


@dataclass(frozen=True, slots=True)
class ComponentFigures:
    """Figures of a window.

    Attributes:
        window_s: Length of the window.
        actions_per_min: Steps per minute; each has one answered request. `DONE` counts and executes nothing.
        env_in_use: Share of desktop time that executes an action or waits for a response, whether an engine computes it or not.
        env_util: Environment utilisation: executing an action, or waiting for a request that an engine computes; None where the run has
            not recorded how long requests were queued.
        resetting: Share of desktop time that prepares desktops, waits for one that another desktop prepares, and evaluates episodes.
        worker_in_use: Share of the inference workers' time in which a request that they answered was under way.
        worker_util: Worker utilisation: serving; None where the run has no lines of kind `workers`.
        trainer_util: Share of the trainer's time in train steps.
        trained_rows_per_min: Trained rows per minute.
    """

    window_s: float
    actions_per_min: float
    env_in_use: float
    env_util: float | None
    resetting: float
    worker_in_use: float
    worker_util: float | None
    trainer_util: float
    trained_rows_per_min: float


@dataclass(frozen=True, slots=True)
class ComponentsOutcome:
    """What a simulation with the components of production shows.

    Attributes:
        figures: Figures of the window.
        updates: Train steps, since the start.
        trajectories: Stored trajectories, since the start.
        cpu_s: Processor time of the whole simulation.
    """

    figures: ComponentFigures
    updates: int
    trajectories: int
    cpu_s: float


@dataclass
class RequestLog:
    """Answered requests as their senders saw them, on the clock of the metric lines.

    Attributes:
        by_worker: When at least one request that the worker answered was under way.
    """

    by_worker: dict[str, IntervalUnion] = field(default_factory=dict)

    def add(self, worker: str, sent_s: float, answered_s: float) -> None:
        """Note an answer.

        Args:
            worker: Who gave it.
            sent_s: When the request was sent, in seconds since the epoch.
            answered_s: When it was answered.
        """
        self.by_worker.setdefault(worker, IntervalUnion()).add(sent_s, answered_s)

    def in_use(self, workers: int, window: Interval) -> float:
        """Compute `worker_in_use`.

        Args:
            workers: Number of workers.
            window: Begin and end.

        Returns:
            The share.
        """
        return in_use_share(self.by_worker.values(), workers, window)


def recorded_figures(
    metrics: Iterable[Mapping[str, Any]], worker_in_use: float, desktops: int, workers: int, window: Interval
) -> ComponentFigures:
    """Compute the figures of a recorded run.

    Args:
        metrics: Lines of its metrics file.
        worker_in_use: What `RequestLog.in_use` says of the window.
        desktops: Number of desktops.
        workers: Number of inference workers.
        window: Begin and end, in seconds since the epoch.

    Returns:
        The figures.
    """
    lines = list(metrics)
    episodes, updates, window_s = episode_lines(lines), update_lines(lines), window[1] - window[0]
    spent_s = slot_seconds(episodes, [window])
    shares = slot_shares(spent_s, max(desktops, sum(spent_s.values()) / window_s), window_s)
    served = recorded_worker_shares(workers_lines(lines), [window])
    actions = sum(
        each.actions * part for each, part in zip(episodes, inside_fractions(episodes, [window]), strict=True)
    )
    steps = [(each.end_s - each.publish_s - each.step_s, each.end_s - each.publish_s) for each in updates]
    return ComponentFigures(
        window_s=window_s,
        actions_per_min=per_minute(actions, window_s),
        env_in_use=shares.executing + shares.running + shares.queued,
        env_util=None if any(each.queue_s is None for each in episodes) else shares.utilisation,
        resetting=shares.resetting,
        worker_in_use=worker_in_use,
        worker_util=None if served is None else served.utilisation,
        trainer_util=_inside_s(steps, window) / window_s,
        trained_rows_per_min=per_minute(
            sum(each.rows for each in updates if window[0] <= each.end_s < window[1]), window_s
        ),
    )


def whole_updates(metrics: Iterable[Mapping[str, Any]]) -> Interval:
    """Choose the window from the end of the first train step to the end of the last one, so that whole cycles are counted.

    Args:
        metrics: Lines of a metrics file with at least two train steps.

    Returns:
        Begin and end, in seconds since the epoch.
    """
    updates = update_lines(metrics)
    return updates[0].end_s, updates[-1].end_s


def simulated_figures(outcome: SimulationOutcome) -> ComponentFigures:
    """Select the same figures of a simulation.

    Args:
        outcome: The simulation.

    Returns:
        The figures.
    """
    slots = outcome.slots
    return ComponentFigures(
        window_s=outcome.window_s,
        actions_per_min=outcome.actions_per_min,
        env_in_use=slots.executing + slots.running + slots.queued,
        env_util=slots.utilisation,
        resetting=slots.resetting,
        worker_in_use=outcome.workers_in_use,
        worker_util=outcome.workers.utilisation,
        trainer_util=outcome.trainer.training,
        trained_rows_per_min=outcome.trained_rows_per_min,
    )


def _inside_s(intervals: Sequence[Interval], window: Interval) -> float:
    return sum(overlap_s(interval, [window]) for interval in intervals)
