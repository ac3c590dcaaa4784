"""Clicks on elements with what they led to, from a stored exploration.

Role: `element_transitions` says which elements of a screen can be asked about, and what a click on each led to; `other_elements` says what
else of the screen could be meant. Rule: an element that another one covers in the middle, or that the stored picture of its screen does not
show with its name in its place, is not asked about. Non-goals: words (`dart_agent.explore.queries.rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

from dart_agent.explore.candidates import CandidateAction, find_regions
from dart_agent.explore.storage.records import StoredScreen, StoredStep
from dart_agent.explore.store import ExploreStore
from dart_agent.explore.values import StepOutcome
from dart_agent.grounding.samples import Box
from dart_envs.observations.views import MARKED_ROLES
from dart_server.wire import A11yElement

MIN_CHANGE = frozenset({StepOutcome.NEW_SCREEN, StepOutcome.NEW_EDGE, StepOutcome.KNOWN_EDGE})
"""Outcomes that something can be said about."""


@dataclass(frozen=True, slots=True)
class ElementTransition:
    """A click on an element with what it led to.

    Attributes:
        screen: The screen of the element.
        candidate: The element, as it was first seen on the screen.
        after: The screen after it; None where nothing changed visibly, or the application was left.
    """

    screen: StoredScreen
    candidate: CandidateAction
    after: StoredScreen | None

    @property
    def box(self) -> Box:
        """Box of the element in pixels."""
        assert self.candidate.box is not None
        return self.candidate.box


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
    led: dict[tuple[int, str], int | None] = {}
    for step in steps:
        if step.from_screen is not None and step.candidate is not None and step.outcome in MIN_CHANGE:
            changed = step.to_screen is not None and step.to_screen != step.from_screen
            led[step.from_screen, step.candidate.key] = step.to_screen if changed else None
    found = []
    for screen in screens:
        for key, candidate in screen.known.candidates.items():
            place = (screen.known.screen_id, key)
            if candidate.kind != "click" or candidate.box is None or place not in led:
                continue
            shown = (
                candidate.box in regions(screen)
                if candidate.source == "vision"
                else _is_where_it_was(screen, candidate)
            )
            if shown and not _is_covered(screen, candidate.box):
                after = led[place]
                found.append(ElementTransition(screen, candidate, None if after is None else by_id[after]))
    return found


def _is_where_it_was(screen: StoredScreen, candidate: CandidateAction) -> bool:
    """Whether the stored picture shows the element, with its name, at the candidate's box: what came later is not in it."""
    return any(
        element.role == candidate.role
        and element.name.strip() == candidate.name
        and element_box(element) == candidate.box
        for element in visible_elements(screen)
    )


def _is_covered(screen: StoredScreen, box: Box) -> bool:
    """Whether another element lies over the middle of a box, such as an entry of an open menu. What holds the whole box is below it."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    for element in visible_elements(screen):
        left, top, right, bottom = other = element_box(element)
        holds_it = left <= box[0] and top <= box[1] and right >= box[2] and bottom >= box[3]
        if element.role in MARKED_ROLES and other != box and not holds_it and left < x < right and top < y < bottom:
            return True
    return False


def other_elements(transition: ElementTransition) -> list[tuple[str, Box]]:
    """What else of a screen could be meant.

    Args:
        transition: A transition of the screen.

    Returns:
        Role and box of every other element that can be seen; where vision found the one in question, of other regions, too.
    """
    screen = transition.screen
    found = [
        (element.role, element_box(element)) for element in visible_elements(screen) if element.role in MARKED_ROLES
    ]
    if transition.candidate.source == "vision":
        known = screen.known.candidates.values()
        found += [(one.role, one.box) for one in known if one.source == "vision" and one.box is not None]
    return [(role, other) for role, other in dict.fromkeys(found) if other != transition.box]


def visible_elements(screen: StoredScreen) -> list[A11yElement]:
    """The elements of which something is on the screen.

    Args:
        screen: The screen.

    Returns:
        Those of which at least 2 pixels each way are on it, in the order of the tree.
    """
    width, height = screen.resolution
    return [
        one
        for one in screen.elements
        if min(one.x + one.w, width) - max(one.x, 0) >= 2 and min(one.y + one.h, height) - max(one.y, 0) >= 2
    ]


def element_box(element: A11yElement) -> Box:
    """The box of an element in pixels."""
    return float(element.x), float(element.y), float(element.x + element.w), float(element.y + element.h)
