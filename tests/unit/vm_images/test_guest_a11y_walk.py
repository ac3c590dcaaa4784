"""The walk over a spreadsheet: what is showing, and not a thousand million cells; the tree is a fake that counts the questions."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from dart_guest.a11y_walk import Walk

ROWS, COLUMNS = 1_048_576, 1_024
TOP, LEFT, HIGH, WIDE = 20, 3, 40, 15
"""The part of the sheet that is showing."""


class FakeNode:
    """An element without children."""

    asked = 0

    def __init__(self, role: str, name: str, *, showing: bool = True) -> None:
        self.role, self.name, self.showing = role, name, showing

    def get_child_count(self) -> int:
        FakeNode.asked += 1
        return 0

    def get_interfaces(self) -> list[str]:
        FakeNode.asked += 1
        return ["Component"]

    def get_state_set(self) -> Any:
        FakeNode.asked += 1
        states = [SimpleNamespace(value_nick="showing")] if self.showing else []
        return SimpleNamespace(get_states=lambda: states)

    def get_role_name(self) -> str:
        return self.role

    def get_name(self) -> str:
        return self.name

    def get_extents(self, kind: object) -> Any:
        FakeNode.asked += 1
        return SimpleNamespace(x=100, y=200, width=50, height=20)


class FakeCell(FakeNode):
    """One cell of the sheet."""

    def __init__(self, row: int, column: int) -> None:
        self.place = (row, column)
        showing = TOP <= row < TOP + HIGH and LEFT <= column < LEFT + WIDE
        super().__init__("table cell", f"R{row}C{column}", showing=showing)

    def get_index_in_parent(self) -> int:
        return self.place[0] * COLUMNS + self.place[1]


class FakeSheet(FakeNode):
    """A table of a spreadsheet's size; its corner has a header."""

    def get_child_count(self) -> int:
        return ROWS * COLUMNS

    def get_interfaces(self) -> list[str]:
        return ["Component", "Table"]

    def get_accessible_at_point(self, x: int, y: int, kind: object) -> FakeNode:
        return FakeCell(TOP, LEFT) if x - 100 >= 20 else FakeNode("column header", "D")

    def get_row_at_index(self, index: int) -> int:
        return index // COLUMNS

    def get_column_at_index(self, index: int) -> int:
        return index % COLUMNS

    def get_n_rows(self) -> int:
        return ROWS

    def get_n_columns(self) -> int:
        return COLUMNS

    def get_accessible_at(self, row: int, column: int) -> FakeCell:
        return FakeCell(row, column)


def test_of_a_spreadsheet_the_showing_cells_are_walked() -> None:
    walk = Walk(SimpleNamespace(CoordType=SimpleNamespace(SCREEN=0)), RuntimeError, time.monotonic() + 20)
    found: list[dict[str, Any]] = []
    FakeNode.asked = 0
    sheet = FakeSheet("table", "Sheet1")
    walk.flat(SimpleNamespace(get_child_count=lambda: 1, get_child_at_index=lambda _: sheet), "soffice", "", 0, found)
    assert found[0]["role"] == "table"
    cells = [one["name"] for one in found[1:]]
    assert cells == [f"R{row}C{column}" for row in range(TOP, TOP + HIGH) for column in range(LEFT, LEFT + WIDE)]
    assert not walk.truncated
    assert FakeNode.asked < 6 * len(cells)


def test_a_table_that_shows_no_cell_has_none() -> None:
    walk = Walk(SimpleNamespace(CoordType=SimpleNamespace(SCREEN=0)), RuntimeError, time.monotonic() + 20)
    sheet = FakeSheet("table", "Sheet1")
    sheet.get_accessible_at_point = lambda x, y, kind: None  # type: ignore[method-assign, assignment, return-value]
    assert list(walk.children(sheet)) == []
