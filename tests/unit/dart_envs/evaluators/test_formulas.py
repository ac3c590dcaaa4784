"""Formulas are computed from the cells; what a file says that they gave is never taken."""

from __future__ import annotations

import pytest

from dart_envs.evaluators.document_values import Cell
from dart_envs.evaluators.formulas import FormulaCells, NotComputable


def cell(value: float | str | None = None, formula: str = "") -> Cell:
    return Cell(value, "float" if isinstance(value, float) else "string", formula, "", (1, 1), "")


TABLE = {
    (0, 0): cell("Name"),
    (1, 0): cell("a"),
    (1, 1): cell(2.0),
    (2, 1): cell(3.0),
    (3, 1): cell(7.5),
    (4, 1): cell(99.0, "of:=SUM([.B2:.B4])"),
}


def value(formula: str) -> float:
    return FormulaCells({**TABLE, (9, 9): cell(0.0, formula)}).value((9, 9))


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        ("of:=SUM([.B2:.B4])", 12.5),
        ("of:=SUM([.$B$2:.B4];1)", 13.5),
        ("of:=AVERAGE([.B2:.B4])", 12.5 / 3),
        ("of:=MIN([.A1:.B4])", 2.0),
        ("of:=MAX([.B4:.B2])", 7.5),
        ("of:=COUNT([.A1:.B4])", 3.0),
        ("of:=MEDIAN([.B2:.B4])", 3.0),
        ("of:=SUBTOTAL(9;[.B2:.B4])", 12.5),
        ("of:=[.B2]*[.B3]", 6.0),
        ("of:=[.B2]-[.B3]*2^2", -10.0),
        ("of:=-([.B2]+[.C9])/4", -0.5),
        ("of:= 50% * [.B3]", 1.5),
        ("of:=ROUND([.B4]/2;1)", 3.8),
        ("of:=ABS([.B2]-[.B3])", 1.0),
        ("of:=[.B5]*2", 25.0),
        ("of:=SUM([.B2];[.B3])+1.5E1", 20.0),
        ("of:=MAX([.B:.B])", 12.5),
        ("of:=COUNT([.$A:.$B])", 4.0),
        ("of:=MIN([.B1:.B1048576])", 2.0),
    ],
)
def test_formulas_are_computed(formula: str, wanted: float) -> None:
    assert value(formula) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "formula",
    [
        "of:=IF([.B2]>0;0;0)",
        "of:=[.J10]",
        "of:=[.A2]+1",
        "of:=[$Other.B2]",
        "of:=1/0",
        "of:=SUM([.B2:.B4]",
        "of:=[.B2:.B4]",
        "of:=",
        "msoxl:=SUM(B2)",
        "of:=AVERAGE([.A1:.A2])",
        "of:=" + "(" * 100 + "1" + ")" * 100,
        "of:=9^9^9^9",
        "of:=SUM([.A1:.ZZZ999999])",
        "of:=" + "1+" * 4000 + "1",
        'of:="text"',
    ],
)
def test_what_is_not_understood_has_no_value(formula: str) -> None:
    with pytest.raises(NotComputable):
        value(formula)


def test_a_chain_of_cells_ends() -> None:
    chain = {(row, 0): cell(0.0, f"of:=[.A{row + 2}]+1") for row in range(500)}
    with pytest.raises(NotComputable):
        FormulaCells(chain).value((0, 0))


def test_formulas_that_read_a_table_again_and_again_end_soon() -> None:
    numbers = {(row, 0): cell(1.0) for row in range(2_000)}
    sums = {(row, 1): cell(0.0, "of:=SUM([.A1:.A2000])") for row in range(2_000)}
    held = FormulaCells({**numbers, **sums})
    with pytest.raises(NotComputable, match="more than 1000000 cells"):
        [held.value(place) for place in sums]
