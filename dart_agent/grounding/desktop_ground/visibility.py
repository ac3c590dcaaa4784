"""Which elements of a screen can be seen.

Role: `visibilities`. Rule: an element is whole when it lies on the screen and in its window, inside of every scrolled area around it, and
its window, or a menu's popup, is the topmost one at nine points of it; an element with one such point can be seen in part, and makes
questions ambiguous. The X server's windows decide what covers what, since menus and tooltips cover elements that the tree calls showing.
What cannot be told, such as the window of an element, counts as hidden. Non-goals: whether something is recognisable.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from dart_agent.grounding.desktop_ground.screen import (
    CapturedScreen,
    ScreenElement,
    ScreenWindow,
    ancestors,
    area,
    overlap,
)
from dart_agent.grounding.samples import Box

SAME_WINDOW = 0.7
"""Intersection over union from which a window of the X server is the one of a top-level element."""
CLIPS = frozenset({"scroll-pane", "viewport"})
MENUS = frozenset({"menu", "popup-menu"})
_INSET_PX = 1.0


class Visibility(Enum):
    """How much of an element can be seen."""

    WHOLE = "whole"
    PART = "part"
    HIDDEN = "hidden"


def visibilities(screen: CapturedScreen) -> list[Visibility]:
    """Judge all elements of a screen.

    Args:
        screen: The screen.

    Returns:
        In the order of the elements.
    """
    owners = {
        element.index: _window_of(element.box, screen.windows)
        for element in screen.elements
        if element.top == element.index and element.box is not None
    }
    return [_visibility(screen, element, owners) for element in screen.elements]


def _window_of(box: Box, windows: Sequence[ScreenWindow]) -> int | None:
    """Index of the window of a top-level element, of equally fitting ones the topmost."""
    best: tuple[float, int] | None = None
    for index, window in enumerate(windows):
        common = overlap(box, window.box)
        share = common / (area(box) + area(window.box) - common)
        if share >= SAME_WINDOW and (best is None or share >= best[0]):
            best = share, index
    return None if best is None else best[1]


def _visibility(screen: CapturedScreen, element: ScreenElement, owners: dict[int, int | None]) -> Visibility:
    if element.box is None or element.top < 0 or not {"showing", "visible"} <= element.states:
        return Visibility.HIDDEN
    around = ancestors(screen.elements, element)
    in_menu = any(one.role in MENUS for one in around)
    owner = owners.get(element.top)
    if owner is None and not in_menu:
        return Visibility.HIDDEN
    if any(one.role == "combo-box" for one in around):
        return Visibility.HIDDEN  # a closed list tells places of entries that nobody sees
    left, top, right, bottom = element.box
    width, height = screen.wh
    clips: list[Box] = [(0, 0, width, height)]
    if not in_menu:
        clips += [one.box for one in around if one.box is not None and (one.role in CLIPS or one.index == element.top)]
    points = [
        (x, y)
        for x in (left + _INSET_PX, (left + right) / 2, right - _INSET_PX)
        for y in (top + _INSET_PX, (top + bottom) / 2, bottom - _INSET_PX)
    ]
    seen = [
        all(clip[0] <= x <= clip[2] and clip[1] <= y <= clip[3] for clip in clips)
        and _shows(screen.windows, (x, y), owner, in_menu)
        for x, y in points
    ]
    if not any(seen):
        return Visibility.HIDDEN
    outside = any(left < clip[0] or top < clip[1] or right > clip[2] or bottom > clip[3] for clip in clips)
    return Visibility.WHOLE if all(seen) and not outside else Visibility.PART


def _shows(windows: Sequence[ScreenWindow], point: tuple[float, float], owner: int | None, in_menu: bool) -> bool:
    """Whether the topmost window at a point is the element's."""
    x, y = point
    for index in range(len(windows) - 1, -1, -1):
        left, top, right, bottom = windows[index].box
        if left <= x < right and top <= y < bottom:
            return windows[index].popup if in_menu else index == owner
    return False
