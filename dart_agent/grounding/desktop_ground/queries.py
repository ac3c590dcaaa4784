"""Questions to which exactly one element of a screen is the answer.

Role: `find_queries`. Rule: every question comes with the condition that it states; it is kept only where exactly one element that can be
seen, also in part, meets the condition, and where that one can be seen whole and shows something. Elements of all applications on the
screen count for the ambiguity; only those of the screen's own application are asked about. Non-goals: which of the questions a benchmark
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dart_agent.grounding.desktop_ground.places import (
    COLOURED,
    DIRECTIONS,
    NOT_COLOURED,
    colour_shares,
    is_plain,
    line_of,
    neighbour,
)
from dart_agent.grounding.desktop_ground.screen import CapturedScreen, ScreenElement, ancestors, area, center
from dart_agent.grounding.desktop_ground.visibility import MENUS, Visibility, visibilities
from dart_agent.grounding.desktop_ground.wording import (
    FUNCTIONS,
    NAMELESS,
    NOT_ASKED,
    SHOWING_VALUE,
    kind_of,
    shown_name,
    spoken_name,
)
from dart_agent.grounding.samples import Box, QueryKind

LABEL_DIRECTIONS = ("right", "below")
"""Where a control is, seen from its label."""
LEAST_IN_LINE = 3
LARGEST_BY = 1.5
"""How many times larger the largest element is than the second one."""
OUTLINED = frozenset({"button", "text field", "drop-down list", "icon"})
"""Kinds whose size can be seen; the boxes of others reach beyond what is drawn."""
LONGEST_TEXT = 32
"""Characters of the content of a text field that a question may quote."""
SMALLEST_PX = 6
"""Shorter side of an element that can be asked about."""
ORDINALS = ("first", "second", "third", "fourth", "fifth")


@dataclass(frozen=True, slots=True)
class GroundQuery:
    """A question with its answer.

    Attributes:
        instruction: The question.
        kind: How it describes the answer.
        element: The answer.
    """

    instruction: str
    kind: QueryKind
    element: ScreenElement


@dataclass(frozen=True, slots=True)
class _Seen:
    """An element that can be seen, with what is known of it."""

    element: ScreenElement
    box: Box
    kind: str
    name: str
    label: str
    whole: bool


def find_queries(screen: CapturedScreen) -> list[GroundQuery]:
    """Find all questions about a screen that have exactly one answer.

    Args:
        screen: The screen.

    Returns:
        The questions, in the order of the elements; each question once.
    """
    seen = _seen(screen)
    found: dict[str, GroundQuery] = {}
    for instruction, kind, answers in _candidates(screen, seen):
        if len(answers) != 1:
            continue
        (answer,) = answers
        if _can_be_asked(screen, seen, answer) and instruction not in found:
            found[instruction] = GroundQuery(instruction, kind, answer.element)
    return sorted(found.values(), key=lambda query: query.element.index)


def _seen(screen: CapturedScreen) -> list[_Seen]:
    visible = [
        (element, element.box, state is Visibility.WHOLE)
        for element, state in zip(screen.elements, visibilities(screen), strict=True)
        if state is not Visibility.HIDDEN and element.box is not None and kind_of(element)
    ]
    labels = [(box, shown_name(element)) for element, box, _ in visible if kind_of(element) == "label"]
    controls = [box for element, box, _ in visible if kind_of(element) != "label"]
    found = []
    for element, box, whole in visible:
        kind = kind_of(element)
        unnamed = kind in NAMELESS and (kind in SHOWING_VALUE or not spoken_name(element))
        label = _label(box, labels, controls) if unnamed else ""
        found.append(_Seen(element, box, kind, spoken_name(element), label, whole))
    return found


def _label(box: Box, labels: Sequence[tuple[Box, str]], controls: Sequence[Box]) -> str:
    """The label that has a control next to it, with no other control nearer to the label."""
    for direction in LABEL_DIRECTIONS:
        found = [
            text
            for place, text in labels
            if text and (nearest := neighbour(direction, place, controls)) is not None and controls[nearest] == box
        ]
        if len(found) == 1:
            return found[0]
    return ""


def _can_be_asked(screen: CapturedScreen, seen: Sequence[_Seen], answer: _Seen) -> bool:
    left, top, right, bottom = answer.box
    if not answer.whole or answer.element.application not in screen.own or answer.kind in NOT_ASKED:
        return False
    if min(right - left, bottom - top) < SMALLEST_PX or is_plain(screen.pixels, answer.box):
        return False
    x, y = center(answer.box)
    around = {one.index for one in ancestors(screen.elements, answer.element)}
    in_menu = any(screen.elements[index].role in MENUS for index in around)
    for other in seen:
        inside = other.box[0] <= x <= other.box[2] and other.box[1] <= y <= other.box[3]
        if not inside or other.element.index == answer.element.index or other.kind in NOT_ASKED:
            continue
        above = {one.index for one in ancestors(screen.elements, other.element)}
        below_menu = in_menu and not any(screen.elements[index].role in MENUS for index in above)
        if other.element.index not in around and answer.element.index not in above and not below_menu:
            return False  # two controls in one place: what a click there does, nobody can tell
    return True


Candidate = tuple[str, QueryKind, list[_Seen]]


def _candidates(screen: CapturedScreen, seen: Sequence[_Seen]) -> Iterator[Candidate]:
    """Questions, each with all elements that meet its condition."""
    asked = [one for one in seen if one.kind not in NOT_ASKED]
    for one in asked:
        yield from _by_name(one, asked)
        yield from _by_function(one, asked)
        yield from _by_state(one, asked)
    yield from _by_neighbour(seen, asked)
    yield from _by_order(screen, asked)
    yield from _by_look(screen, asked)


def _fitting(asked: Sequence[_Seen], condition: Callable[[_Seen], bool]) -> list[_Seen]:
    return [one for one in asked if condition(one)]


def _by_name(one: _Seen, asked: Sequence[_Seen]) -> Iterator[Candidate]:
    if one.name:
        same = _fitting(asked, lambda other: other.kind == one.kind and other.name == one.name)
        called = "that shows " if one.kind in SHOWING_VALUE else ""
        yield f'Click the {one.kind} {called}"{shown_name(one.element)}".', "name", same
    if one.label:
        same = _fitting(asked, lambda other: other.label.casefold() == one.label.casefold())
        yield f'Click the {one.kind} that is labelled "{one.label}".', "name", same


def _by_function(one: _Seen, asked: Sequence[_Seen]) -> Iterator[Candidate]:
    """What the control does: known functions by name, whatever the kind, else what its kind does with its name, in its state."""
    name, states = shown_name(one.element), one.element.states
    if one.name in FUNCTIONS and one.kind in ("button", "menu item"):
        same = _fitting(asked, lambda other: FUNCTIONS.get(other.name) == FUNCTIONS[one.name])
        yield f"Click what you use to {FUNCTIONS[one.name]}.", "functional", same
        return
    named = _fitting(asked, lambda other: other.kind == one.kind and bool(name) and other.name == one.name)
    if one.element.role in ("check-box", "check-menu-item") and name:
        options = _fitting(
            asked, lambda other: other.name == one.name and other.element.role in ("check-box", "check-menu-item")
        )
        yield f'Switch the option "{name}" {"off" if "checked" in states else "on"}.', "functional", options
    elif one.kind == "radio button" and name:
        yield f'Choose "{name}" among the alternatives.', "functional", named
    elif one.kind == "menu" and name:
        yield f'Show what the menu "{name}" offers.', "functional", named
    elif one.kind == "tab" and name:
        yield f'Go to the page "{name}".', "functional", named
    elif one.kind == "column header" and name:
        yield f'Sort the rows by "{name}".', "functional", named
    elif one.kind == "link" and name:
        yield f'Follow the link to "{name}".', "functional", named
    elif one.kind in NAMELESS and (one.label or (one.name and one.kind not in SHOWING_VALUE)):
        called = one.label or name
        same = _fitting(
            asked, lambda other: other.kind in NAMELESS and called.casefold() in (other.label.casefold(), other.name)
        )
        verb = {"text field": "Enter a text for", "drop-down list": "Pick another value for"}.get(one.kind, "Change")
        yield f'{verb} "{called}".', "functional", same


_STATES: dict[str, tuple[tuple[str, bool, str], ...]] = {
    "check box": (("checked", True, "ticked"), ("checked", False, "not ticked")),
    "radio button": (("checked", True, "chosen"),),
    "tab": (("selected", True, "in front"),),
    "list entry": (("selected", True, "highlighted"),),
    "button": (("sensitive", False, "greyed out"),),
    "menu item": (("sensitive", False, "greyed out"),),
}
"""By kind: a state, whether it holds, and how it looks."""


def _by_state(one: _Seen, asked: Sequence[_Seen]) -> Iterator[Candidate]:
    for state, holds, look in _STATES.get(one.kind, ()):
        if (state in one.element.states) is holds:
            same = _fitting(
                asked,
                lambda other, state=state, holds=holds: (  # type: ignore[misc]
                    other.kind == one.kind and (state in other.element.states) is holds
                ),
            )
            yield f"Click the {one.kind} that is {look}.", "visual", same
    text = one.element.text
    if one.kind == "text field" and 0 < len(text) <= LONGEST_TEXT and text.isprintable() and '"' not in text:
        same = _fitting(asked, lambda other: other.kind == one.kind and text in other.element.text)
        yield f'Click the text field that contains "{text}".', "visual", same


def _by_neighbour(seen: Sequence[_Seen], asked: Sequence[_Seen]) -> Iterator[Candidate]:
    """The control next to one whose kind and name are unique; any control between the two is the neighbour instead."""
    boxes = [one.box for one in asked]
    for anchor in seen:
        if not anchor.name or not anchor.whole:
            continue
        if sum(other.kind == anchor.kind and other.name == anchor.name for other in seen) != 1:
            continue
        for direction, words in DIRECTIONS.items():
            found = neighbour(direction, anchor.box, boxes)
            if found is not None:
                one = asked[found]
                called = f'the {anchor.kind} "{shown_name(anchor.element)}"'
                yield f"Click the {one.kind} {words} {called}.", "positional", [one]


def _by_order(screen: CapturedScreen, asked: Sequence[_Seen]) -> Iterator[Candidate]:
    """The first, second, ... and last of a kind, where all of the kind stand in one row or column of one parent."""
    for kind in dict.fromkeys(one.kind for one in asked):
        group = _fitting(asked, lambda one, kind=kind: one.kind == kind)  # type: ignore[misc]
        if len(group) < LEAST_IN_LINE or len({one.element.parent for one in group}) != 1:
            continue
        line = line_of([one.box for one in group])
        if line is None or not all(one.whole for one in group):
            continue
        shape, order = line
        start = "from the left" if shape == "row" else "from the top"
        for rank, index in enumerate(order[: len(ORDINALS)]):
            yield f"Click the {ORDINALS[rank]} {kind} {start}.", "positional", [group[index]]
        yield f"Click the last {kind} of the {shape}.", "positional", [group[order[-1]]]


def _by_look(screen: CapturedScreen, asked: Sequence[_Seen]) -> Iterator[Candidate]:
    """The only one of a kind, the largest, and the one of a colour that no other of the kind has."""
    for kind in dict.fromkeys(one.kind for one in asked):
        group = _fitting(asked, lambda one, kind=kind: one.kind == kind)  # type: ignore[misc]
        if len(group) == 1:
            yield f"Click the only {kind} on the screen.", "visual", group
            continue
        sizes = sorted((area(one.box) for one in group), reverse=True)
        if kind in OUTLINED and len(group) >= LEAST_IN_LINE and sizes[0] >= LARGEST_BY * sizes[1]:
            yield f"Click the largest {kind}.", "visual", [max(group, key=lambda one: area(one.box))]
        shares = [colour_shares(screen.pixels, one.box) for one in group]
        for colour in dict.fromkeys(name for each in shares for name in each):
            having = [one for one, each in zip(group, shares, strict=True) if each.get(colour, 0.0) >= COLOURED]
            maybe = [one for one, each in zip(group, shares, strict=True) if each.get(colour, 0.0) > NOT_COLOURED]
            if having:
                yield f"Click the {colour} {kind}.", "visual", maybe
