"""Definitions of utilisation, rates, staleness and lag: the one place where they are computed.

Role: pure functions over intervals and counts; the report of a run, the simulator and the benchmarks call them. Rule: a share is
seconds in a state divided by the seconds of all slots (or workers) in the window, so the shares of one resource add up to 1; what is
not known to be used counts as idle. Explained in `docs/metrics.md`. Non-goals: reading metrics files (`dart_train.report.throughput`),
the formula of the staleness of a token (`dart_train.curation.staleness`).

A slot is the right to one desktop for the length of a run. A worker is one inference engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

PAUSE_S = 300.0
"""A longer time without an episode or a train step is a pause (an interrupted run), which counts in no rate."""

Interval = tuple[float, float]
"""Begin and end, in seconds on one clock."""


class SlotActivity(StrEnum):
    """What one slot does; exactly one state at a time."""

    RESETTING = "resetting"
    """The desktop is started, restored, forked or set up, or its episode is evaluated."""
    EXECUTING = "executing"
    """An action is performed, or the desktop settles after it."""
    RUNNING = "running"
    """The slot waits for a request that an engine is computing."""
    QUEUED = "queued"
    """The slot waits for a request that no engine is computing: in a queue, in a retry, or on a worker that takes new weights."""
    IDLE = "idle"
    """Nothing is assigned to the slot, or its desktop is broken."""


class WorkerActivity(StrEnum):
    """What one inference worker does; exactly one state at a time."""

    SERVING = "serving"
    """At least one request is being computed. The same rule as the GPU utilisation that `nvidia-smi` shows."""
    UPDATING = "updating"
    """The worker takes new weights, or waits with its requests until others have taken them."""
    IDLE = "idle"
    """No request is being computed."""
    DOWN = "down"
    """The worker has failed and does not answer yet."""


class TrainerActivity(StrEnum):
    """What the trainer does; exactly one state at a time."""

    TRAINING = "training"
    """A train step is computed."""
    PUBLISHING = "publishing"
    """A checkpoint or the weights of the new version are written."""
    WAITING = "waiting"
    """There is no batch, or the trainer is down."""


@dataclass(frozen=True, slots=True)
class SlotShares:
    """Shares of the time of all slots, each in [0, 1]; they add up to 1.

    Attributes:
        resetting: Preparing the desktop and evaluating the episode.
        executing: Performing actions and settling.
        running: Waiting for a request that an engine computes.
        queued: Waiting for a request that no engine computes.
        idle: Nothing assigned.
    """

    resetting: float
    executing: float
    running: float
    queued: float
    idle: float

    @property
    def utilisation(self) -> float:
        """Environment utilisation: executing + waiting for a running request."""
        return self.executing + self.running


@dataclass(frozen=True, slots=True)
class WorkerShares:
    """Shares of the time of all inference workers, each in [0, 1]; they add up to 1.

    Attributes:
        serving: At least one request is computed.
        updating: New weights are taken.
        idle: No request is computed.
        down: Failed.
    """

    serving: float
    updating: float
    idle: float
    down: float

    @property
    def utilisation(self) -> float:
        """Worker utilisation: serving."""
        return self.serving


@dataclass(frozen=True, slots=True)
class TrainerShares:
    """Shares of the trainer's time, each in [0, 1]; they add up to 1.

    Attributes:
        training: Computing train steps.
        publishing: Writing checkpoints and weights.
        waiting: Without a batch.
    """

    training: float
    publishing: float
    waiting: float

    @property
    def utilisation(self) -> float:
        """Trainer utilisation: training."""
        return self.training


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """Mean and percentiles of a quantity; all 0 for no values.

    Attributes:
        count: Number of values.
        mean: Mean.
        p50: Median.
        p95: 95th percentile.
        max: Greatest value.
    """

    count: int
    mean: float
    p50: float
    p95: float
    max: float


class StateTimes:
    """Seconds per state of a set of resources, kept up to date with each change.

    It gives what `state_seconds` gives, without keeping the intervals: a simulated hour of ten thousand desktops has millions of them.

    Args:
        initial: State of every resource at the begin.
        now_s: The begin.
    """

    __slots__ = ("_seconds", "_since", "_state")

    def __init__(self, initial: Mapping[str, str], now_s: float = 0.0) -> None:
        self._state = dict(initial)
        self._since = dict.fromkeys(initial, now_s)
        self._seconds: dict[str, float] = {}

    def change(self, resource: str, state: str, now_s: float) -> None:
        """Put a resource into a state.

        Args:
            resource: Its name; it was given at the begin.
            state: The new state.
            now_s: The moment, not before the last change of this resource.
        """
        old, since = self._state[resource], self._since[resource]
        self._seconds[old] = self._seconds.get(old, 0.0) + now_s - since
        self._state[resource], self._since[resource] = state, now_s

    def restart(self, now_s: float) -> None:
        """Forget what was counted so far: the window begins now.

        Args:
            now_s: The begin of the window.
        """
        self._seconds = {}
        self._since = dict.fromkeys(self._since, now_s)

    def seconds(self, now_s: float) -> dict[str, float]:
        """Return the seconds per state until a moment.

        Args:
            now_s: The moment, not before the last change.

        Returns:
            Seconds by state, summed over the resources.
        """
        total = dict(self._seconds)
        for resource, state in self._state.items():
            total[state] = total.get(state, 0.0) + now_s - self._since[resource]
        return total


class IntervalUnion:
    """The time that lies in at least one of many intervals; they are added in the order of their ends.

    It keeps disjoint intervals only: of a simulated inference worker that is always asked for something, one.
    """

    __slots__ = ("_joined",)

    def __init__(self) -> None:
        self._joined: list[Interval] = []

    def add(self, begin_s: float, end_s: float) -> None:
        """Add an interval.

        Args:
            begin_s: Its begin.
            end_s: Its end, not before that of the last one.
        """
        while self._joined and self._joined[-1][1] >= begin_s:
            begin_s = min(begin_s, self._joined.pop()[0])
        self._joined.append((begin_s, end_s))

    def inside_s(self, window: Interval) -> float:
        """Compute how much of the union lies inside a window.

        Args:
            window: Begin and end.

        Returns:
            Seconds.
        """
        return sum(overlap_s(interval, [window]) for interval in self._joined)


def in_use_share(unions: Iterable[IntervalUnion], workers: int, window: Interval) -> float:
    """Compute the share of the inference workers' time in which a request that they answered was under way.

    A request is under way from its sending to its answer, wherever it waits meanwhile: for a worker that takes requests, in a queue, or on
    a worker that takes new weights. It is what a sender sees of a worker, and never less than what the worker serves.

    Args:
        unions: The requests that each worker answered.
        workers: Number of workers.
        window: Begin and end.

    Returns:
        The share in [0, 1].
    """
    return sum(union.inside_s(window) for union in unions) / (workers * (window[1] - window[0]))


def state_seconds(intervals: Iterable[tuple[str, float, float]], windows: Sequence[Interval]) -> dict[str, float]:
    """Sum the seconds that lie inside the windows, by state.

    Args:
        intervals: State, begin and end of each interval.
        windows: Disjoint windows.

    Returns:
        Seconds by state.
    """
    total: dict[str, float] = {}
    for state, begin_s, end_s in intervals:
        total[state] = total.get(state, 0.0) + overlap_s((begin_s, end_s), windows)
    return total


def slot_shares(seconds: Mapping[str, float], slots: float, window_s: float) -> SlotShares:
    """Compute the shares of slot time.

    Args:
        seconds: Seconds by `SlotActivity`, summed over slots; what is missing up to `slots * window_s` was idle.
        slots: Number of slots; the mean number where it changed.
        window_s: Length of the window.

    Returns:
        The shares.

    Raises:
        ValueError: There is no time, or the states take more time than there is.
    """
    resetting, executing, running, queued = _parts(
        seconds,
        (SlotActivity.RESETTING, SlotActivity.EXECUTING, SlotActivity.RUNNING, SlotActivity.QUEUED),
        slots * window_s,
    )
    return SlotShares(resetting, executing, running, queued, max(0.0, 1 - resetting - executing - running - queued))


def worker_shares(seconds: Mapping[str, float], workers: int, window_s: float) -> WorkerShares:
    """Compute the shares of the inference workers' time.

    Args:
        seconds: Seconds by `WorkerActivity`, summed over workers; what is missing was idle.
        workers: Number of workers.
        window_s: Length of the window.

    Returns:
        The shares.

    Raises:
        ValueError: There is no time, or the states take more time than there is.
    """
    serving, updating, down = _parts(
        seconds, (WorkerActivity.SERVING, WorkerActivity.UPDATING, WorkerActivity.DOWN), workers * window_s
    )
    return WorkerShares(serving, updating, max(0.0, 1 - serving - updating - down), down)


def trainer_shares(seconds: Mapping[str, float], window_s: float) -> TrainerShares:
    """Compute the shares of the trainer's time.

    Args:
        seconds: Seconds by `TrainerActivity`; what is missing was waiting.
        window_s: Length of the window.

    Returns:
        The shares.

    Raises:
        ValueError: There is no time, or the states take more time than there is.
    """
    training, publishing = _parts(seconds, (TrainerActivity.TRAINING, TrainerActivity.PUBLISHING), window_s)
    return TrainerShares(training, publishing, max(0.0, 1 - training - publishing))


def per_minute(amount: float, window_s: float) -> float:
    """Compute a rate: actions, trained samples or episodes per minute.

    Args:
        amount: How many in the window. An action is one performed step; a trained sample is one step with at least one trained token.
        window_s: Length of the window.

    Returns:
        The amount per minute; 0 for an empty window.
    """
    return 60.0 * amount / window_s if window_s > 0 else 0.0


def withheld_fraction(withheld: float, trained: float) -> float:
    """Compute the share of rows (steps) that reached a batch and were withheld as stale.

    Args:
        withheld: Rows of which every token was too stale when their batch was formed, rows of groups dropped as stale included.
        trained: Rows with at least one trained token.

    Returns:
        The share in [0, 1]; 0 where there is no row.
    """
    rows = withheld + trained
    return withheld / rows if rows else 0.0


def summarize(values: Iterable[float]) -> MetricSummary:
    """Summarise a quantity: staleness in versions, or the lag in seconds.

    The staleness of a token is the trainer's version minus the version that sampled it, at the moment at which its batch is formed. The
    lag is the time from the end of a trajectory to the end of the train step that used it.

    Args:
        values: The values.

    Returns:
        Mean and percentiles (nearest rank).
    """
    ordered = sorted(values)
    if not ordered:
        return MetricSummary(0, 0.0, 0.0, 0.0, 0.0)
    return MetricSummary(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=ordered[math.ceil(0.50 * len(ordered)) - 1],
        p95=ordered[math.ceil(0.95 * len(ordered)) - 1],
        max=ordered[-1],
    )


def active_intervals(spans: Iterable[Interval], pause_s: float = PAUSE_S) -> list[Interval]:
    """Join spans to the intervals in which a run was going on.

    Args:
        spans: Begin and end of episodes and train steps, in any order.
        pause_s: Gaps up to this many seconds belong to an interval.

    Returns:
        Disjoint intervals in order.
    """
    joined: list[Interval] = []
    for begin_s, end_s in sorted(spans):
        if joined and begin_s - joined[-1][1] <= pause_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_s))
        else:
            joined.append((begin_s, end_s))
    return joined


def total_s(intervals: Iterable[Interval]) -> float:
    """Sum the lengths of intervals.

    Args:
        intervals: Begin and end of each.

    Returns:
        Seconds.
    """
    return sum(end_s - begin_s for begin_s, end_s in intervals)


def overlap_s(span: Interval, windows: Iterable[Interval]) -> float:
    """Compute how much of a span lies inside disjoint windows.

    Args:
        span: Begin and end.
        windows: Disjoint windows.

    Returns:
        Seconds.
    """
    return sum(max(0.0, min(span[1], end_s) - max(span[0], begin_s)) for begin_s, end_s in windows)


def _parts(seconds: Mapping[str, float], states: Sequence[str], available_s: float) -> list[float]:
    if available_s <= 0:
        raise ValueError("utilisation needs a window with some time and at least one resource")
    parts = [seconds.get(state, 0.0) / available_s for state in states]
    if sum(parts) > 1 + 1e-6:
        raise ValueError(
            f"the states take {sum(parts):.3f} of the time that there is: intervals of one resource overlap"
        )
    return parts
