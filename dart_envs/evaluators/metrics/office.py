"""Metrics of office documents: spreadsheets, texts and presentations as LibreOffice saves them.

Role: one function per kind of document, and `METRICS` of this module; all names are ours. Rule: what the rules leave out is not
looked at; what they name must hold in full. Non-goals: parsing (`dart_envs.evaluators.opendocument`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.document_values import Cell, Paragraph, Sheet, Slide
from dart_envs.evaluators.formulas import FormulaCells, NotComputable
from dart_envs.evaluators.metrics.base import FileResult, Metric, Options, binary_score
from dart_envs.evaluators.opendocument import OpenDocument

_CELL_NAME = re.compile(r"^([A-Z]{1,3})([1-9][0-9]{0,6})$")
_CELL_REFERENCE = re.compile(r"\[[^\]]*\.\$?[A-Z]+\$?[0-9]+")
"""A cell in a formula, as OpenDocument writes it: `[.B2:.B9]`."""


def _open_document(result: Any, kind: str) -> OpenDocument:
    if not isinstance(result, GuestFile):
        raise TypeError(f"expected a file, got {type(result).__name__}")
    return OpenDocument(result, kind)


def parse_cell(name: str) -> tuple[int, int]:
    """(row, column) from 0 of a cell such as `B7`. Raises ValueError for other names."""
    match = _CELL_NAME.match(name)
    if match is None:
        raise ValueError(f"{name!r} is not a cell")
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(match[2]) - 1, column - 1


def _equal_values(held: float | str | None, wanted: float | str | None) -> bool:
    """The same value of the same kind: a text that looks like a number is not that number."""
    if isinstance(held, str) or isinstance(wanted, str) or held is None or wanted is None:
        return held == wanted
    return math.isclose(held, wanted, rel_tol=1e-9, abs_tol=1e-9)


def _equal_rows(held: Sequence[Sequence[float | str]], wanted: Sequence[Sequence[float | str]]) -> bool:
    return len(held) == len(wanted) and all(
        len(one) == len(other) and all(map(_equal_values, one, other)) for one, other in zip(held, wanted, strict=True)
    )


def _cell_matches(document: OpenDocument, cell: Cell | None, rule: Mapping[str, Any]) -> bool:
    empty = Cell(None, "", "", "", (1, 1), "")
    held = cell or empty
    number, decimals = document.number_style(held.style)
    looks = document.looks("table-cell", held.style)
    tests: dict[str, Callable[[Any], bool]] = {
        "value": lambda want: _equal_values(held.value, want),
        "formula": lambda want: bool(_CELL_REFERENCE.search(held.formula)) == want,
        "function": lambda want: f"{want}(" in held.formula,
        "number": lambda want: number == want,
        "decimals": lambda want: decimals == want,
        "looks": lambda want: looks == set(want),
        "spans": lambda want: held.spans == tuple(want),
        "note": lambda want: held.note.strip() == want,
        "background": lambda want: (
            document.style_property("table-cell", held.style, "table-cell", "fo:background-color") == want
        ),
        "align": lambda want: document.style_property("table-cell", held.style, "paragraph", "fo:text-align") == want,
    }
    return all(tests[name](want) for name, want in rule.items())


LARGE_NUMBER = 1e6
"""Beyond all numbers of the tables that tasks begin with."""


def _depends_on(cells: Mapping[tuple[int, int], Cell], place: tuple[int, int], others: Sequence[str]) -> bool:
    """Whether a cell has a formula whose value changes with each of the cells of these names."""
    if place not in cells:
        return False
    try:
        value = FormulaCells(cells).value(place)
        for name in others:
            changed = (
                {**cells, parse_cell(name): Cell(number, "float", "", "", (1, 1), "")}
                for number in (LARGE_NUMBER, -LARGE_NUMBER)
            )
            if all(FormulaCells(held).value(place) == value for held in changed):
                return False
    except NotComputable:
        return False
    return True


def check_spreadsheet(result: FileResult, rules: Mapping[str, Any], options: Options) -> float:
    """{names, sheet, rows, cells: {B7: {value, formula, function, depends_on, number, decimals, looks, spans, note, …}}, hidden}.

    names: of all sheets in order. The rest is about one sheet (`sheet`, else the only one). rows: all it holds. formula: whether the
    cell is computed from others. depends_on: names of cells each of which, changed alone, changes what the formula gives. looks: exactly
    these of bold, italic, underline. hidden: numbers of hidden rows, from 1. Formulas are computed here: one that gives another value than
    the file says fails, and so does one that cannot be computed.
    """
    document = _open_document(result, "spreadsheet")
    sheets = document.sheets()
    if "names" in rules and [sheet.name for sheet in sheets] != list(rules["names"]):
        return 0.0
    if "names" not in rules and "sheet" not in rules and len(sheets) != 1:
        return 0.0
    fitting = [sheet for sheet in sheets if rules.get("sheet") in (None, sheet.name)]
    if not fitting:
        raise InvalidArtifact(f"there is no sheet {rules.get('sheet')!r}")
    return binary_score(_sheet_matches(document, fitting[0], rules))


def _sheet_matches(document: OpenDocument, sheet: Sheet, rules: Mapping[str, Any]) -> bool:
    if not _formulas_hold(sheet):
        return False
    if "rows" in rules and not _equal_rows(sheet.rows(), rules["rows"]):
        return False
    if "hidden" in rules and sheet.hidden_rows != {row - 1 for row in rules["hidden"]}:
        return False
    for name, rule in rules.get("cells", {}).items():
        place = parse_cell(name)
        of_cell = {key: want for key, want in rule.items() if key != "depends_on"}
        if not _cell_matches(document, sheet.cells.get(place), of_cell):
            return False
        if "depends_on" in rule and not _depends_on(sheet.cells, place, rule["depends_on"]):
            return False
    return True


def _formulas_hold(sheet: Sheet) -> bool:
    """Whether every formula gives the value that the file says it gave."""
    computed = FormulaCells(sheet.cells)
    for place, cell in sheet.cells.items():
        if not cell.formula:
            continue
        try:
            value = computed.value(place)
        except NotComputable:
            return False
        if not _equal_values(cell.value, value):
            return False
    return True


def check_text_document(result: FileResult, rules: Mapping[str, Any], options: Options) -> float:
    """{paragraphs: [{text, style, align, looks, listed, list_kind, page_break} or {table: [rows, columns]}], page, skip_empty}.

    All paragraphs in order; trailing empty ones do not count, with `skip_empty` no empty ones. align: what it is, or a list of what it may
    be. looks: exactly these. list_kind: `bulleted`, `numbered`, `unmarked`, or "" outside of lists. page: orientation that some page layout
    has.
    """
    document = _open_document(result, "text")
    held = document.paragraphs()
    while held and not held[-1].text and held[-1].columns is None:
        held.pop()
    if rules.get("skip_empty"):
        held = [paragraph for paragraph in held if paragraph.text or paragraph.columns is not None]
    wanted = rules.get("paragraphs")
    if wanted is not None and (len(held) != len(wanted) or not all(map(_paragraph_matches, held, wanted))):
        return 0.0
    return binary_score("page" not in rules or rules["page"] in document.page())


def _paragraph_matches(held: Paragraph, rule: Mapping[str, Any]) -> bool:
    if "table" in rule or held.columns is not None:
        return [held.rows, held.columns] == list(rule.get("table", ()))
    tests: dict[str, Callable[[Any], bool]] = {
        "text": lambda want: held.text == want,
        "style": lambda want: held.style == want,
        "align": lambda want: held.align in ([want] if isinstance(want, str) else want),
        "looks": lambda want: held.looks == set(want),
        "listed": lambda want: bool(held.list_kind) == want,
        "list_kind": lambda want: held.list_kind == want,
        "page_break": lambda want: held.page_break == want,
    }
    return all(tests[name](want) for name, want in rule.items())


def check_slides(result: FileResult, rules: Mapping[str, Any], options: Options) -> float:
    """{slides: [{title, lines, notes, hidden, transition}]}: all slides in order."""
    held = _open_document(result, "presentation").slides()
    wanted = rules["slides"]
    return binary_score(len(held) == len(wanted) and all(map(_slide_matches, held, wanted)))


def _slide_matches(held: Slide, rule: Mapping[str, Any]) -> bool:
    tests: dict[str, Callable[[Any], bool]] = {
        "title": lambda want: held.title.strip() == want,
        "lines": lambda want: [line.strip() for line in held.lines] == list(want),
        "notes": lambda want: held.notes.strip() == want,
        "hidden": lambda want: held.hidden == want,
        "transition": lambda want: held.transition == want,
    }
    return all(tests[name](want) for name, want in rule.items())


METRICS: Mapping[str, Metric] = {
    "check_spreadsheet": check_spreadsheet,
    "check_text_document": check_text_document,
    "check_slides": check_slides,
}
