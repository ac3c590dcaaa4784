"""Q-values of candidate actions, from stored experience alone: optimistic, and shared between similar elements.

Role: `QTable` holds what was tried with which outcome, and gives Q(s, a). Rule: the values are a function of the recorded outcomes in their
order, so that a resumed exploration has the values it had. With screens s, actions a and groups g (similar elements share one):

- Novelty of a group, at first optimistic:   rho(g) <- (1 - alpha) rho(g) + alpha r,   rho(g) = 1 before the first outcome.
  r = 1 for a new screen, 0.3 for a new edge to a known screen, 0 for an edge that is known or for no visible change, -1 for an error or for
  leaving the application.
- Untried on this screen:   Q(s, a) = 1 + w (rho(g) - 1),   w = the greatest similarity of s to a screen on which the group was tried.
  Similarity is Jaccard's, |G(s) and G(s')| / |G(s) or G(s')|, of the groups that the screens have. So a header loses value everywhere once
  it is tried, and a button OK in another dialog hardly does.
- Tried:   Q(s, a) = sum over outcomes s' of p(s' | s, a) [r' + gamma max_a' Q(s', a')],   with p as counted.
  Novelty is used up when it has been seen, so that r' is 0, or -1 for an error. An outcome without a visible change ends the sum. This is
  the fixed point of Q-learning, Q <- (1 - alpha) Q + alpha [r' + gamma max Q'], replayed on everything stored: the value of an action that
  is known is how near it leads to something untried. It is found by sweeps over the screens, the newest first, until no screen's value
  changes by `SWEEP_TOLERANCE`. A sweep leaves out the screens that nothing has changed for; what is not settled goes into the next one.

Source: GUI-Bee (arXiv 2501.13896) has Q-values as an incentive of exploration; its formulas are not published, these are ours. Non-goals:
who chooses (`dart_agent.explore.choosers`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from pydantic import Field

from dart_agent.strict_model import StrictModel

OPTIMISTIC = 1.0
"""Value of what nobody knows anything about: the greatest reward."""
SWEEP_TOLERANCE = 1e-3
MAX_SWEEPS = 60


class StepOutcome(StrEnum):
    """What an action came to."""

    NEW_SCREEN = "new_screen"
    NEW_EDGE = "new_edge"
    KNOWN_EDGE = "known_edge"
    NO_CHANGE = "no_change"
    LEFT = "left"
    ERROR = "error"

    @property
    def failed(self) -> bool:
        """Whether the application was left, or the desktop failed."""
        return self in (StepOutcome.LEFT, StepOutcome.ERROR)


REWARDS: Mapping[StepOutcome, float] = {
    StepOutcome.NEW_SCREEN: 1.0,
    StepOutcome.NEW_EDGE: 0.3,
    StepOutcome.KNOWN_EDGE: 0.0,
    StepOutcome.NO_CHANGE: 0.0,
    StepOutcome.LEFT: -1.0,
    StepOutcome.ERROR: -1.0,
}


class ValueSettings(StrictModel):
    """How values are estimated.

    Attributes:
        gamma: Discount of a step.
        alpha: Weight of the newest reward of a group.
        sharing: Whether similar elements share their novelty.
    """

    gamma: float = Field(default=0.9, gt=0, lt=1)
    alpha: float = Field(default=0.5, gt=0, le=1)
    sharing: bool = True


class QTable:
    """Q-values of all candidates of all screens.

    Args:
        settings: How values are estimated.
    """

    def __init__(self, settings: ValueSettings | None = None) -> None:
        self._settings = settings or ValueSettings()
        self._groups: dict[int, dict[str, str]] = {}
        """By screen: the group of each candidate."""
        self._groups_of: dict[int, set[str]] = {}
        """By screen: the groups that it has."""
        self._holders: dict[str, set[int]] = {}
        """By group: the screens that have it."""
        self._tried_on: dict[str, set[int]] = {}
        """By group: the screens on which one of it was tried."""
        self._novelty: dict[str, float] = {}
        self._weight: dict[tuple[int, str], float] = {}
        """By screen and group: the greatest similarity to a screen on which the group was tried."""
        self._outcomes: dict[tuple[int, str], Counter[int | None]] = {}
        """By screen and candidate: how often it led where; None after a failure."""
        self._tried_of: dict[int, list[str]] = {}
        self._tried_value: dict[tuple[int, str], float] = {}
        self._untried_best: dict[int, float | None] = {}
        self._screen_values: dict[int, float] = {}
        """By screen: its value, as the sweeps know it."""
        self._leading_to: dict[int, set[int]] = {}
        """By screen: the other screens from which something led there."""
        self._changed: set[int] = set()
        """Screens whose untried candidates, or their values, may have changed since the latest sweep."""
        self._unsettled: set[int] = set()
        """Screens of which something tried led where the value has changed since."""

    def add_candidates(self, screen_id: int, groups: Mapping[str, str]) -> None:
        """Add candidates to a screen, which is new or has been seen before.

        Args:
            screen_id: The screen.
            groups: Group by key.
        """
        known = self._groups.setdefault(screen_id, {})
        added = {key: group for key, group in groups.items() if key not in known}
        known |= added
        self._groups_of.setdefault(screen_id, set()).update(added.values())
        for group in added.values():
            self._holders.setdefault(group, set()).add(screen_id)
        self._tried_of.setdefault(screen_id, [])
        for group in set(added.values()):
            self._update_weight(screen_id, group)
        self._untried_best.pop(screen_id, None)
        self._changed.add(screen_id)

    def record(self, screen_id: int, key: str, outcome: StepOutcome, to_screen: int | None) -> None:
        """Record what an action came to, and bring all values up to date.

        Args:
            screen_id: Where it was done.
            key: What was done.
            outcome: What it came to.
            to_screen: Where it led; None after a failure.
        """
        group = self._groups[screen_id][key]
        alpha = self._settings.alpha
        before = self._novelty.get(group, OPTIMISTIC)
        self._novelty[group] = (1 - alpha) * before + alpha * REWARDS[outcome]
        if (screen_id, key) not in self._outcomes:
            self._outcomes[screen_id, key] = Counter()
            self._tried_of[screen_id].append(key)
            self._untried_best.pop(screen_id, None)
        self._outcomes[screen_id, key][None if outcome.failed else to_screen] += 1
        if not outcome.failed and to_screen is not None and to_screen != screen_id:
            self._leading_to.setdefault(to_screen, set()).add(screen_id)
        self._tried_on.setdefault(group, set()).add(screen_id)
        self._changed.add(screen_id)
        self._unsettled.add(screen_id)
        if self._settings.sharing:
            self._share(group, screen_id, before)
        self._sweep()

    def value(self, screen_id: int, key: str) -> float:
        """Q(s, a).

        Args:
            screen_id: The screen.
            key: The candidate.

        Returns:
            The value; that of something untried is at most 1.
        """
        if (screen_id, key) in self._outcomes:
            return self._tried_value.get((screen_id, key), 0.0)
        return self._untried_value(screen_id, self._groups[screen_id][key])

    @property
    def discount(self) -> float:
        """gamma."""
        return self._settings.gamma

    def tries(self, screen_id: int, key: str) -> int:
        """How often a candidate was tried on this screen."""
        return sum(self._outcomes.get((screen_id, key), Counter()).values())

    def destinations(self, screen_id: int, key: str) -> Mapping[int | None, int]:
        """How often a candidate led where; None after a failure."""
        return self._outcomes.get((screen_id, key), Counter())

    def untried(self, screen_id: int) -> list[str]:
        """The candidates of a screen that were never tried there, in their order."""
        return [key for key in self._groups.get(screen_id, {}) if (screen_id, key) not in self._outcomes]

    def best_untried(self, screen_id: int) -> float | None:
        """The greatest value of an untried candidate of a screen; None where all were tried."""
        if screen_id not in self._untried_best:
            groups = {self._groups[screen_id][key] for key in self.untried(screen_id)}
            self._untried_best[screen_id] = max((self._untried_value(screen_id, one) for one in groups), default=None)
        return self._untried_best[screen_id]

    def screen_value(self, screen_id: int) -> float:
        """The greatest Q(s, a) of a screen; 0 where it has no candidate."""
        tried = [self._tried_value.get((screen_id, key), 0.0) for key in self._tried_of.get(screen_id, ())]
        untried = self.best_untried(screen_id)
        return max([*tried, *([] if untried is None else [untried])], default=0.0)

    def similarity(self, first: int, second: int) -> float:
        """Jaccard's similarity of the groups of two screens; 1 for a screen and itself."""
        if first == second:
            return 1.0
        mine, other = self._groups_of[first], self._groups_of[second]
        shared = len(mine & other)
        return shared / max(1, len(mine) + len(other) - shared)

    def _untried_value(self, screen_id: int, group: str) -> float:
        """Q(s, a) of what is untried, by its group."""
        if not self._settings.sharing:
            return OPTIMISTIC
        return self._shared_value(self._weight.get((screen_id, group), 0.0), self._novelty.get(group, OPTIMISTIC))

    @staticmethod
    def _shared_value(weight: float, novelty: float) -> float:
        return OPTIMISTIC + weight * (novelty - OPTIMISTIC)

    def _share(self, group: str, tried_on: int, novelty_before: float) -> None:
        """Update what a group is worth on all screens that have it, after one of it was tried on a screen."""
        novelty = self._novelty[group]
        for holder in self._holders[group]:
            weight_before = self._weight.get((holder, group), 0.0)
            weight = max(weight_before, self.similarity(holder, tried_on))
            self._weight[holder, group] = weight
            before, now = self._shared_value(weight_before, novelty_before), self._shared_value(weight, novelty)
            best = self._untried_best.get(holder)
            if now != before and best is not None and max(before, now) >= best:
                del self._untried_best[holder]
                self._changed.add(holder)

    def _update_weight(self, screen_id: int, group: str) -> None:
        if not self._settings.sharing or group not in self._novelty:
            return
        similar = (self.similarity(screen_id, at) for at in self._tried_on.get(group, ()))
        self._weight[screen_id, group] = max(similar, default=0.0)

    def _sweep(self) -> None:
        """Repeat the backups of tried actions, the newest screens first, until nothing changes much; what has not changed is left out."""
        for screen_id in self._changed:
            self._note_value(screen_id)
        self._changed.clear()
        for _ in range(MAX_SWEEPS):
            if self._sweep_once() < SWEEP_TOLERANCE:
                return

    def _sweep_once(self) -> float:
        """Back up the unsettled screens, and those that become so on the way to the oldest one; the greatest change of a value."""
        change = 0.0
        order = [-screen_id for screen_id in self._unsettled]
        heapq.heapify(order)
        while order:
            screen_id = -heapq.heappop(order)
            self._unsettled.discard(screen_id)
            for key in self._tried_of[screen_id]:
                self._tried_value[screen_id, key] = self._backup(screen_id, key)
            difference, unsettled = self._note_value(screen_id)
            change = max(change, difference)
            for one in unsettled:
                if one < screen_id:
                    heapq.heappush(order, -one)
        return change

    def _note_value(self, screen_id: int) -> tuple[float, Iterable[int]]:
        """Bring a screen's value up to date; how much it has changed, and the screens that are unsettled by it and were not before."""
        known, now = self._screen_values.get(screen_id, 0.0), self.screen_value(screen_id)
        if now == known:
            return 0.0, ()
        self._screen_values[screen_id] = now
        unsettled = self._leading_to.get(screen_id, set()) - self._unsettled
        self._unsettled |= unsettled
        return abs(now - known), unsettled

    def _backup(self, screen_id: int, key: str) -> float:
        outcomes = self._outcomes[screen_id, key]
        total = 0.0
        for place, count in outcomes.items():
            if place is None:
                total += count * REWARDS[StepOutcome.ERROR]
            elif place != screen_id:
                total += count * self._settings.gamma * self._screen_values.get(place, 0.0)
        return total / outcomes.total()
