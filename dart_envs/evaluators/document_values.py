"""What an office document holds, as plain values: cells and sheets, paragraphs, slides.

Role: the values that `dart_envs.evaluators.opendocument` reads and the metrics compare. Rule: pure data. Non-goals: reading files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. value: a number, a text, or None when it is empty; kind: OpenDocument's value type; spans: rows and columns it covers."""

    value: float | str | None
    kind: str
    formula: str
    style: str
    spans: tuple[int, int]
    note: str


@dataclass(frozen=True, slots=True)
class Sheet:
    """Cells by (row, column), from 0; those without content and formatting are left out."""

    name: str
    cells: Mapping[tuple[int, int], Cell]
    hidden_rows: frozenset[int]

    def rows(self) -> list[list[float | str]]:
        """What the cells hold, as a table without empty rows and cells at its ends; "" for an empty cell."""
        held = {place: cell.value for place, cell in self.cells.items() if cell.value is not None}
        table: list[list[float | str]] = [[] for _ in range(1 + max((row for row, _ in held), default=-1))]
        for (row, column), value in sorted(held.items()):
            table[row] += [""] * (column - len(table[row])) + [value]
        return table


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One paragraph.

    style: name that the user sees. looks: what holds for all its characters (`bold`, `italic`, `underline`). list_kind: `bulleted`,
    `numbered`, `unmarked` (a list that shows neither), or "" outside of lists.
    """

    text: str
    style: str
    align: str
    looks: frozenset[str]
    list_kind: str
    page_break: bool
    columns: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Slide:
    """One slide: the texts of its first shape and of the others, its notes, and whether the show leaves it out."""

    title: str
    lines: tuple[str, ...]
    notes: str
    hidden: bool
    transition: bool
