"""The graph of an exploration in memory: screens, what was tried on them, and how to get from one to another.

Role: `ExplorationGraph` is what choosers and the explorer look at; `KnownScreen` is a node. Rule: everything in it comes from the store and
is built again from it on resumption. Edges are (screen, candidate) with counts of where they led. Non-goals: SQL
(`dart_agent.explore.store`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.screens import MAX_DISTANCE, ScreenIdentity, ScreenIndex
from dart_agent.explore.values import QTable, StepOutcome, ValueSettings

START_SCREEN = 1
"""Id of the screen that the exploration began at."""


@dataclass
class KnownScreen:
    """A screen that was seen.

    Attributes:
        screen_id: From 1, in the order of discovery.
        identity: What tells it apart.
        depth: Fewest actions from the start by which it was reached at its discovery.
        candidates: What can be done on it, by key, in order of discovery.
        snapshot: Id of a snapshot that shows it; None where there is none.
    """

    screen_id: int
    identity: ScreenIdentity
    depth: int
    candidates: dict[str, CandidateAction] = field(default_factory=dict)
    snapshot: str | None = None


class ExplorationGraph:
    """All screens and transitions so far.

    Args:
        values: How Q-values are estimated.
        max_distance: Bits of the perceptual hash that may differ within one screen.
    """

    def __init__(self, values: ValueSettings | None = None, max_distance: int = MAX_DISTANCE) -> None:
        self.q = QTable(values)
        self.screens: dict[int, KnownScreen] = {}
        self._index = ScreenIndex(max_distance)
        self._edges: dict[tuple[int, int], str] = {}
        """By start and end: the candidate that led there most recently."""
        self._after: dict[int, list[int]] = {}
        self.first_shown: dict[tuple[int, str], tuple[int, str]] = {}
        """By screen and candidate: screen and candidate of the action after which it was shown first; nothing for what no action showed."""

    def find(self, identity: ScreenIdentity) -> int | None:
        """The known screen that an identity is; None for a new one."""
        return self._index.find(identity)

    def add_screen(self, screen: KnownScreen) -> None:
        """Add a node, with its candidates."""
        self.screens[screen.screen_id] = screen
        self._index.add(screen.screen_id, screen.identity)
        self.q.add_candidates(screen.screen_id, {key: one.group for key, one in screen.candidates.items()})

    def add_candidates(self, screen_id: int, seen: Sequence[CandidateAction]) -> list[CandidateAction]:
        """Add what a screen has not shown before.

        Args:
            screen_id: The screen.
            seen: What it shows now.

        Returns:
            Those that are new.
        """
        known = self.screens[screen_id].candidates
        new = [candidate for candidate in seen if candidate.key not in known]
        known |= {candidate.key: candidate for candidate in new}
        if new:
            self.q.add_candidates(screen_id, {candidate.key: candidate.group for candidate in new})
        return new

    def note_first_shown(self, screen_id: int, keys: Iterable[str], after: tuple[int, str]) -> None:
        """Note which action showed candidates for the first time.

        Args:
            screen_id: Their screen.
            keys: The candidates.
            after: Screen and candidate of the action.
        """
        self.first_shown |= {(screen_id, key): after for key in keys}

    def is_edge(self, from_screen: int, key: str, to_screen: int) -> bool:
        """Whether a candidate has led there before."""
        return to_screen in self.q.destinations(from_screen, key)

    def record(self, from_screen: int, key: str, outcome: StepOutcome, to_screen: int | None) -> None:
        """Add a transition.

        Args:
            from_screen: Where the candidate was taken.
            key: The candidate.
            outcome: What it came to.
            to_screen: Where it led; None after a failure.
        """
        self.q.record(from_screen, key, outcome, to_screen)
        if to_screen is None or to_screen == from_screen:
            return
        if (from_screen, to_screen) not in self._edges:
            self._after.setdefault(from_screen, []).append(to_screen)
        self._edges[from_screen, to_screen] = key

    def distances(self, from_screen: int) -> Mapping[int, int]:
        """Fewest known actions to every screen that known actions lead to.

        Args:
            from_screen: Where one stands.

        Returns:
            Number of actions by screen; the screen itself has 0.
        """
        found, border = {from_screen: 0}, deque([from_screen])
        while border:
            at = border.popleft()
            for after in self._after.get(at, ()):
                if after not in found:
                    found[after] = found[at] + 1
                    border.append(after)
        return found

    def path(self, from_screen: int, to_screen: int) -> list[tuple[str, int]] | None:
        """The shortest known way.

        Args:
            from_screen: Where one stands.
            to_screen: Where one wants to be.

        Returns:
            Candidates with the screens that they are expected to lead to; None where no way is known.
        """
        before: dict[int, int] = {from_screen: from_screen}
        border = deque([from_screen])
        while border and to_screen not in before:
            at = border.popleft()
            for after in self._after.get(at, ()):
                if after not in before:
                    before[after] = at
                    border.append(after)
        if to_screen not in before:
            return None
        way: list[tuple[str, int]] = []
        at = to_screen
        while at != from_screen:
            way.append((self._edges[before[at], at], at))
            at = before[at]
        return way[::-1]

    def count_candidates(self) -> tuple[int, int]:
        """(tried, all) candidates of all screens."""
        everything = sum(len(screen.candidates) for screen in self.screens.values())
        untried = sum(len(self.q.untried(screen_id)) for screen_id in self.screens)
        return everything - untried, everything
