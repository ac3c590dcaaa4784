"""What the scheduler measures: how long episodes last, how often the policy is updated, how far the inference workers are behind.

Role: running estimates, each updated in constant time by one event. Rule: an estimate is None until there was something to measure; only
training rollouts count. Non-goals: what follows from them (`staleness_budget`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dart_train.scheduling.staleness_budget import expected_longest_s

SAMPLE = 256
"""Latest episodes from which durations are estimated."""
REFRESH = 32
"""The expected longest episode is computed anew after this many episodes."""
FAST, SLOW = 0.3, 0.05
"""Weights of a new value in exponential averages: of updates and setups, and of single rollouts and groups."""
STALE_TARGET = 0.02
"""Fraction of rows withheld as stale that the reserve of the staleness budget is adjusted to."""
RESERVE_GAIN = 1.0
"""Versions by which the reserve grows per batch in which everything is stale. It shrinks by 0.02 per batch in which nothing is."""
START_RESERVE = 0.5
MIN_USEFUL_FRACTION = 0.1
"""Bound of the fraction of groups that can train, so that admission stays finite."""


class Measures:
    """Running estimates of a run.

    Attributes:
        update_s: Seconds between two updates.
        prepare_s: Seconds in which the first desktop of a group is prepared.
        useful_fraction: Fraction of finished training groups that can train.
        reserve: Versions of the staleness budget that are kept free, because groups differ in how long they take.
        version_lag: Versions by which the inference workers are behind the newest published one when a rollout starts.
    """

    __slots__ = (
        "_durations",
        "_last_update_s",
        "_longest",
        "_sum_s",
        "_until_refresh",
        "prepare_s",
        "reserve",
        "update_s",
        "useful_fraction",
        "version_lag",
    )

    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=SAMPLE)
        self._sum_s = 0.0
        self._longest: dict[int, float] = {}
        self._until_refresh = 0
        self._last_update_s: float | None = None
        self.update_s: float | None = None
        self.prepare_s: float | None = None
        self.useful_fraction = 1.0
        self.version_lag = 0.0
        self.reserve = START_RESERVE

    def add_episodes(self, durations_s: Iterable[float]) -> None:
        """Add the lengths of training episodes, oldest first.

        Args:
            durations_s: Seconds from assignment to the end of each.
        """
        for duration_s in durations_s:
            if len(self._durations) == SAMPLE:
                self._sum_s -= self._durations[0]
            self._durations.append(duration_s)
            self._sum_s += duration_s
            self._until_refresh -= 1

    @property
    def episode_s(self) -> float | None:
        """Mean seconds of an episode."""
        return max(self._sum_s, 0.0) / len(self._durations) if self._durations else None

    def longest_episode_s(self, group_size: int) -> float | None:
        """Return the expected seconds of the longest episode of a group.

        Args:
            group_size: Rollouts of the group.

        Returns:
            Seconds, None while no episode was measured.
        """
        if not self._durations:
            return None
        if self._until_refresh <= 0:
            self._longest.clear()
            self._until_refresh = REFRESH
        longest_s = self._longest.get(group_size)
        if longest_s is None:
            longest_s = self._longest[group_size] = expected_longest_s(sorted(self._durations), group_size)
        return longest_s

    def add_update(self, now_s: float) -> None:
        """Note that the policy was updated.

        Args:
            now_s: Time.
        """
        if self._last_update_s is not None:
            self.update_s = _average(self.update_s, now_s - self._last_update_s, FAST)
        self._last_update_s = now_s

    def add_prepared(self, prepare_s: float) -> None:
        """Note how long the first desktop of a group was prepared.

        Args:
            prepare_s: Seconds.
        """
        self.prepare_s = _average(self.prepare_s, prepare_s, FAST)

    def add_closed_group(self, *, useful: bool) -> None:
        """Note that a training group is finished.

        Args:
            useful: Whether it can train.
        """
        averaged = _average(self.useful_fraction, float(useful), SLOW)
        self.useful_fraction = max(MIN_USEFUL_FRACTION, averaged)

    def add_version_lag(self, versions: int) -> None:
        """Note by how many versions the first token of a rollout was behind the newest version at its assignment.

        Args:
            versions: The difference; a rollout whose first token is newer counts as 0.
        """
        self.version_lag = _average(self.version_lag, float(max(0, versions)), SLOW)

    def add_batch(self, stale_fraction: float, max_reserve: float) -> None:
        """Adjust the reserve to what a batch withheld.

        Args:
            stale_fraction: Fraction of its rows that is stale.
            max_reserve: Upper bound of the reserve, at least 0.
        """
        changed = self.reserve + RESERVE_GAIN * (stale_fraction - STALE_TARGET)
        self.reserve = min(max(changed, 0.0), max_reserve)


def _average(before: float | None, value: float, weight: float) -> float:
    return value if before is None else before + weight * (value - before)
