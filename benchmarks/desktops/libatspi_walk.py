"""The accessibility tree, read inside a desktop by libatspi with one call after another; run there with `python3 -`.

Role: the reference that the desktop's own walk has to equal, by the library that OSWorld reads trees with. It shares no code with it.
Non-goals: speed.
"""

import json
from typing import Any

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi  # noqa: E402 - the version comes first

LARGE_TABLE = 1000
CORNER_PX = 40
"""From a sheet's corner into its first cells, behind the headers."""


def states_of(node: Any) -> list[str]:
    """Names of the states that are set."""
    return [state.value_nick for state in node.get_state_set().get_states()]


def showing_cells(table: Any) -> list[Any]:
    """The showing cells of a sheet without hidden rows and columns, row by row."""
    area = table.get_extents(Atspi.CoordType.SCREEN)
    first = table.get_accessible_at_point(area.x + CORNER_PX, area.y + CORNER_PX, Atspi.CoordType.SCREEN)
    index = first.get_index_in_parent()
    top, left = table.get_row_at_index(index), table.get_column_at_index(index)
    while top > 0 and "showing" in states_of(table.get_accessible_at(top - 1, left)):
        top -= 1
    while left > 0 and "showing" in states_of(table.get_accessible_at(top, left - 1)):
        left -= 1
    found: list[Any] = []
    row = top
    while "showing" in states_of(table.get_accessible_at(row, left)):
        column = left
        while "showing" in states_of(cell := table.get_accessible_at(row, column)):
            found.append(cell)
            column += 1
        row += 1
    return found


def walk(node: Any, app: str, window: str, depth: int, found: list[dict[str, Any]]) -> None:
    """Append the showing elements below a node, in tree order."""
    count = node.get_child_count()
    large = count > LARGE_TABLE and "Table" in node.get_interfaces()
    for child in showing_cells(node) if large else [node.get_child_at_index(index) for index in range(count)]:
        states = states_of(child)
        if "showing" not in states:
            continue
        area, text = None, ""
        if "Component" in child.get_interfaces():
            area = child.get_extents(Atspi.CoordType.SCREEN)
        if "Text" in child.get_interfaces():
            text = child.get_text(0, child.get_character_count())
        name = child.get_name()
        inside = window if depth else name
        if area is not None and area.width > 0 and area.height > 0:
            place = {"x": area.x, "y": area.y, "w": area.width, "h": area.height}
            told = {"role": child.get_role_name(), "name": name, "text": text, "states": states}
            found.append(told | place | {"app": app, "window": inside})
        walk(child, app, inside, depth + 1, found)


def main() -> None:
    """Print the elements of every program as JSON."""
    Atspi.init()
    desktop = Atspi.get_desktop(0)
    found: list[dict[str, Any]] = []
    for index in range(desktop.get_child_count()):
        app = desktop.get_child_at_index(index)
        walk(app, app.get_name(), "", 0, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
