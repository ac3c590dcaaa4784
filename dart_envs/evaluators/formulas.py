"""Values of a spreadsheet's formulas, computed here from the cells that they refer to.

Role: `FormulaCells.value`, for OpenDocument formulas of arithmetic and of the usual functions over cells of the same sheet. Rule: a file
says for each formula what it gave when it was saved, and whoever writes the file says what he likes: that value is never taken. What is not
understood has no value (`NotComputable`). Non-goals: other sheets, dates, texts, conditions.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from dart_envs.evaluators.document_values import Cell

MAX_NESTING = 40
MAX_LENGTH = 4000
MAX_READ_CELLS = 1_000_000
"""How many cells the formulas of one sheet may read in all, repetitions counted."""
MAX_ROWS = 1_048_576
"""Rows of a sheet: what a reference to a whole column refers to."""
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|(\[[^\]]*\])|([A-Z][A-Z0-9.]*)(?=\()|([-+*/^()%;]))")
_KINDS = ("number", "reference", "function", "sign")
_REFERENCE = re.compile(r"\[\.\$?([A-Z]{1,3})\$?([1-9]\d{0,6})(?::\.\$?([A-Z]{1,3})\$?([1-9]\d{0,6}))?\]")
_COLUMNS = re.compile(r"\[\.\$?([A-Z]{1,3}):\.\$?([A-Z]{1,3})\]")
Values = list[float]

FUNCTIONS: Mapping[str, Callable[[Values], float]] = {
    "SUM": math.fsum,
    "AVERAGE": statistics.fmean,
    "MIN": min,
    "MAX": max,
    "COUNT": lambda values: float(len(values)),
    "PRODUCT": math.prod,
    "MEDIAN": statistics.median,
}
"""Over all numbers that their arguments hold; texts and empty cells are left out."""
SUBTOTALS: Mapping[int, str] = {1: "AVERAGE", 2: "COUNT", 4: "MAX", 5: "MIN", 6: "PRODUCT", 9: "SUM"}


class NotComputable(Exception):
    """A formula that is not understood, refers to itself, or has no number for an answer."""


def column_number(letters: str) -> int:
    """The column of a cell's name, from 0."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1


class FormulaCells:
    """The cells of one sheet, by (row, column) from 0."""

    def __init__(self, cells: Mapping[tuple[int, int], Cell]) -> None:
        self._cells = cells
        self._known: dict[tuple[int, int], float] = {}
        self._open: set[tuple[int, int]] = set()
        self._read = 0

    def value(self, place: tuple[int, int]) -> float:
        """What the formula of a cell gives. Raises NotComputable."""
        if place not in self._known:
            if place in self._open or len(self._open) >= MAX_NESTING:
                raise NotComputable("a formula refers to itself, or to a long chain of others")
            self._open.add(place)
            try:
                self._known[place] = _Expression(self._cells[place].formula, self).compute()
            finally:
                self._open.discard(place)
        return self._known[place]

    def number(self, place: tuple[int, int]) -> float | None:
        """The number in a cell, computed where it has a formula; None for a text and an empty cell."""
        cell = self._cells.get(place)
        if cell is None:
            return None
        if cell.formula:
            return self.value(place)
        return cell.value if isinstance(cell.value, float) else None

    def numbers(self, rows: range, columns: range) -> Values:
        """The numbers of a range. Raises NotComputable where the formulas of this sheet have read more cells than any answer needs."""
        places: Iterable[tuple[int, int]] = self._cells
        if len(rows) * len(columns) <= len(self._cells):
            places = ((row, column) for row in rows for column in columns)
        self._read += min(len(rows) * len(columns), len(self._cells))
        if self._read > MAX_READ_CELLS:
            raise NotComputable(f"the formulas read more than {MAX_READ_CELLS} cells")
        held = (self.number(place) for place in places if place[0] in rows and place[1] in columns)
        return [number for number in held if number is not None]

    def single(self, place: tuple[int, int]) -> float:
        """The same for arithmetic, in which an empty cell is 0. Raises NotComputable for a text."""
        cell, number = self._cells.get(place), self.number(place)
        if number is None and cell is not None and cell.value is not None:
            raise NotComputable("arithmetic with a text")
        return number or 0.0


class _Expression:
    """One formula, read from left to right: sums of products of powers, as usual."""

    def __init__(self, formula: str, cells: FormulaCells) -> None:
        text = formula.removeprefix("of:").removeprefix("=")
        if len(text) > MAX_LENGTH or text == formula:
            raise NotComputable("not a formula of OpenDocument, or one that is too long")
        self._cells = cells
        self._tokens = self._split(text)
        self._at = 0
        self._depth = 0

    @staticmethod
    def _split(text: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise NotComputable(f"{text[at : at + 20]!r} is not understood")
            kind = _KINDS[(match.lastindex or 1) - 1]
            found.append((kind, str(match[match.lastindex or 1])))
            at = match.end()
        return found

    def compute(self) -> float:
        """The value of the whole formula."""
        try:
            value = self._sum()
        except (ArithmeticError, ValueError, statistics.StatisticsError) as error:
            raise NotComputable(str(error)) from error
        if self._at != len(self._tokens) or not math.isfinite(value):
            raise NotComputable("not a single number")
        return value

    def _peek(self) -> str:
        """The sign that comes next, "" for anything else."""
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        return text if kind == "sign" else ""

    def _take(self, sign: str) -> None:
        if self._peek() != sign:
            raise NotComputable(f"{sign!r} is missing")
        self._at += 1

    def _sum(self) -> float:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise NotComputable("nested too deep")
        value = self._product()
        while (sign := self._peek()) in ("+", "-"):
            self._at += 1
            value += self._product() if sign == "+" else -self._product()
        self._depth -= 1
        return value

    def _product(self) -> float:
        value = self._power()
        while (sign := self._peek()) in ("*", "/"):
            self._at += 1
            value = value * self._power() if sign == "*" else value / self._power()
        return value

    def _power(self) -> float:
        value = self._signed()
        while self._peek() == "^":
            self._at += 1
            value = math.pow(value, self._signed())
        return value

    def _signed(self) -> float:
        negative = False
        while (sign := self._peek()) in ("+", "-"):
            negative ^= sign == "-"
            self._at += 1
        value = self._atom()
        while self._peek() == "%":
            self._at += 1
            value /= 100
        return -value if negative else value

    def _atom(self) -> float:
        if self._peek() == "(":
            self._at += 1
            value = self._sum()
            self._take(")")
            return value
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        self._at += 1
        if kind == "number":
            return float(text)
        if kind == "reference":
            rows, columns = _ranges(text)
            if len(rows) * len(columns) != 1:
                raise NotComputable("a range where one cell is needed")
            return self._cells.single((rows[0], columns[0]))
        if kind == "function":
            return self._call(text)
        raise NotComputable("the formula ends early")

    def _call(self, name: str) -> float:
        self._take("(")
        arguments = [self._argument()]
        while self._peek() == ";":
            self._at += 1
            arguments.append(self._argument())
        self._take(")")
        if name in ("ABS", "ROUND"):
            return _plain(name, arguments)
        if name == "SUBTOTAL":
            name = SUBTOTALS.get(int(arguments.pop(0)[0]), "")
        if name not in FUNCTIONS:
            raise NotComputable(f"the function {name} is not understood")
        return float(FUNCTIONS[name]([value for argument in arguments for value in argument]))

    def _argument(self) -> Values:
        """The numbers of a range, or one number."""
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        after = self._tokens[self._at + 1][1] if self._at + 1 < len(self._tokens) else ""
        if kind == "reference" and after in (";", ")"):
            self._at += 1
            return self._cells.numbers(*_ranges(text))
        return [self._sum()]


def _plain(name: str, arguments: Sequence[Values]) -> float:
    """Functions of one number; ROUND rounds halves away from zero, as spreadsheets do."""
    values = [argument[0] for argument in arguments if len(argument) == 1]
    if len(values) != len(arguments) or len(values) > (2 if name == "ROUND" else 1):
        raise NotComputable(f"{name} of something else than single numbers")
    if name == "ABS":
        return abs(values[0])
    scale = math.pow(10, int(values[1]) if len(values) == 2 else 0)
    return math.copysign(math.floor(abs(values[0]) * scale + 0.5) / scale, values[0])


def _ranges(reference: str) -> tuple[range, range]:
    """Rows and columns of a reference to the same sheet, `[.B2]`, `[.B2:.B9]` or `[.B:.B]`."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        whole = _COLUMNS.fullmatch(reference)
        if whole is None:
            raise NotComputable(f"{reference} is not a cell or a range of this sheet")
        return range(MAX_ROWS), _between(column_number(whole[1]), column_number(whole[2]))
    row, column = int(match[2]) - 1, column_number(match[1])
    if match[3] is None:
        return range(row, row + 1), range(column, column + 1)
    return _between(row, int(match[4]) - 1), _between(column, column_number(match[3]))


def _between(one: int, other: int) -> range:
    return range(min(one, other), max(one, other) + 1)
