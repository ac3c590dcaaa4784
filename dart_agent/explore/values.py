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
  is known is how near it leads to something untried.

Source: GUI-Bee (arXiv 2501.13896) has Q-values as an incentive of exploration; its formulas are not published, these are ours. Non-goals:
who chooses (`dart_agent.explore.choosers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
        self._holders: dict[str, set[int]] = {}
        """By group: the screens that have it."""
        self._novelty: dict[str, float] = {}
        self._weight: dict[tuple[int, str], float] = {}
        """By screen and group: the greatest similarity to a screen on which the group was tried."""
        self._outcomes: dict[tuple[int, str], Counter[int | None]] = {}
        """By screen and candidate: how often it led where; None after a failure."""
        self._tried_of: dict[int, list[str]] = {}
        self._tried_value: dict[tuple[int, str], float] = {}
        self._untried_best: dict[int, float | None] = {}

    def add_candidates(self, screen_id: int, groups: Mapping[str, str]) -> None:
        """Add candidates to a screen, which is new or has been seen before.

        Args:
            screen_id: The screen.
            groups: Group by key.
        """
        known = self._groups.setdefault(screen_id, {})
        added = {key: group for key, group in groups.items() if key not in known}
        known |= added
        for group in added.values():
            self._holders.setdefault(group, set()).add(screen_id)
        self._tried_of.setdefault(screen_id, [])
        for group in set(added.values()):
            self._update_weight(screen_id, group)
        self._untried_best.pop(screen_id, None)

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
        self._novelty[group] = (1 - alpha) * self._novelty.get(group, OPTIMISTIC) + alpha * REWARDS[outcome]
        if (screen_id, key) not in self._outcomes:
            self._outcomes[screen_id, key] = Counter()
            self._tried_of[screen_id].append(key)
        self._outcomes[screen_id, key][None if outcome.failed else to_screen] += 1
        for holder in self._holders[group] if self._settings.sharing else {screen_id}:
            self._weight[holder, group] = max(
                self._weight.get((holder, group), 0.0), self.similarity(holder, screen_id)
            )
            self._untried_best.pop(holder, None)
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
        group = self._groups[screen_id][key]
        if not self._settings.sharing:
            return OPTIMISTIC
        weight = self._weight.get((screen_id, group), 0.0)
        return OPTIMISTIC + weight * (self._novelty.get(group, OPTIMISTIC) - OPTIMISTIC)

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
            values = [self.value(screen_id, key) for key in self.untried(screen_id)]
            self._untried_best[screen_id] = max(values, default=None)
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
        mine, other = set(self._groups[first].values()), set(self._groups[second].values())
        return len(mine & other) / max(1, len(mine | other))

    def _update_weight(self, screen_id: int, group: str) -> None:
        if not self._settings.sharing or group not in self._novelty:
            return
        tried_on = {at for at, key in self._outcomes if self._groups[at][key] == group}
        self._weight[screen_id, group] = max((self.similarity(screen_id, at) for at in tried_on), default=0.0)

    def _sweep(self) -> None:
        """Repeat the backups of all tried actions, the newest screens first, until nothing changes."""
        values = {screen_id: self.screen_value(screen_id) for screen_id in self._groups}
        order = sorted(self._groups, reverse=True)
        for _ in range(MAX_SWEEPS):
            change = 0.0
            for screen_id in order:
                for key in self._tried_of[screen_id]:
                    self._tried_value[screen_id, key] = self._backup(screen_id, key, values)
                now = self.screen_value(screen_id)
                change = max(change, abs(now - values[screen_id]))
                values[screen_id] = now
            if change < SWEEP_TOLERANCE:
                return

    def _backup(self, screen_id: int, key: str, values: Mapping[int, float]) -> float:
        outcomes = self._outcomes[screen_id, key]
        total = 0.0
        for place, count in outcomes.items():
            if place is None:
                total += count * REWARDS[StepOutcome.ERROR]
            elif place != screen_id:
                total += count * self._settings.gamma * values.get(place, 0.0)
        return total / outcomes.total()
