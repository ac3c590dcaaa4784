"""What a desktop's view is in the graph of an exploration: a known screen, a new one, or another application.

Role: `ScreenMatcher` finds the screen that a view is, adds to the graph what is new, and says what an action came to. Rule: a view of an
application that does not belong to the exploration is no screen. Non-goals: identities (`dart_agent.explore.screens`), what is stored
(`dart_agent.explore.explorer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dart_agent.explore.candidates import CandidateAction, list_candidates
from dart_agent.explore.graph import START_SCREEN, ExplorationGraph, KnownScreen
from dart_agent.explore.screens import ScreenView, has_changed, identify
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.values import StepOutcome


@dataclass(frozen=True, slots=True)
class ScreenMatch:
    """What a view is.

    Attributes:
        screen_id: The screen; None: another application is in front.
        shown: What it shows that can be done, by key.
        new: The screen once more where nobody knew it.
        added: Screen and candidates that a known screen has not shown before; None without any.
    """

    screen_id: int | None = None
    shown: Mapping[str, CandidateAction] = field(default_factory=dict)
    new: KnownScreen | None = None
    added: tuple[int, Sequence[CandidateAction]] | None = None

    @property
    def first_shown(self) -> list[str]:
        """Keys of what the screen shows for the first time."""
        if self.new is not None:
            return list(self.new.candidates)
        return [] if self.added is None else [one.key for one in self.added[1]]


class ScreenMatcher:
    """Tells screens by their views.

    Args:
        graph: The graph, which is extended.
        settings: Which applications belong to the exploration, and which candidates there are.
    """

    def __init__(self, graph: ExplorationGraph, settings: ExploreSettings) -> None:
        self._graph = graph
        self._settings = settings

    def belongs(self, view: ScreenView) -> bool:
        """Whether the application that is explored is in front."""
        start = self._graph.screens.get(START_SCREEN)
        return start is None or view.application in (start.identity.application, *self._settings.applications)

    def find(self, view: ScreenView, depth: int) -> ScreenMatch:
        """Find the screen that a view is, and add to the graph what is new.

        Args:
            view: The view.
            depth: Depth of the screen where it is new.

        Returns:
            What the view is.
        """
        if not self.belongs(view):
            return ScreenMatch()
        identity = identify(view)
        seen = list_candidates(view, self._settings.candidates)
        shown = {one.key: one for one in seen}
        known = self._graph.find(identity)
        if known is None:
            new = KnownScreen(len(self._graph.screens) + 1, identity, depth, dict(shown))
            self._graph.add_screen(new)
            return ScreenMatch(new.screen_id, shown, new)
        added = self._graph.add_candidates(known, seen)
        return ScreenMatch(known, shown, added=(known, added) if added else None)

    def outcome(
        self, from_screen: int, key: str, match: ScreenMatch, before: ScreenView, after: ScreenView
    ) -> StepOutcome:
        """What an action came to, before it is recorded in the graph.

        Args:
            from_screen: Where it was done.
            key: What was done.
            match: What the view after it is.
            before: The view before it.
            after: The view after it.

        Returns:
            The outcome.
        """
        if match.screen_id is None:
            return StepOutcome.LEFT
        if match.new is not None:
            return StepOutcome.NEW_SCREEN
        if match.screen_id == from_screen:
            return StepOutcome.KNOWN_EDGE if has_changed(before.image, after.image) else StepOutcome.NO_CHANGE
        known = self._graph.is_edge(from_screen, key, match.screen_id)
        return StepOutcome.KNOWN_EDGE if known else StepOutcome.NEW_EDGE
