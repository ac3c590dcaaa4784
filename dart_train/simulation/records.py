"""What happened in a simulation: running sums of states, counts, and the checks that nothing was lost or trained twice.

Role: `RunRecorder` is told of everything by the simulated parts. Rule: figures count from `begin` on, the checks from the start;
formulas are those of `dart_train.utilisation`; `RolloutTracker` can fail. Non-goals: figures (`outcome`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from dart_train.scheduling.commands import CloseGroup, OpenGroup
from dart_train.simulation.event_heap import EventHeap
from dart_train.utilisation import IntervalUnion, SlotActivity, StateTimes, TrainerActivity, WorkerActivity


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


class RolloutTracker:
    """Where every rollout is, from its opening until it is trained on, or is dropped with a cause.

    Args:
        heap: Virtual time.
        limit_s: So long a rollout may be queued, or be assigned, without a change.

    Attributes:
        ended_twice: Rollouts that ended although they had ended, or had never been opened.
        trained_twice: Groups that were trained on again.
        late: Rollouts that ended after their group had closed, and are not trained on.
    """

    def __init__(self, heap: EventHeap, limit_s: float) -> None:
        self._heap = heap
        self._limit_s = limit_s
        self._since_s: dict[str, float | None] = {}
        self._overdue: set[str] = set()
        self._stored: dict[str, set[str]] = {}
        self._taken: dict[str, set[str]] = {}
        self._used: set[str] = set()
        self._without_cause: set[str] = set()
        self.ended_twice: list[str] = []
        self.trained_twice: list[str] = []
        self.late = 0

    def moved(self, rollout_id: str, *, parked: bool = False) -> None:
        """A rollout is opened, queued, assigned or parked.

        Args:
            rollout_id: The rollout.
            parked: Whether it is parked, which may last as long as it takes until its task comes again.
        """
        self._leave(rollout_id)
        self._since_s[rollout_id] = None if parked else self._heap.now_s

    def ended(self, rollout_id: str) -> None:
        """A rollout has ended for good.

        Args:
            rollout_id: The rollout.
        """
        self._leave(rollout_id)
        if rollout_id in self._since_s:
            del self._since_s[rollout_id]
        else:
            self.ended_twice.append(rollout_id)

    def stored(self, rollout_id: str, group_id: str, *, known: bool) -> None:
        """A trajectory with a reward is stored for its group.

        Args:
            rollout_id: Its rollout.
            group_id: Its group.
            known: Whether the scheduler has the group: it is open, ready, or with the trainer.
        """
        if known:
            self._stored.setdefault(group_id, set()).add(rollout_id)
        else:
            self.late += 1

    def taken(self, group_ids: Sequence[str]) -> None:
        """The trainer begins a train step on groups.

        Args:
            group_ids: The groups.
        """
        self._taken = {group_id: self._stored.get(group_id, set()).copy() for group_id in group_ids}

    def trained(self, group_ids: Sequence[str]) -> None:
        """A train step on groups is over.

        Args:
            group_ids: The groups.
        """
        for group_id in group_ids:
            if group_id in self._used:
                self.trained_twice.append(group_id)
            self._used.add(group_id)
            self.late += len(self._stored.pop(group_id, set()) - self._taken.pop(group_id, set()))

    def dropped(self, group_id: str, cause: str | None) -> None:
        """A group is not trained on.

        Args:
            group_id: The group.
            cause: Why.
        """
        rollouts = self._stored.pop(group_id, set())
        if not cause:
            self._without_cause |= rollouts

    def stuck(self) -> frozenset[str]:
        """Find the rollouts that are, or were, queued or assigned for longer than the limit without a change."""
        waiting = [each for each, since_s in self._since_s.items() if self._is_overdue(since_s)]
        return frozenset(self._overdue.union(waiting))

    def lost(self, rollouts: Container[str], groups: Container[str]) -> frozenset[str]:
        """Find the rollouts that nobody has any more.

        Args:
            rollouts: Unfinished rollouts that the scheduler knows.
            groups: Groups that it knows: open, ready, or with the trainer.

        Returns:
            Unfinished ones that it does not know, and finished ones that were neither trained on, nor wait for it, nor were dropped with a
            cause.
        """
        unknown = {each for each in self._since_s if each not in rollouts}
        left = (members for group_id, members in self._stored.items() if group_id not in groups)
        return frozenset(unknown.union(self._without_cause, *left))

    def _leave(self, rollout_id: str) -> None:
        if self._is_overdue(self._since_s.get(rollout_id)):
            self._overdue.add(rollout_id)

    def _is_overdue(self, since_s: float | None) -> bool:
        return since_s is not None and self._heap.now_s - since_s > self._limit_s


class RunRecorder:
    """Everything that the figures of a simulation need.

    Args:
        heap: Virtual time.
        slots: Names of the desktops.
        workers: Names of the inference workers.
        begin_s: Begin of the window.
        gantt_s: Seconds of the window of which intervals are kept.
        stuck_after_s: Limit of the tracker.

    Attributes:
        tracker: Where every rollout is, since the start.
        answered: When each worker had a request under way that it answered, since the start.
    """

    def __init__(
        self,
        heap: EventHeap,
        slots: Sequence[str],
        workers: Sequence[str],
        begin_s: float,
        gantt_s: float,
        stuck_after_s: float,
    ) -> None:
        self._heap = heap
        chart = (begin_s, begin_s + gantt_s)
        self.slots = StateRecorder(heap, slots, SlotActivity.IDLE, chart)
        self.workers = StateRecorder(heap, workers, WorkerActivity.IDLE, chart)
        self.trainer = StateRecorder(heap, ["trainer"], TrainerActivity.WAITING, chart)
        self.answered = {name: IntervalUnion() for name in workers}
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
        self.tracker = RolloutTracker(heap, stuck_after_s)
        self._open_groups: dict[str, float] = {}

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

    def opened(self, command: OpenGroup) -> None:
        """Note a new group.

        Args:
            command: The group.
        """
        self._open_groups[command.group_id] = self._heap.now_s
        for rollout_id, _ in command.rollouts:
            self.tracker.moved(rollout_id)

    def closed(self, command: CloseGroup) -> None:
        """Note that a group has closed, or was dropped afterwards.

        Args:
            command: How.
        """
        opened_s = self._open_groups.pop(command.group_id, None)
        if opened_s is not None:
            self.group_spans_s.append(self._heap.now_s - opened_s)
        self.groups_closed[command.reason or command.state] += 1

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
