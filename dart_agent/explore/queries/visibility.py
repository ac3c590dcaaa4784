"""What can be seen of a stored screen: its elements, and which of them others cover.

Role: `visible_elements`, `is_shown` and `is_covered`. Rule: the tree of a screen is a list in pre-order without parents, so that what
covers what is told from order, role, box and window. What stands after an element is none of its ancestors. Entries of open menus are
above everything else, dialogs above the windows that stand before them, and nothing of another window is above the active one. Where that
does not tell, an element that overlaps the middle of another one covers it, unless it holds the whole of it, stands before it and has a
role that holds controls. Non-goals: words (`dart_agent.explore.queries.rules`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dart_agent.explore.candidates import CandidateAction, visible_box
from dart_agent.explore.screens import WINDOW_ROLES
from dart_agent.explore.storage.records import StoredScreen
from dart_agent.grounding.samples import Box
from dart_envs.observations.views import MARKED_ROLES
from dart_server.wire import A11yElement

DIALOG_ROLES = frozenset({"alert", "color chooser", "dialog", "file chooser", "font chooser"})
"""Windows that stay above the one that opened them."""
MENU_ROLES = frozenset({"check menu item", "menu", "menu item", "radio menu item"})
HOLDING_ROLES = frozenset(
    {"combo box", "entry", "list item", "page tab", "password text", "spin button", "table cell", "tree item"}
)
"""Marked roles whose elements hold controls, such as the icon at the end of an entry."""
BACKGROUND_ROLES = frozenset({"text"})
"""Marked roles of areas that what pops up in the same window lies over, wherever it stands in the tree."""
VisibleElement = tuple[A11yElement, Box]
"""An element, and the box of what is on the screen of it, in pixels."""


def visible_elements(screen: StoredScreen) -> list[VisibleElement]:
    """The elements of which something is on the screen.

    Args:
        screen: The screen.

    Returns:
        Elements with the boxes of what is on the screen of them, in the order of the tree.
    """
    boxes = ((one, visible_box(one, screen.resolution)) for one in screen.elements)
    return [(one, box) for one, box in boxes if box is not None]


def is_shown(screen: StoredScreen, candidate: CandidateAction) -> bool:
    """Whether the stored picture of a screen shows an element, with its name, at its box: what came later is not in it.

    Args:
        screen: The screen.
        candidate: The element.
    """
    return _place_of(visible_elements(screen), candidate) is not None


def is_covered(screen: StoredScreen, candidate: CandidateAction) -> bool:
    """Whether something else lies over the middle of an element, so that a click on it hits that.

    Args:
        screen: The screen.
        candidate: The element; what vision found is covered by what does not hold the whole of it.
    """
    box, placed = candidate.box, visible_elements(screen)
    assert box is not None
    own = _place_of(placed, candidate)
    over = [at for at, (_, other) in enumerate(placed) if other != box and _has_middle(other, box)]
    if own is None:
        return any(placed[at][0].role in MARKED_ROLES and not _holds(placed[at][1], box) for at in over)
    window = _window_of(placed, own)
    return any(_covers(placed, at, own, window) for at in over)


def _covers(placed: Sequence[VisibleElement], at: int, own: int, window: int | None) -> bool:
    """Whether the element `at`, which has the middle of the element `own` in its box, lies over it. window: that of the latter."""
    (element, other), (target, box) = placed[at], placed[own]
    is_later, holds = at > own, _holds(other, box)
    if element.role in DIALOG_ROLES or (element.role in WINDOW_ROLES and "active" in element.states):
        return is_later
    if element.role not in MARKED_ROLES:
        return False
    if element.role in MENU_ROLES or target.role in MENU_ROLES:
        return element.role in MENU_ROLES and (target.role not in MENU_ROLES or is_later or not holds)
    is_same_window = _window_of(placed, at) == window
    if window is not None and not is_same_window:
        above = placed[window][0]
        if "active" in above.states or (above.role in DIALOG_ROLES and at < window):
            return False
    if not holds:
        return True
    if is_same_window and element.role in BACKGROUND_ROLES:
        return False
    return is_later or element.role not in HOLDING_ROLES


def _window_of(placed: Sequence[VisibleElement], own: int) -> int | None:
    """Where the window of an element stands: the nearest one before it that holds the whole of it."""
    box = placed[own][1]
    for at in range(own - 1, -1, -1):
        if placed[at][0].role in WINDOW_ROLES | DIALOG_ROLES and _holds(placed[at][1], box):
            return at
    return None


def _place_of(placed: Sequence[VisibleElement], candidate: CandidateAction) -> int | None:
    for at, (element, box) in enumerate(placed):
        if element.role == candidate.role and element.name.strip() == candidate.name and box == candidate.box:
            return at
    return None


def _has_middle(box: Box, other: Box) -> bool:
    x, y = (other[0] + other[2]) / 2, (other[1] + other[3]) / 2
    return box[0] < x < box[2] and box[1] < y < box[3]


def _holds(box: Box, other: Box) -> bool:
    return box[0] <= other[0] and box[1] <= other[1] and box[2] >= other[2] and box[3] >= other[3]
