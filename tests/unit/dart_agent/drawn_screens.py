"""Screens with accessibility trees in OSWorld's form, written and drawn by tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

import numpy as np
from PIL import Image, ImageDraw

from dart_agent.grounding.desktop_ground.screen import CapturedScreen, ScreenWindow, read_elements
from dart_agent.grounding.samples import Box

NAMESPACES = {
    "st": "https://accessibility.ubuntu.example.org/ns/state",
    "cp": "https://accessibility.ubuntu.example.org/ns/component",
}
USUAL = ("showing", "visible", "sensitive", "enabled")


@dataclass
class Node:
    """An element: role, name, (left, top, right, bottom), and what is in it."""

    role: str
    name: str = ""
    box: tuple[int, int, int, int] | None = None
    children: Sequence[Node] = ()
    text: str = ""
    states: tuple[str, ...] = USUAL
    colour: tuple[int, int, int] = (230, 230, 230)
    more: tuple[str, ...] = field(default=())
    """Further states."""

    def xml(self) -> str:
        held = "".join(f' st:{state}="true"' for state in (*self.states, *self.more))
        if self.box is not None:
            left, top, right, bottom = self.box
            held += f' cp:screencoord="({left}, {top})" cp:size="({right - left}, {bottom - top})"'
        inside = "".join(child.xml() for child in self.children)
        return f"<{self.role} name={quoteattr(self.name)}{held}>{self.text}{inside}</{self.role}>"

    def draw(self, pen: ImageDraw.ImageDraw) -> None:
        if self.box is not None and "showing" in self.states:
            pen.rectangle(self.box, fill=self.colour, outline=(90, 90, 90))
        for child in self.children:
            child.draw(pen)


def tree(applications: dict[str, Sequence[Node]]) -> str:
    """The XML of applications with their windows."""
    inner = "".join(
        f"<application name={quoteattr(name)}>{''.join(node.xml() for node in nodes)}</application>"
        for name, nodes in applications.items()
    )
    names = " ".join(f'xmlns:{prefix}="{address}"' for prefix, address in NAMESPACES.items())
    return f'<desktop-frame {names} name="main">{inner}</desktop-frame>'


def captured(
    applications: dict[str, Sequence[Node]],
    *,
    own: str | None = None,
    popups: Sequence[Box] = (),
    wh: tuple[int, int] = (400, 300),
    application: str = "app",
    state: str = "start",
) -> CapturedScreen:
    """A screen whose windows are the top-level elements, in the order of the tree, with popups over them."""
    picture = Image.new("RGB", wh, (200, 210, 220))
    pen = ImageDraw.Draw(picture)
    windows = []
    for nodes in applications.values():
        for node in nodes:
            node.draw(pen)
            if node.box is not None:
                windows.append(ScreenWindow(node.box))
    windows += [ScreenWindow(box, popup=True) for box in popups]
    return CapturedScreen(
        application=application,
        state=state,
        pixels=np.array(picture),
        elements=read_elements(tree(applications)),
        windows=tuple(windows),
        own=frozenset({own or next(iter(applications))}),
    )


def window(*children: Node, box: tuple[int, int, int, int] = (0, 0, 400, 300), name: str = "Window") -> Node:
    """A window with elements."""
    return Node("frame", name, box, children, colour=(245, 245, 245))


def button(name: str, left: int, top: int, width: int = 60, height: int = 24, **fields: object) -> Node:
    """A button."""
    return Node("push-button", name, (left, top, left + width, top + height), **fields)  # type: ignore[arg-type]
