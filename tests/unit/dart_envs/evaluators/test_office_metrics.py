from __future__ import annotations

import io
import zipfile
from base64 import b64decode
from typing import Any

import pytest

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.metrics import METRICS
from dart_envs.evaluators.metrics.office import parse_cell
from dart_envs.tasks.office.documents import NAMESPACES, presentation, spreadsheet, text_document

MORE = (
    'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0"'
    ' xmlns:number="urn:oasis:names:tc:opendocument:xmlns:datastyle:1.0"'
)


def written(content: str) -> GuestFile:
    """A document as the families make it."""
    return GuestFile("/f", b64decode(content))


def saved(kind: str, body: str, styles: str = "") -> GuestFile:
    """A document with automatic styles, as LibreOffice saves one."""
    names = " ".join({**dict.fromkeys(NAMESPACES.split()), **dict.fromkeys(MORE.split())})
    content = (
        f"<office:document-content {names}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("content.xml", content)
    return GuestFile("/f", packed.getvalue())


def score(func: str, file: GuestFile, **rules: Any) -> float:
    return METRICS[func](file, rules, {})


ROWS: list[list[str | int]] = [["Item", "Price"], ["Fork", 5], ["", 7]]


def test_the_rows_of_a_sheet_are_all_it_holds() -> None:
    file = written(spreadsheet(("Goods", ROWS), ("Other", [[1]])))
    assert score("check_spreadsheet", file, rows=ROWS, names=["Goods", "Other"]) == 1
    assert score("check_spreadsheet", file, sheet="Other", rows=[[1.0]]) == 1
    assert score("check_spreadsheet", file, rows=ROWS[:2]) == 0
    assert score("check_spreadsheet", file, names=["Goods"]) == 0
    assert score("check_spreadsheet", file, rows=[*ROWS[:2], ["", "7"]]) == 0, "a text is not a number"
    with pytest.raises(InvalidArtifact, match="no sheet 'Third'"):
        score("check_spreadsheet", file, sheet="Third")


TABLE = """<table:table table:name="S"><table:table-column table:default-cell-style-name="pc" table:number-columns-repeated="2"/>
<table:table-row><table:table-cell table:style-name="b" office:value-type="string"><text:p>Head</text:p></table:table-cell>
<table:table-cell office:value-type="percentage" office:value="0.25"><text:p>25%</text:p></table:table-cell></table:table-row>
<table:table-row table:visibility="collapse"><table:table-cell table:formula="of:=SUM([.B1:.B1])" office:value-type="float"
 office:value="0.25"/><table:table-cell table:formula="of:=0.25" office:value-type="float" office:value="0.25"><office:annotation>
<text:p>So it is</text:p></office:annotation></table:table-cell></table:table-row>
<table:table-row table:number-rows-repeated="1048000"><table:table-cell table:number-columns-repeated="16384"/></table:table-row>
</table:table>"""
STYLES = """<style:style style:name="b" style:family="table-cell"><style:text-properties fo:font-weight="bold"/></style:style>
<style:style style:name="pc" style:family="table-cell" style:data-style-name="N1"/>
<number:percentage-style style:name="N1"><number:number number:decimal-places="2"/><number:text>%</number:text></number:percentage-style>"""


@pytest.mark.parametrize(
    ("cell", "rule", "wanted"),
    [
        ("A1", {"looks": ["bold"]}, 1),
        ("A1", {"looks": []}, 0),
        ("A1", {"looks": ["bold", "italic"]}, 0),
        ("B1", {"number": "percentage", "decimals": 2, "value": 0.25}, 1),
        ("B1", {"number": "currency"}, 0),
        ("A2", {"formula": True, "function": "SUM"}, 1),
        ("A2", {"function": "MAX"}, 0),
        ("B2", {"formula": True}, 0),
        ("B2", {"formula": False, "note": "So it is"}, 1),
        ("Z9", {"value": None}, 1),
        ("Z9", {"value": 1}, 0),
    ],
)
def test_what_a_cell_holds_and_how_it_looks(cell: str, rule: dict[str, Any], wanted: float) -> None:
    assert score("check_spreadsheet", saved("spreadsheet", TABLE, STYLES), cells={cell: rule}) == wanted


@pytest.mark.parametrize(
    ("formula", "said", "wanted"),
    [
        ("of:=SUM([.B1:.B1])", "0.25", 1),
        ("of:=SUM([.B1:.B1])", "99", 0),
        ("of:=SUM([.B1:.B1])*0", "0.25", 0),
        ("of:=IF([.B1]&gt;0;[.B1];0)", "0.25", 0),
    ],
)
def test_the_value_that_a_file_says_its_formula_gave_is_computed_again(formula: str, said: str, wanted: float) -> None:
    given = 'table:formula="of:=SUM([.B1:.B1])" office:value-type="float"\n office:value="0.25"'
    assert given in TABLE
    table = TABLE.replace(given, f'table:formula="{formula}" office:value-type="float" office:value="{said}"')
    file = saved("spreadsheet", table, STYLES)
    assert score("check_spreadsheet", file, cells={"A2": {"formula": True, "value": float(said)}}) == wanted


@pytest.mark.parametrize(
    ("formula", "said", "wanted"),
    [
        ("of:=MAX([.A1:.A3])", "7", 1),
        ("of:=MAX([.A:.A])", "7", 1),
        ("of:=MAX([.A2:.A3])", "7", 0),
        ("of:=MAX(7;5)", "7", 0),
        ("of:=[.A1]*0+7", "7", 0),
        ("of:=MIN([.A1:.A3])", "2", 1),
        ("of:=SUM([.A1:.A3])", "14", 1),
        ("of:=[.A1]+[.A2]+7", "14", 0),
    ],
)
def test_a_formula_depends_on_each_of_the_cells_that_it_is_about(formula: str, said: str, wanted: float) -> None:
    cells = [f'<table:table-cell office:value-type="float" office:value="{number}"/>' for number in (5, 2, 7)]
    made = f'<table:table-cell table:formula="{formula}" office:value-type="float" office:value="{said}"/>'
    rows = "".join(f"<table:table-row>{one}</table:table-row>" for one in [cells[0] + made, *cells[1:]])
    file = saved("spreadsheet", f'<table:table table:name="S">{rows}</table:table>')
    rule = {"value": float(said), "depends_on": ["A1", "A2", "A3"]}
    assert score("check_spreadsheet", file, cells={"B1": rule}) == wanted
    assert score("check_spreadsheet", file, cells={"Z9": {"depends_on": ["A1"]}}) == 0
    assert score("check_spreadsheet", file, cells={"A1": {"depends_on": ["A2"]}}) == 0


def test_hidden_rows() -> None:
    file = saved("spreadsheet", TABLE, STYLES)
    assert score("check_spreadsheet", file, hidden=[2]) == 1
    assert score("check_spreadsheet", file, hidden=[]) == 0


TEXT = """<text:p>Plain <text:span text:style-name="B">and</text:span> bold</text:p><text:h text:style-name="P1">Head</text:h>
<text:list><text:list-item><text:p>One<text:s text:c="2"/>two</text:p></text:list-item></text:list>
<text:p><text:span text:style-name="B">All</text:span> <text:span text:style-name="B">bold</text:span></text:p>
<table:table><table:table-row><table:table-cell/><table:table-cell/></table:table-row></table:table>
<text:p text:style-name="P2">End</text:p><text:p/>"""
TEXT_STYLES = """<style:style style:name="B" style:family="text"><style:text-properties fo:font-weight="bold"/></style:style>
<style:style style:name="P1" style:family="paragraph" style:parent-style-name="Heading_20_1"><style:paragraph-properties
 fo:text-align="center"/></style:style><style:style style:name="P2" style:family="paragraph"><style:paragraph-properties
 fo:break-before="page"/></style:style>"""


def test_paragraphs_in_order_with_style_looks_and_lists() -> None:
    file = saved("text", TEXT, TEXT_STYLES)
    wanted: list[dict[str, Any]] = [
        {"text": "Plain and bold", "looks": [], "listed": False},
        {"text": "Head", "style": "Heading 1", "align": "center"},
        {"text": "One  two", "listed": True},
        {"text": "All bold", "looks": ["bold"]},
        {"table": [1, 2]},
        {"text": "End", "page_break": True},
    ]
    assert score("check_text_document", file, paragraphs=wanted) == 1
    assert score("check_text_document", file, paragraphs=wanted[:-1]) == 0
    for index, wrong in (
        (0, {"looks": ["bold"]}),
        (1, {"style": "Heading 2"}),
        (2, {"listed": False}),
        (4, {"table": [2, 1]}),
        (4, {}),
    ):
        assert score("check_text_document", file, paragraphs=[*wanted[:index], wrong, *wanted[index + 1 :]]) == 0


LISTS = """<text:list text:style-name="N"><text:list-item><text:p>One</text:p><text:list><text:list-item><text:p>Inner</text:p>
</text:list-item></text:list></text:list-item></text:list><text:list text:style-name="B"><text:list-item><text:p>Dot</text:p>
</text:list-item></text:list><text:list><text:list-item><text:p text:style-name="P">By its paragraph</text:p></text:list-item></text:list>
<text:list text:style-name="none"><text:list-item><text:p text:style-name="C">Bare</text:p></text:list-item></text:list>
<text:p text:style-name="C">Out</text:p>"""
LIST_STYLES = """<text:list-style style:name="N"><text:list-level-style-number text:level="1" style:num-format="1"/>
<text:list-level-style-bullet text:level="2" text:bullet-char="-"/></text:list-style>
<text:list-style style:name="B"><text:list-level-style-bullet text:level="1" text:bullet-char="•"/></text:list-style>
<text:list-style style:name="none"><text:list-level-style-number text:level="1" style:num-format=""/></text:list-style>
<style:style style:name="P" style:family="paragraph" style:list-style-name="N"/>
<style:style style:name="C" style:family="paragraph"><style:paragraph-properties fo:text-align="start"/></style:style>"""


def test_a_list_is_told_by_what_marks_its_items() -> None:
    file = saved("text", LISTS, LIST_STYLES)
    kinds = ["numbered", "bulleted", "bulleted", "numbered", "unmarked", ""]
    assert score("check_text_document", file, paragraphs=[{"list_kind": kind} for kind in kinds]) == 1
    assert score("check_text_document", file, paragraphs=[{"listed": bool(kind)} for kind in kinds]) == 1
    for index in range(len(kinds)):
        wrong = ["bulleted" if kind == "numbered" else "numbered" for kind in kinds[index : index + 1]]
        rules = [{"list_kind": kind} for kind in [*kinds[:index], *wrong, *kinds[index + 1 :]]]
        assert score("check_text_document", file, paragraphs=rules) == 0
    aligned: list[dict[str, Any]] = [{}, {}, {}, {}, {"align": ["", "start"]}, {"align": "start"}]
    assert score("check_text_document", file, paragraphs=aligned) == 1
    assert score("check_text_document", file, paragraphs=[*aligned[:-1], {"align": ["center", "end"]}]) == 0


def test_lines_of_a_made_document_are_plain() -> None:
    plain = {"style": "", "looks": [], "listed": False, "page_break": False}
    file = written(text_document(["One", "Two & three"]))
    assert (
        score("check_text_document", file, paragraphs=[{"text": "One", **plain}, {"text": "Two & three", **plain}]) == 1
    )


def test_slides_in_order() -> None:
    file = written(presentation([("One", ["a", "b"]), ("Two", [])]))
    wanted: list[dict[str, Any]] = [
        {"title": "One", "lines": ["a", "b"], "hidden": False},
        {"title": "Two", "lines": [], "notes": ""},
    ]
    assert score("check_slides", file, slides=wanted) == 1
    assert score("check_slides", file, slides=wanted[::-1]) == 0
    assert score("check_slides", file, slides=wanted[:1]) == 0
    assert score("check_slides", file, slides=[{**wanted[0], "hidden": True}, wanted[1]]) == 0


def zipped(**parts: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name.replace("_", "."), content)
    return packed.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"Item,Price\nFork,5\n",
        b64decode(spreadsheet(("S", ROWS)))[:300],
        zipped(other_txt=b"x"),
        zipped(content_xml=b"<open>"),
        zipped(content_xml=b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"),
        zipped(content_xml=b"\xff\xfe\x00"),
        b64decode(text_document(["a spreadsheet?"])),
    ],
    ids=["empty", "csv", "cut off", "no content", "not XML", "document type", "not text", "another kind"],
)
def test_what_is_no_such_document_is_spoiled(content: bytes) -> None:
    with pytest.raises(InvalidArtifact):
        score("check_spreadsheet", GuestFile("/f", content), rows=[])


def test_a_sheet_that_is_too_large_is_spoiled_and_not_unrolled() -> None:
    filled = '<table:table-cell office:value-type="float" office:value="1"/>'
    row = f'<table:table-row table:number-rows-repeated="999999999">{filled}</table:table-row>'
    with pytest.raises(InvalidArtifact, match="more cells"):
        score("check_spreadsheet", saved("spreadsheet", f"<table:table>{row}</table:table>"), rows=[])


def test_names_of_cells() -> None:
    assert [parse_cell(name) for name in ("A1", "C12", "AA3")] == [(0, 0), (11, 2), (2, 26)]
    with pytest.raises(ValueError, match="not a cell"):
        parse_cell("1A")
