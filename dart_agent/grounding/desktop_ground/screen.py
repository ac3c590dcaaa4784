"""One captured screen: pixels, elements of the accessibility tree, and windows.

Role: `read_elements` reads OSWorld's XML form of the tree, which has parents, applications and states. Rule: boxes are (left, top, right,
bottom) in pixels of the screen; an element without a place has no box. Non-goals: which elements are visible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from dart_agent.grounding.samples import Box
from dart_envs.types import RgbImage

_PAIR = re.compile(r"\((-?\d+), (-?\d+)\)")
_STATE, _PLACE = "ns/state", "ns/component"


@dataclass(frozen=True, slots=True)
class ScreenElement:
    """One element of the accessibility tree.

    Attributes:
        index: Its position in the tuple of elements; parents come first.
        parent: Index of the parent; -1 for an application.
        top: Index of the top-level element that it is in, itself for a top-level element; -1 for an application.
        role: Role, with hyphens: "push-button".
        name: Name, stripped.
        text: Text, stripped.
        states: Names of states that hold, such as "showing", "checked", "sensitive".
        box: Where it is; None without a place.
        application: Name of its application.
    """

    index: int
    parent: int
    top: int
    role: str
    name: str
    text: str
    states: frozenset[str]
    box: Box | None
    application: str


@dataclass(frozen=True, slots=True)
class ScreenWindow:
    """One window of the X server, its decoration included.

    Attributes:
        box: Where it is.
        popup: Whether it bypasses the window manager, as menus and tooltips do.
    """

    box: Box
    popup: bool = False


@dataclass(frozen=True, slots=True)
class CapturedScreen:
    """A screen as it was captured.

    Attributes:
        application: The application that is asked about, by our name.
        state: What was done to get there, such as "start" or "menu File".
        pixels: The screenshot, uint8 [H, W, 3].
        elements: All elements.
        windows: All visible windows, the topmost last.
        own: Names of applications in the tree that belong to `application`.
    """

    application: str
    state: str
    pixels: RgbImage
    elements: tuple[ScreenElement, ...]
    windows: tuple[ScreenWindow, ...]
    own: frozenset[str]

    @property
    def screen_id(self) -> str:
        """Name of the screen in its benchmark."""
        return f"{self.application}/{self.state}"

    @property
    def wh(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.pixels.shape[1], self.pixels.shape[0]


def read_elements(xml: str) -> tuple[ScreenElement, ...]:
    """Read an accessibility tree.

    Args:
        xml: OSWorld's form: a root with one `application` per program.

    Returns:
        The elements in tree order.

    Raises:
        ValueError: It is no XML.
    """
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"the accessibility tree is no XML: {error}") from None
    found: list[ScreenElement] = []
    waiting = [(node, -1, -1, node.get("name", "")) for node in reversed(root)]
    while waiting:
        node, parent, top, application = waiting.pop()
        index = len(found)
        top = index if parent >= 0 and found[parent].parent < 0 else top
        found.append(
            ScreenElement(
                index=index,
                parent=parent,
                top=top,
                role=node.tag,
                name=(node.get("name") or "").strip(),
                text=(node.text or "").strip(),
                states=frozenset(_local(key) for key in node.attrib if _STATE in key),
                box=_box(node),
                application=application,
            )
        )
        waiting += [(child, index, top, application) for child in reversed(node)]
    return tuple(found)


def _local(key: str) -> str:
    return key.rpartition("}")[2]


def _box(node: ElementTree.Element) -> Box | None:
    places = {_local(key): _PAIR.fullmatch(value) for key, value in node.attrib.items() if _PLACE in key}
    corner, size = places.get("screencoord"), places.get("size")
    if corner is None or size is None or int(size[1]) <= 0 or int(size[2]) <= 0:
        return None
    left, top = int(corner[1]), int(corner[2])
    return left, top, left + int(size[1]), top + int(size[2])


def ancestors(elements: Sequence[ScreenElement], element: ScreenElement) -> list[ScreenElement]:
    """What an element is in.

    Args:
        elements: All elements.
        element: One of them.

    Returns:
        Parent, its parent and so on, up to the application.
    """
    found = []
    while element.parent >= 0:
        element = elements[element.parent]
        found.append(element)
    return found


def center(box: Box) -> tuple[float, float]:
    """The middle of a box.

    Args:
        box: The box.

    Returns:
        (x, y).
    """
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def overlap(first: Box, second: Box) -> float:
    """The common area of two boxes.

    Args:
        first: A box.
        second: Another one.

    Returns:
        Pixels; 0 where they only touch.
    """
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, width) * max(0.0, height)


def area(box: Box) -> float:
    """The area of a box.

    Args:
        box: The box.

    Returns:
        Pixels.
    """
    return (box[2] - box[0]) * (box[3] - box[1])
