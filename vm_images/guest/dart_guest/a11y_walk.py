"""The accessibility walk: one process, one walk, one answer on stdout.

Role: read the AT-SPI tree as `user` and write it as JSON or as OSWorld's XML.
Rule: started ahead of time and idle until a line arrives on stdin (`json` or `xml`), so that every walk sees a fresh
tree without paying for the start; a program that does not answer costs its own subtree only; a deadline of its own.
Non-goals: acting through AT-SPI; protection against hanging for good (the agent kills this process).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import quoteattr

MAX_ELEMENTS = 4000
MAX_DEPTH = 60
MAX_TEXT = 20_000
CALL_TIMEOUT_MS = 800
MAX_ACTIONS = 20
LARGE_TABLE = 1000
"""Children of a table above which only the cells that are showing are looked for."""
CORNER_INSETS = (2, 20, 40)
"""Pixels from a table's corner to its first cell: there may be headers."""
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


class Walk:
    """One pass over the desktop; `truncated` tells of a limit reached or a program that failed to answer."""

    def __init__(self, atspi: Any, failure: type[Exception], deadline_s: float) -> None:
        self.atspi = atspi
        self.failure = failure
        self.deadline_s = deadline_s
        self.truncated = False
        self.count = 0

    def spent(self) -> bool:
        """Whether a limit was reached."""
        over = self.count >= MAX_ELEMENTS or time.monotonic() > self.deadline_s
        self.truncated = self.truncated or over
        return over

    def children(self, node: Any) -> Iterator[Any]:
        """Children of a node that answer; of a large table, the cells that are showing."""
        try:
            count = node.get_child_count()
            if count > LARGE_TABLE and "Table" in node.get_interfaces():
                yield from self.cells(node)
                return
        except self.failure:
            self.truncated = True
            return
        for index in range(min(count, MAX_ELEMENTS)):
            if self.spent():
                return
            try:
                child = node.get_child_at_index(index)
            except self.failure:
                self.truncated = True
                return
            if child is not None:
                yield child

    def cells(self, table: Any) -> Iterator[Any]:
        """The showing cells of a table (a spreadsheet has a thousand million), row by row; raises `failure`."""
        area = table.get_extents(self.atspi.CoordType.SCREEN)
        first = None
        for inset in CORNER_INSETS:
            found = table.get_accessible_at_point(area.x + inset, area.y + inset, self.atspi.CoordType.SCREEN)
            if found is not None and found.get_role_name() == "table cell":
                first = found
                break
        if first is None:
            return
        index = first.get_index_in_parent()
        top, left = table.get_row_at_index(index), table.get_column_at_index(index)
        right = table.get_n_columns()
        for row in range(top, table.get_n_rows()):
            for column in range(left, right):
                if self.spent():
                    return
                cell = table.get_accessible_at(row, column)
                if (row == top or column == left) and (cell is None or "showing" not in self.states(cell)):
                    if row > top:
                        return
                    right = column
                    break
                yield cell

    def states(self, node: Any) -> list[str]:
        """Names of the states that are set."""
        return [state.value_nick for state in node.get_state_set().get_states()]

    def text(self, node: Any, interfaces: list[str]) -> str:
        """What the element holds as text, or ""."""
        if "Text" not in interfaces:
            return ""
        count = node.get_character_count()
        return str(node.get_text(0, min(count, MAX_TEXT))) if count > 0 else ""

    def box(self, node: Any, interfaces: list[str]) -> tuple[int, int, int, int]:
        """(x, y, width, height) on the screen; zeros when the element has no place."""
        if "Component" not in interfaces:
            return (0, 0, 0, 0)
        area = node.get_extents(self.atspi.CoordType.SCREEN)
        return (int(area.x), int(area.y), int(area.width), int(area.height))

    def flat(self, node: Any, app: str, window: str, depth: int, found: list[dict[str, Any]]) -> None:
        """Append the showing elements below a node, in tree order."""
        for child in self.children(node):
            self.count += 1
            try:
                states = self.states(child)
                if "showing" not in states:
                    continue
                interfaces = child.get_interfaces()
                x, y, width, height = self.box(child, interfaces)
                role, name = child.get_role_name(), child.get_name() or ""
                inside = window if depth else name
                if width > 0 and height > 0:
                    found.append(
                        {
                            "role": role,
                            "name": name,
                            "text": self.text(child, interfaces),
                            "states": states,
                            "x": x,
                            "y": y,
                        }
                        | {"w": width, "h": height, "app": app, "window": inside}
                    )
            except self.failure:
                self.truncated = True
                continue
            if depth < MAX_DEPTH:
                self.flat(child, app, inside, depth + 1, found)

    def xml_attributes(self, node: Any, interfaces: list[str]) -> dict[str, str]:
        """What an element says about itself, under OSWorld's names; it has no place unless it is visible and showing."""
        states = self.states(node)
        found = {"name": node.get_name() or ""} | {f"st:{state}": "true" for state in states}
        told = (node.get_attributes() or {}).items()
        found |= {f"attr:{name}": value for key, value in told if (name := xml_name(key))}
        if "Component" in interfaces and {"visible", "showing"} <= set(states):
            x, y, width, height = self.box(node, interfaces)
            found |= {"cp:screencoord": f"({x}, {y})", "cp:size": f"({width}, {height})"}
        if "Value" in interfaces:
            found |= {
                "val:value": str(node.get_current_value()),
                "val:min": str(node.get_minimum_value()),
                "val:max": str(node.get_maximum_value()),
                "val:step": str(node.get_minimum_increment()),
            }
        if "Action" in interfaces:
            for index in range(min(node.get_n_actions(), MAX_ACTIONS)):
                action = xml_name(node.get_action_name(index) or "") or "unnamed"
                found[f"act:{action}_desc"] = node.get_action_description(index) or ""
                found[f"act:{action}_kb"] = node.get_key_binding(index) or ""
        found |= {name.lower(): "true" for name in ("Image", "Selection") if name in interfaces}
        return found

    def xml(self, node: Any, depth: int) -> str:
        """One element and what is below it, in OSWorld's form."""
        self.count += 1
        try:
            tag = xml_name(node.get_role_name() or "") or "unknown"
            interfaces = node.get_interfaces()
            attributes = self.xml_attributes(node, interfaces)
            text = self.text(node, interfaces)
        except self.failure:
            self.truncated = True
            return ""
        head = " ".join(f"{key}={quoteattr(clean(value))}" for key, value in attributes.items())
        below = [self.xml(child, depth + 1) for child in self.children(node)] if depth < MAX_DEPTH else []
        return f"<{tag} {head}>{escape(clean(text))}{''.join(below)}</{tag}>"


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


def answer(form: str, limit_s: float) -> dict[str, Any]:
    """Walk every program on the accessibility bus."""
    import gi

    gi.require_version("Atspi", "2.0")
    from gi.repository import Atspi, GLib

    Atspi.init()
    Atspi.set_timeout(CALL_TIMEOUT_MS, CALL_TIMEOUT_MS)
    start_s = time.monotonic()
    walk = Walk(Atspi, GLib.Error, start_s + limit_s)
    desktop = Atspi.get_desktop(0)
    if form == "xml":
        inner = "".join(named_by_tasks(walk.xml(app, 1)) for app in walk.children(desktop))
        names = " ".join(f'xmlns:{prefix}="{address}"' for prefix, address in NAMESPACES.items())
        return {"AT": f'<desktop-frame {names} name="main">{inner}</desktop-frame>'}
    found: list[dict[str, Any]] = []
    for app in walk.children(desktop):
        try:
            name = app.get_name() or ""
        except GLib.Error:
            walk.truncated = True
            continue
        walk.flat(app, name, "", 0, found)
    walk_ms = (time.monotonic() - start_s) * 1000
    return {"elements": found, "truncated": walk.truncated, "walk_ms": round(walk_ms, 2)}


def main() -> int:
    """Load the libraries, wait for the order, answer, end."""
    import gi

    gi.require_version("Atspi", "2.0")
    from gi.repository import Atspi  # noqa: F401 - loaded ahead of the order, it costs most of the start

    order = sys.stdin.readline().split()
    if len(order) != 2 or order[0] not in ("json", "xml"):
        return 2
    sys.stdout.write(json.dumps(answer(order[0], float(order[1]))))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
