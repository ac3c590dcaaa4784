"""The accessibility walk: one process, one walk, one answer on stdout.

Role: read the AT-SPI tree as `user` and write it as JSON or as OSWorld's XML.
Rule: started ahead of time and idle until a line arrives on stdin (`json` or `xml`, and the limit in seconds), so that every walk sees a
fresh tree without paying for the start.
Non-goals: asking the programs (`a11y_tree`); protection against hanging for good (the agent kills this process).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import quoteattr

from dart_guest.a11y_tree import Element, read_tree
from dart_guest.dbus_client import BusConnection, BusError, Call

CONNECT_TIMEOUT_S = 5.0
UNCARRIED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffb\U00010000-\U0010ffff]")
NAMESPACES = {
    "st": "https://accessibility.ubuntu.example.org/ns/state",
    "attr": "https://accessibility.ubuntu.example.org/ns/attributes",
    "cp": "https://accessibility.ubuntu.example.org/ns/component",
    "val": "https://accessibility.ubuntu.example.org/ns/value",
    "act": "https://accessibility.ubuntu.example.org/ns/action",
    "doc": "https://accessibility.ubuntu.example.org/ns/document",
    "docattr": "https://accessibility.ubuntu.example.org/ns/document/attributes",
    "txt": "https://accessibility.ubuntu.example.org/ns/text",
}
"""Namespace prefixes and addresses of OSWorld's tree, which its evaluators match on."""


def flat(application: Element) -> Iterator[dict[str, Any]]:
    """The showing elements of a program that have a size, in tree order."""
    below = [(window, window.name) for window in reversed(application.children)]
    while below:
        element, window = below.pop()
        if not element.told:
            continue
        x, y, width, height = element.box
        if width > 0 and height > 0:
            yield {
                "role": element.role,
                "name": element.name,
                "text": element.text,
                "states": element.states,
                "x": x,
                "y": y,
                "w": width,
                "h": height,
                "app": application.name,
                "window": window,
            }
        below += [(child, window) for child in reversed(element.children)]


def xml_attributes(element: Element) -> dict[str, str]:
    """What an element says about itself, under OSWorld's names; it has no place unless it is visible and showing."""
    found = {"name": element.name} | {f"st:{state}": "true" for state in element.states}
    found |= {f"attr:{name}": value for key, value in element.attributes.items() if (name := xml_name(key))}
    if "Component" in element.interfaces and {"visible", "showing"} <= set(element.states):
        x, y, width, height = element.box
        found |= {"cp:screencoord": f"({x}, {y})", "cp:size": f"({width}, {height})"}
    found |= {
        f"val:{name}": str(value) for name, value in zip(("value", "min", "max", "step"), element.values, strict=False)
    }
    for name, description, keys in element.actions:
        action = xml_name(name) or "unnamed"
        found |= {f"act:{action}_desc": description, f"act:{action}_kb": keys}
    return found | {name.lower(): "true" for name in ("Image", "Selection") if name in element.interfaces}


def xml(element: Element) -> str:
    """One element and what is below it, in OSWorld's form."""
    if not element.told:
        return ""
    tag = xml_name(element.role) or "unknown"
    head = " ".join(f"{key}={quoteattr(clean(value))}" for key, value in xml_attributes(element).items())
    return f"<{tag} {head}>{escape(clean(element.text))}{''.join(map(xml, element.children))}</{tag}>"


def xml_name(text: str) -> str:
    """A role, key or action as the name of an element or attribute: spaces are hyphens, what no name can hold is left out."""
    name = re.sub(r"[^\w.-]", "", text.strip().replace(" ", "-"))
    return name if name[:1].isalpha() or not name else f"_{name}"


def clean(text: str) -> str:
    """Without characters that XML cannot carry and the place holders of embedded objects."""
    return UNCARRIED.sub("", text)


def escape(text: str) -> str:
    """Text content for XML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def named_by_tasks(application: str) -> str:
    """An application's XML under the name by which OSWorld's evaluators look for it: Chromium stands in for Google's browser."""
    return application.replace('<application name="Chromium"', '<application name="Google Chrome"', 1)


def accessibility_bus() -> BusConnection:
    """A connection to the accessibility bus, whose address the session bus knows. Raises BusError."""
    session_bus = BusConnection(os.environ["DBUS_SESSION_BUS_ADDRESS"], CONNECT_TIMEOUT_S)
    try:
        question = Call("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress")
        (reply,) = session_bus.ask([question], CONNECT_TIMEOUT_S, time.monotonic() + CONNECT_TIMEOUT_S)
        text = reply.reader().string()
    finally:
        session_bus.close()
    if reply.failed:
        raise BusError(f"the session has no accessibility bus: {text}")
    return BusConnection(text, CONNECT_TIMEOUT_S)


def answer(form: str, limit_s: float) -> dict[str, Any]:
    """Walk every program on the accessibility bus."""
    start_s = time.monotonic()
    tree = read_tree(accessibility_bus(), start_s + limit_s, everything=form == "xml")
    if form == "xml":
        inner = "".join(named_by_tasks(xml(application)) for application in tree.applications)
        names = " ".join(f'xmlns:{prefix}="{address}"' for prefix, address in NAMESPACES.items())
        return {"AT": f'<desktop-frame {names} name="main">{inner}</desktop-frame>'}
    found = [element for application in tree.applications for element in flat(application)]
    walk_ms = (time.monotonic() - start_s) * 1000
    return {"elements": found, "truncated": tree.truncated, "walk_ms": round(walk_ms, 2)}


def main() -> int:
    """Wait for the order, answer, end."""
    order = sys.stdin.readline().split()
    if len(order) != 2 or order[0] not in ("json", "xml"):
        return 2
    sys.stdout.write(json.dumps(answer(order[0], float(order[1]))))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
