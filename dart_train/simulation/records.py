"""What happened in a simulation: running sums of states, counts, and the checks that nothing was lost or trained twice.

Role: `RunRecorder` is told of everything by the simulated parts. Rule: figures count from `begin` on, the checks from the start;
formulas are those of `dart_train.utilisation`. Non-goals: figures (`outcome`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dart_train.scheduling.commands import CloseGroup, OpenGroup
from dart_train.simulation.event_heap import EventHeap
from dart_train.utilisation import SlotActivity, StateTimes, TrainerActivity, WorkerActivity


class StateRecorder:
    """States of one kind of resource: their sums, and for a chart the intervals of a while.

    Args:
        heap: Virtual time.
        names: The resources.
        initial: Their state at first.
        chart: Begin and end of the time of which intervals are kept.

    Attributes:
        times: Sums of seconds per state.
        intervals: Resource, state, begin and end of each kept interval.
    """

    def __init__(self, heap: EventHeap, names: Sequence[str], initial: str, chart: tuple[float, float]) -> None:
        self._heap = heap
        self.times = StateTimes(dict.fromkeys(names, initial), 0.0)
        self.intervals: list[tuple[str, str, float, float]] = []
        self._chart = chart
        self._open = dict.fromkeys(names, (initial, 0.0)) if chart[1] > chart[0] else {}

    def change(self, name: str, state: str) -> None:
        """Put a resource into a state now.

        Args:
            name: The resource.
            state: The state.
        """
        self.times.change(name, state, self._heap.now_s)
        if self._open:
            self._keep(name, state)

    def finish_chart(self) -> None:
        """Close the intervals that are still open."""
        for name in list(self._open):
            self._keep(name, self._open[name][0])

    def _keep(self, name: str, state: str) -> None:
        now_s = self._heap.now_s
        old, since = self._open[name]
        begin_s, end_s = max(since, self._chart[0]), min(now_s, self._chart[1])
        if end_s > begin_s:
            self.intervals.append((name, old, begin_s, end_s))
        self._open[name] = (state, now_s)


class RunRecorder:
    """Everything that the figures of a simulation need.

    Args:
        heap: Virtual time.
        slots: Names of the desktops.
        workers: Names of the inference workers.
        begin_s: Begin of the window.
        gantt_s: Seconds of the window of which intervals are kept.
    """

    def __init__(
        self, heap: EventHeap, slots: Sequence[str], workers: Sequence[str], begin_s: float, gantt_s: float
    ) -> None:
        self._heap = heap
        chart = (begin_s, begin_s + gantt_s)
        self.slots = StateRecorder(heap, slots, SlotActivity.IDLE, chart)
        self.workers = StateRecorder(heap, workers, WorkerActivity.IDLE, chart)
        self.trainer = StateRecorder(heap, ["trainer"], TrainerActivity.WAITING, chart)
        self.begin_s = 0.0
        self.actions = self.wasted_actions = self.requests = self.retried = 0
        self.episodes = self.masked = self.parked = 0
        self.desktop_faults = self.worker_faults = 0
        self.trained_rows = self.withheld_rows = self.withheld_in_batches = self.trained_groups = self.updates = 0
        self.groups_closed: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()
        self.lags_s: list[float] = []
        self.lengths: Counter[int] = Counter()
        self.group_spans_s: list[float] = []
        self._unfinished: set[str] = set()
        self._open_groups: dict[str, float] = {}
        self._used_groups: set[str] = set()
        self.finished_twice: list[str] = []
        self.trained_twice: list[str] = []

    def begin(self) -> None:
        """The window begins: what was counted so far does not count."""
        now_s = self.begin_s = self._heap.now_s
        for recorder in (self.slots, self.workers, self.trainer):
            recorder.times.restart(now_s)
        self.actions = self.wasted_actions = self.requests = self.retried = 0
        self.episodes = self.masked = self.parked = 0
        self.desktop_faults = self.worker_faults = 0
        self.trained_rows = self.withheld_rows = self.withheld_in_batches = self.trained_groups = self.updates = 0
        self.groups_closed.clear()
        self.staleness.clear()
        self.lengths.clear()
        self.lags_s = []
        self.group_spans_s = []

    @property
    def unfinished(self) -> frozenset[str]:
        """Rollouts that were opened and have not ended."""
        return frozenset(self._unfinished)

    def opened(self, command: OpenGroup) -> None:
        """Note a new group.

        Args:
            command: The group.
        """
        self._open_groups[command.group_id] = self._heap.now_s
        self._unfinished.update(rollout_id for rollout_id, _ in command.rollouts)

    def closed(self, command: CloseGroup) -> None:
        """Note that a group has closed, or was dropped afterwards.

        Args:
            command: How.
        """
        opened_s = self._open_groups.pop(command.group_id, None)
        if opened_s is not None:
            self.group_spans_s.append(self._heap.now_s - opened_s)
        self.groups_closed[command.reason or command.state] += 1

    def finished(self, rollout_id: str, state: str) -> None:
        """Note that a rollout has ended for good.

        Args:
            rollout_id: The rollout.
            state: How.
        """
        if rollout_id in self._unfinished:
            self._unfinished.remove(rollout_id)
        else:
            self.finished_twice.append(rollout_id)

    def ended(self, steps: int, *, masked: bool) -> None:
        """Note a finished episode.

        Args:
            steps: Number of its steps.
            masked: Whether it has no reward.
        """
        self.episodes += 1
        self.masked += masked
        if not masked:
            self.lengths[steps] += 1

    def updated(
        self,
        trained: int,
        withheld: int,
        staleness: Sequence[int],
        lags_s: Sequence[float],
        groups: Sequence[str],
    ) -> None:
        """Note a train step.

        Args:
            trained: Trained rows.
            withheld: Rows withheld as stale.
            staleness: Staleness of each trained row, in versions.
            lags_s: Seconds from the end of each trajectory to the end of the train step.
            groups: Groups of the batch.
        """
        self.updates += 1
        self.trained_rows += trained
        self.withheld_rows += withheld
        self.withheld_in_batches += withheld
        self.trained_groups += len(groups)
        self.staleness.update(staleness)
        self.lags_s.extend(lags_s)
        self.trained_twice.extend(group for group in groups if group in self._used_groups)
        self._used_groups.update(groups)
