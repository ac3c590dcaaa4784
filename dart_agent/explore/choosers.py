"""Who chooses what is done next: chance, breadth first, the greatest Q-value.

Role: a `Chooser` says which screen is worked on next, and what is done there. Rule: the same graph and the same random numbers give the
same choice; ties of Q-values are broken by the random numbers. What another desktop is trying at the moment, and what its screen does not
show any more, is in `unavailable`: no screen is chosen for it.
Non-goals: the multimodal model (`dart_agent.explore.model_chooser`), how a desktop gets to a screen (`dart_agent.explore.explorer`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.graph import ExplorationGraph
from dart_agent.explore.screens import ScreenView

TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """What shall be done.

    Attributes:
        candidate: It.
        reason: Why, in the words of who chose; "" without any.
    """

    candidate: CandidateAction
    reason: str = ""


@dataclass(frozen=True)
class ChoiceContext:
    """What a choice is made from.

    Attributes:
        graph: Everything known.
        screen_id: The screen that the desktop shows.
        view: Its view now.
        candidates: What can be done, without what is busy; not empty.
        rng: Random numbers of this step.
        step: Number of the step.
        history: The latest steps of this desktop in words, the oldest first.
    """

    graph: ExplorationGraph
    screen_id: int
    view: ScreenView
    candidates: Sequence[CandidateAction]
    rng: random.Random
    step: int
    history: Sequence[str] = ()


@dataclass(frozen=True)
class PlaceContext:
    """What the next screen is chosen from.

    Attributes:
        graph: Everything known.
        screen_id: The screen that the desktop shows.
        costs: By screen that can be reached: how many actions it takes, 0 through a snapshot.
        unavailable: (screen, key) that other desktops are trying, or that their screens do not show any more.
        rng: Random numbers of this step.
    """

    graph: ExplorationGraph
    screen_id: int
    costs: Mapping[int, int]
    unavailable: Collection[tuple[int, str]] = field(default_factory=frozenset)
    rng: random.Random = field(default_factory=random.Random)

    def untried(self, screen_id: int) -> list[str]:
        """What was never tried on a screen, is not being tried, and may be shown there."""
        return [key for key in self.graph.q.untried(screen_id) if (screen_id, key) not in self.unavailable]


class Chooser(Protocol):
    """Chooses screens and actions."""

    def next_screen(self, context: PlaceContext) -> int:
        """The screen to go on from; that of the context to stay.

        Args:
            context: What is chosen from.
        """
        ...

    async def choose(self, context: ChoiceContext) -> Choice:
        """What to do on the screen that the desktop shows.

        Args:
            context: What is chosen from.

        Raises:
            ModelFaultError: The model that chooses gave no usable answer.
        """
        ...


class RandomChooser:
    """Takes any candidate, and stays where that leads."""

    def next_screen(self, context: PlaceContext) -> int:
        """Stay."""
        return context.screen_id

    async def choose(self, context: ChoiceContext) -> Choice:
        """Each candidate with the same probability."""
        return Choice(context.rng.choice(list(context.candidates)))


class BreadthFirstChooser:
    """Tries everything on a screen in order, and screens in the order of their depth, then of their discovery."""

    def next_screen(self, context: PlaceContext) -> int:
        """The first screen with something untried; the current one where there is none."""
        screens = [
            (context.graph.screens[screen_id].depth, screen_id)
            for screen_id in context.costs
            if context.untried(screen_id)
        ]
        return min(screens)[1] if screens else context.screen_id

    async def choose(self, context: ChoiceContext) -> Choice:
        """The first untried candidate, else the one that was tried least."""
        q = context.graph.q
        return Choice(min(context.candidates, key=lambda one: q.tries(context.screen_id, one.key)))


class GreatestQChooser:
    """Takes the greatest Q-value of what is untried, and works where the greatest is, discounted by the way there."""

    def next_screen(self, context: PlaceContext) -> int:
        """The screen with the greatest value of something untried; the current one first, then the newest of equals.

        The value is gamma^cost x Q, and (2 - gamma^cost) x Q where Q is negative: each way takes (1 - gamma^cost) |Q| off.
        """
        q = context.graph.q
        best, best_value = context.screen_id, -float("inf")
        for screen_id in (context.screen_id, *sorted(context.costs, reverse=True)):
            untried = context.untried(screen_id)
            if not untried:
                continue
            greatest = max(q.value(screen_id, key) for key in untried)
            discount = q.discount ** context.costs.get(screen_id, 0)
            value = greatest * (discount if greatest >= 0 else 2 - discount)
            if value > best_value + TIE:
                best, best_value = screen_id, value
        return best

    async def choose(self, context: ChoiceContext) -> Choice:
        """The greatest Q(s, a) of something untried; where all was tried, of anything.

        What is known to lead elsewhere has been weighed by `next_screen`, which has chosen to be here.
        """
        q = context.graph.q
        values = {
            one.key: q.value(context.screen_id, one.key)
            for one in context.candidates
            if not q.tries(context.screen_id, one.key)
        } or {one.key: q.value(context.screen_id, one.key) for one in context.candidates}
        greatest = max(values.values())
        return Choice(
            context.rng.choice(
                [one for one in context.candidates if values.get(one.key, greatest - 1) >= greatest - TIE]
            )
        )
