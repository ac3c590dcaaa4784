"""Clicks on elements with what they led to, from a stored exploration.

Role: `element_transitions` says which elements of a screen can be asked about, and what a click on each led to; `other_elements` says what
else of the screen could be meant. Rule: an element that another one covers in the middle, or that the stored picture of its screen does not
show with its name in its place, is not asked about. Non-goals: what can be seen (`dart_agent.explore.queries.visibility`), words
(`dart_agent.explore.queries.rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

from dart_agent.explore.candidates import CandidateAction, find_regions
from dart_agent.explore.queries.effects import describe_effect
from dart_agent.explore.queries.visibility import is_covered, is_shown, visible_elements
from dart_agent.explore.storage.records import StoredScreen, StoredStep
from dart_agent.explore.store import ExploreStore
from dart_agent.explore.values import StepOutcome
from dart_agent.grounding.samples import Box, QueryKind
from dart_envs.observations.views import MARKED_ROLES

MIN_CHANGE = frozenset({StepOutcome.NEW_SCREEN, StepOutcome.NEW_EDGE, StepOutcome.KNOWN_EDGE})
"""Outcomes that something can be said about."""


@dataclass(frozen=True, slots=True)
class ElementTransition:
    """A click on an element with what it led to.

    Attributes:
        screen: The screen of the element.
        candidate: The element, as it was first seen on the screen.
        after: The screen after it; None where nothing changed visibly, or the application was left.
        step: The step of the click; None: it is not known.
        effects: Kinds and queries of what the click did and no click elsewhere on the screen did, too.
    """

    screen: StoredScreen
    candidate: CandidateAction
    after: StoredScreen | None
    step: StoredStep | None = None
    effects: tuple[tuple[QueryKind, str], ...] = ()

    @property
    def box(self) -> Box:
        """Box of the element in pixels."""
        assert self.candidate.box is not None
        return self.candidate.box

    @property
    def before_sha256(self) -> str:
        """Screenshot in which the element is at its box: that before the click, or that of the screen where the element stood elsewhere."""
        step = self.step
        if step is None or step.before_sha256 is None or step.candidate is None or step.candidate.box != self.box:
            return self.screen.image_sha256
        return step.before_sha256

    @property
    def after_sha256(self) -> str | None:
        """Screenshot after the click; None where there is no screen after it."""
        if self.after is None:
            return None
        seen = None if self.step is None else self.step.after_sha256
        return seen or self.after.image_sha256


Regions = Callable[[StoredScreen], Collection[Box]]
"""What vision alone finds in the stored picture of a screen."""


def stored_regions(store: ExploreStore) -> Regions:
    """Find regions in the pictures of an exploration, each once.

    Args:
        store: The exploration.

    Returns:
        What finds them.
    """

    @cache
    def of_picture(sha256: str) -> frozenset[Box]:
        return frozenset(find_regions(store.read_image(sha256)))

    return lambda screen: of_picture(screen.image_sha256)


def element_transitions(
    screens: Sequence[StoredScreen], steps: Sequence[StoredStep], regions: Regions = lambda _screen: ()
) -> list[ElementTransition]:
    """The clicks on elements of trees and on regions, one for each of each screen, with the destination that was seen most recently.

    Args:
        screens: All screens.
        steps: All steps, the oldest first.
        regions: Finds the regions that are in the stored picture of a screen; a candidate that came later is not there.

    Returns:
        Transitions in the order of screens and candidates.
    """
    by_id = {screen.known.screen_id: screen for screen in screens}
    latest: dict[tuple[int, str], StoredStep] = {}
    for step in steps:
        if step.from_screen is not None and step.candidate is not None and step.outcome in MIN_CHANGE:
            latest[step.from_screen, step.candidate.key] = step
    found = []
    for screen in screens:
        clicks = [
            _Click(candidate, candidate.box, done, tuple(describe_effect(screen, done)))
            for key, candidate in screen.known.candidates.items()
            if candidate.kind == "click"
            and candidate.box is not None
            and (done := latest.get((screen.known.screen_id, key))) is not None
            and (candidate.box in regions(screen) if candidate.source == "vision" else is_shown(screen, candidate))
        ]
        for one in clicks:
            if not is_covered(screen, one.candidate):
                after = None if one.to_screen is None else by_id[one.to_screen]
                found.append(ElementTransition(screen, one.candidate, after, one.step, _own_effects(one, clicks)))
    return found


@dataclass(frozen=True, slots=True)
class _Click:
    """The latest click on something that the stored picture of a screen shows, with what it did."""

    candidate: CandidateAction
    box: Box
    step: StoredStep
    effects: tuple[tuple[QueryKind, str], ...]

    @property
    def to_screen(self) -> int | None:
        """The other screen that it led to."""
        return None if self.step.to_screen == self.step.from_screen else self.step.to_screen

    def is_in(self, box: Box) -> bool:
        """Whether its point is in a box."""
        x, y = (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2
        return box[0] <= x < box[2] and box[1] <= y < box[3]


def _own_effects(click: _Click, clicks: Sequence[_Click]) -> tuple[tuple[QueryKind, str], ...]:
    """What a click did and no click elsewhere on the screen did, too: none where another one led to the same screen.

    The others are also those on elements that are covered: what covers them answers.
    """
    others = [one for one in clicks if one.to_screen is not None and not one.is_in(click.box)]
    if any(one.to_screen == click.to_screen for one in others):
        return ()
    texts = {text for one in others for _, text in one.effects}
    return tuple((kind, text) for kind, text in click.effects if text not in texts)


def other_elements(transition: ElementTransition) -> list[tuple[str, Box]]:
    """What else of a screen could be meant.

    Args:
        transition: A transition of the screen.

    Returns:
        Role and box of every other element that can be seen; where vision found the one in question, of other regions, too.
    """
    screen = transition.screen
    found = [(element.role, box) for element, box in visible_elements(screen) if element.role in MARKED_ROLES]
    if transition.candidate.source == "vision":
        known = screen.known.candidates.values()
        found += [(one.role, one.box) for one in known if one.source == "vision" and one.box is not None]
    return [(role, other) for role, other in dict.fromkeys(found) if other != transition.box]
