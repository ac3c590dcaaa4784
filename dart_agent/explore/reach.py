"""What is within reach: untried candidates that their screens still show, screens that can still be got to, and what may bring others back.

Role: `Reach` is what the explorer has learned about candidates and screens that come and go. Rule: a candidate that its screen did not show
when a desktop last stopped there is absent, until it is shown again; a screen is out of reach after `MAX_MISSES` ways to it failed, until a
desktop stops there. What showed an absent candidate before may show it again: the snapshot of its screen, the action after which it was
shown first, or the start. Such a way back is taken once, and once more each time it has shown something absent.

So an exploration that finds nothing new ends: each stop at a screen that was chosen leads to a try, or makes something absent; where
something absent, or a screen out of reach, is shown again, something untried is tried at once, also on the way to another screen; and ways
that fail are finite in number. Nothing of it is stored: a resumed exploration learns it again, and ends for the same reason.

Non-goals: desktops (`dart_agent.explore.explorer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dart_agent.explore.graph import START_SCREEN, ExplorationGraph

MAX_MISSES = 2
"""Ways to a screen that fail in a row: the first may begin where the desktop is, the second begins at the start."""


@dataclass(frozen=True, slots=True)
class WayBack:
    """What may show absent candidates of a screen again.

    Attributes:
        screen_id: The screen.
        snapshot: Whether it is the screen's snapshot.
        action: Else the action, as screen and candidate; None for the start of the application.
    """

    screen_id: int
    snapshot: bool = False
    action: tuple[int, str] | None = None


class Reach:
    """What the desktops of an exploration have learned about what comes and goes.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: ExplorationGraph) -> None:
        self._graph = graph
        self._absent: dict[int, set[str]] = {}
        self._misses: Counter[int] = Counter()
        self._taken: set[WayBack] = set()

    @property
    def absent(self) -> frozenset[tuple[int, str]]:
        """(screen, key) of what is untried and not shown any more."""
        return frozenset((screen_id, key) for screen_id, keys in self._absent.items() for key in keys)

    def best_untried(self, screen_id: int) -> float | None:
        """The greatest value of what is untried on a screen and not absent; None where there is nothing."""
        q, absent = self._graph.q, self._absent.get(screen_id)
        if not absent:
            return q.best_untried(screen_id)
        return max((q.value(screen_id, key) for key in q.untried(screen_id) if key not in absent), default=None)

    def stop(self, screen_id: int, shown: Collection[str]) -> bool:
        """Note what a screen shows to a desktop that stops there.

        Args:
            screen_id: The screen.
            shown: Keys of what it shows.

        Returns:
            `is_scarce`, as it was before.
        """
        scarce = self.is_scarce(screen_id, shown)
        self._absent.pop(screen_id, None)
        if absent := {key for key in self._graph.q.untried(screen_id) if key not in shown}:
            self._absent[screen_id] = absent
        del self._misses[screen_id]
        return scarce

    def is_scarce(self, screen_id: int, shown: Collection[str]) -> bool:
        """Whether a screen shows something untried that was absent, or shows anything untried after ways to it have failed.

        Args:
            screen_id: The screen.
            shown: Keys of what it shows.
        """
        missed, absent = self.was_missed(screen_id), self._absent.get(screen_id, ())
        return any(key in shown and (missed or key in absent) for key in self._graph.q.untried(screen_id))

    def miss(self, screen_id: int) -> None:
        """Note that a way to a screen failed."""
        self._misses[screen_id] += 1

    def was_missed(self, screen_id: int) -> bool:
        """Whether the latest way to a screen failed."""
        return self._misses[screen_id] > 0

    def costs(self, screen_id: int, *, snapshots: bool) -> dict[int, int]:
        """Fewest actions to every screen within reach, from where a desktop stands or from the start.

        Args:
            screen_id: Where the desktop stands.
            snapshots: Whether screens are returned to by snapshots.

        Returns:
            Number of actions by screen; 0 through a snapshot.
        """
        costs = dict(self._graph.distances(START_SCREEN))
        for reached, steps in self._graph.distances(screen_id).items():
            costs[reached] = min(steps, costs.get(reached, steps))
        if snapshots:
            costs |= {one.screen_id: 0 for one in self._graph.screens.values() if one.snapshot is not None}
        return {reached: steps for reached, steps in costs.items() if self._misses[reached] < MAX_MISSES}

    def take_way_back(self, costs: Mapping[int, int], *, snapshots: bool) -> WayBack | None:
        """Choose a way back to something absent: on the nearest screen, the first untried one; the way counts as taken.

        Args:
            costs: By screen within reach: how many actions it takes to get there.
            snapshots: Whether screens are returned to by snapshots.

        Returns:
            The way; None where there is none that has not been taken.
        """
        for screen_id in sorted(costs, key=lambda one: (costs[one], one)):
            for way in self._ways_back(screen_id, snapshots=snapshots):
                if way not in self._taken and (way.action is None or way.action[0] in costs):
                    self._taken.add(way)
                    return way
        return None

    def give_back(self, way: WayBack) -> None:
        """Note that a way back has shown something absent, and may be taken again."""
        self._taken.discard(way)

    def _ways_back(self, screen_id: int, *, snapshots: bool) -> Iterator[WayBack]:
        absent = self._absent.get(screen_id)
        if not absent:
            return
        if snapshots and self._graph.screens[screen_id].snapshot is not None:
            yield WayBack(screen_id, snapshot=True)
        for key in self._graph.q.untried(screen_id):
            action = self._graph.first_shown.get((screen_id, key))
            if key in absent:
                yield WayBack(screen_id, action=action)
