"""OpenDocument files as plain values: cells, paragraphs and slides, with the formatting that tasks ask for.

Role: bytes in, values out. Rule: pure, standard library only; a file that is not what it should be raises `InvalidArtifact`, because the
policy left it so. Non-goals: comparing (`dart_envs.evaluators.metrics.office`), rendering, other formats.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element, ParseError

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.document_values import Cell, Paragraph, Sheet, Slide
from dart_envs.evaluators.xml_documents import parse_xml

MAX_PART_BYTES = 32 * 1024 * 1024
MAX_CELLS = 100_000
MAX_DEPTH = 30

_URN = "urn:oasis:names:tc:opendocument:xmlns:{}:1.0"
_NAMES = {name: _URN.format(name) for name in ("office", "table", "text", "style", "presentation")} | {
    "draw": _URN.format("drawing"),
    "fo": _URN.format("xsl-fo-compatible"),
    "number": _URN.format("datastyle"),
    "smil": _URN.format("smil-compatible"),
    "svg": _URN.format("svg-compatible"),
    "calcext": "urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0",
}


def qualified_name(name: str) -> str:
    """`table:name` in ElementTree's form."""
    prefix, _, local = name.partition(":")
    return f"{{{_NAMES[prefix]}}}{local}"


class OpenDocument:
    """A parsed file. `kind`: spreadsheet, text or presentation. Raises InvalidArtifact for anything else."""

    def __init__(self, file: GuestFile, kind: str) -> None:
        self._path = file.path
        parts = self._read_parts(file.content)
        content = self._parse_part(parts, "content.xml")
        body = content.find(f"{qualified_name('office:body')}/{qualified_name(f'office:{kind}')}")
        if body is None:
            raise InvalidArtifact(f"{file.path} is not an OpenDocument {kind}")
        self.body = body
        self._roots = [content] + ([self._parse_part(parts, "styles.xml")] if "styles.xml" in parts else [])
        self._style_groups = [
            group
            for tag, roots in _STYLE_GROUPS
            for root in self._roots[:roots]
            for group in root.iter(qualified_name(tag))
        ]
        self._styles = {
            (style.get(qualified_name("style:family"), ""), style.get(qualified_name("style:name"), "")): style
            for group in reversed(self._style_groups)
            for style in group.iter(qualified_name("style:style"))
        }

    def _read_parts(self, content: bytes) -> dict[str, bytes]:
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if len(set(archive.namelist())) != len(archive.namelist()):
                    raise InvalidArtifact(f"{self._path} holds two parts of one name")
                names = {"content.xml", "styles.xml"} & set(archive.namelist())
                if any(archive.getinfo(name).file_size > MAX_PART_BYTES for name in names):
                    raise InvalidArtifact(f"{self._path} is larger than any answer needs")
                return {name: archive.read(name) for name in names}
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise InvalidArtifact(f"{self._path} is not an OpenDocument file: {error}") from error

    def _parse_part(self, parts: Mapping[str, bytes], name: str) -> Element:
        try:
            return parse_xml(parts[name], f"{self._path}: {name}")
        except KeyError:
            raise InvalidArtifact(f"{self._path} has no {name}") from None
        except ParseError as error:
            raise InvalidArtifact(f"{self._path}: {name} is not XML: {error}") from error

    # Styles.

    def _style_chain(self, family: str, name: str) -> Iterator[Element]:
        """A style and those it comes from, nearest first, the family's default last."""
        for _ in range(MAX_DEPTH):
            style = self._styles.get((family, name))
            if style is None:
                break
            yield style
            name = style.get(qualified_name("style:parent-style-name"), "")
        for root in self._roots:
            yield from (
                one
                for one in root.iter(qualified_name("style:default-style"))
                if one.get(qualified_name("style:family")) == family
            )

    def style_property(self, family: str, name: str, properties: str, attribute: str) -> str:
        """A formatting attribute of a style, "" where nothing in its chain says it."""
        for style in self._style_chain(family, name):
            group = style.find(qualified_name(f"style:{properties}-properties"))
            value = None if group is None else group.get(qualified_name(attribute))
            if value is not None:
                return value
        return ""

    def number_style(self, name: str) -> tuple[str, int | None]:
        """What a cell style shows numbers as (`percentage`, `currency`, `date`, `number`, … or "") and with how many decimals."""
        for style in self._style_chain("table-cell", name):
            data = style.get(qualified_name("style:data-style-name"))
            if data is not None:
                return self._data_style(data)
        return "", None

    def _data_style(self, name: str) -> tuple[str, int | None]:
        for group in self._style_groups:
            for element in group.iter():
                if element.get(qualified_name("style:name")) == name and element.tag.startswith(
                    f"{{{_NAMES['number']}}}"
                ):
                    number = element.find(qualified_name("number:number"))
                    places = None if number is None else number.get(qualified_name("number:decimal-places"))
                    conditional = element.find(qualified_name("style:map"))
                    if number is None and conditional is not None:
                        return self._data_style(conditional.get(qualified_name("style:apply-style-name"), ""))
                    kind = element.tag.partition("}")[2].removesuffix("-style")
                    return kind, int(places) if places and places.isdecimal() else None
        return "", None

    def looks(self, family: str, name: str) -> frozenset[str]:
        """`bold`, `italic`, `underline` as far as a style has them."""
        held = {
            "bold": self.style_property(family, name, "text", "fo:font-weight") == "bold",
            "italic": self.style_property(family, name, "text", "fo:font-style") == "italic",
            "underline": self.style_property(family, name, "text", "style:text-underline-style") not in ("", "none"),
        }
        return frozenset(look for look, on in held.items() if on)

    def display_name(self, family: str, name: str) -> str:
        """The name a user sees for a style; automatic ones have that of the one they come from."""
        automatic = {
            style.get(qualified_name("style:name"))
            for group in self._roots[0].iter(qualified_name("office:automatic-styles"))
            for style in group.iter(qualified_name("style:style"))
            if style.get(qualified_name("style:family")) == family
        }
        for _ in range(MAX_DEPTH):
            style = self._styles.get((family, name))
            if style is None or name not in automatic:
                break
            name = style.get(qualified_name("style:parent-style-name"), "")
        style = self._styles.get((family, name))
        shown = None if style is None else style.get(qualified_name("style:display-name"))
        return shown or name.replace("_20_", " ")

    # Spreadsheets.

    def sheets(self) -> list[Sheet]:
        """The sheets, in order. Raises InvalidArtifact for one with more cells than any answer needs."""
        return [self._sheet(table) for table in self.body.findall(qualified_name("table:table"))]

    def _sheet(self, table: Element) -> Sheet:
        columns: list[str] = []
        for column in table.iter(qualified_name("table:table-column")):
            if len(columns) < 1024:
                columns += [column.get(qualified_name("table:default-cell-style-name"), "")] * min(
                    _repeats(column, "columns"), 1024
                )
        cells: dict[tuple[int, int], Cell] = {}
        hidden: set[int] = set()
        row_index = 0
        for row in table.iter(qualified_name("table:table-row")):
            repeats = _repeats(row, "rows")
            found = self._row(row, columns)
            if (row.get(qualified_name("table:visibility")) or "visible") != "visible":
                hidden.update(range(row_index, row_index + min(repeats, MAX_CELLS)))
            for index in range(row_index, row_index + (repeats if found else 0)):
                cells |= {(index, column): cell for column, cell in found.items()}
                if len(cells) > MAX_CELLS:
                    raise InvalidArtifact(f"{self._path} has more cells than any answer needs")
            row_index += repeats
        return Sheet(table.get(qualified_name("table:name"), ""), cells, frozenset(hidden))

    def _row(self, row: Element, columns: Sequence[str]) -> dict[int, Cell]:
        found: dict[int, Cell] = {}
        column = 0
        row_style = row.get(qualified_name("table:default-cell-style-name"), "")
        for element in row:
            if element.tag not in (qualified_name("table:table-cell"), qualified_name("table:covered-table-cell")):
                continue
            repeats = _repeats(element, "columns")
            inherited = row_style or (columns[column] if column < len(columns) else "")
            cell = self._cell(element, element.get(qualified_name("table:style-name")) or inherited)
            if (
                cell.kind
                or cell.formula
                or cell.note
                or (element.get(qualified_name("table:style-name")) and repeats < 64)
            ):
                found |= dict.fromkeys(range(column, column + min(repeats, 1024)), cell)
            column += repeats
        return found

    def _cell(self, element: Element, style: str) -> Cell:
        kind = element.get(qualified_name("office:value-type"), "")
        if element.get(qualified_name("calcext:value-type"), kind) != kind:
            raise InvalidArtifact(f"{self._path} has a cell of two kinds")
        shown = "\n".join(_text(paragraph) for paragraph in element.findall(qualified_name("text:p")))
        value: float | str | None = element.get(qualified_name("office:string-value"), shown) if kind else None
        if kind in ("float", "percentage", "currency"):
            try:
                value = float(element.get(qualified_name("office:value"), ""))
            except ValueError:
                raise InvalidArtifact(
                    f"{self._path} has a number that is none: {element.get(qualified_name('office:value'))!r}"
                ) from None
        elif kind == "date":
            value = element.get(qualified_name("office:date-value"), "")
        note = element.find(qualified_name("office:annotation"))
        spans = (_repeats(element, "rows", "spanned"), _repeats(element, "columns", "spanned"))
        noted = "" if note is None else "\n".join(_text(paragraph) for paragraph in note.iter(qualified_name("text:p")))
        return Cell(value, kind, element.get(qualified_name("table:formula"), ""), style, spans, noted)

    # Texts.

    def paragraphs(self) -> list[Paragraph]:
        """Paragraphs and headings in order, those of lists too; a table is one entry with its rows and columns."""
        return list(self._blocks(self.body, (), depth=0))

    def _blocks(self, parent: Element, lists: tuple[str, ...], *, depth: int) -> Iterator[Paragraph]:
        """lists: names of the styles of the lists around the parent, the outermost first; "" for one without a style of its own."""
        for element in parent:
            if element.tag in (qualified_name("text:p"), qualified_name("text:h")):
                yield self._paragraph(element, lists)
            elif element.tag == qualified_name("table:table"):
                if element.find(f".//{qualified_name('table:table')}") is not None:
                    raise InvalidArtifact(f"{self._path} has a table inside a table")
                rows = list(element.iter(qualified_name("table:table-row")))
                widths = [
                    sum(_repeats(cell, "columns") for cell in row.iter(qualified_name("table:table-cell")))
                    for row in rows
                ]
                kind = self._list_kind(lists, "")
                yield Paragraph("", "", "", frozenset(), kind, False, max(widths, default=0), len(rows))
            elif (
                element.tag
                in (qualified_name("text:list"), qualified_name("text:list-item"), qualified_name("text:section"))
                and depth < MAX_DEPTH
            ):
                if element.get(qualified_name("text:display"), "true") != "true":
                    raise InvalidArtifact(f"{self._path} has a part that is not shown")
                own = (element.get(qualified_name("text:style-name"), ""),)
                inner = lists + own if element.tag == qualified_name("text:list") else lists
                yield from self._blocks(element, inner, depth=depth + 1)
            elif element.tag != qualified_name("text:tracked-changes") and "".join(element.itertext()).strip():
                raise InvalidArtifact(f"{self._path} has text outside its paragraphs, lists and tables")

    def _list_kind(self, lists: tuple[str, ...], style: str) -> str:
        """What marks a paragraph of a style inside of lists, by the style of the innermost one that has one; see `Paragraph`."""
        if not lists:
            return ""
        named = [name for name in reversed(lists) if name] or [self._list_style_name(style)]
        level = str(len(lists))
        for group in self._style_groups:
            for found in group.iter(qualified_name("text:list-style")):
                if found.get(qualified_name("style:name")) != named[0]:
                    continue
                for mark in found:
                    if mark.get(qualified_name("text:level")) == level:
                        return _list_mark(mark)
        return "unmarked"

    def _list_style_name(self, style: str) -> str:
        """The list style that a paragraph style brings, "" for none."""
        chain = self._style_chain("paragraph", style)
        return next((name for one in chain if (name := one.get(qualified_name("style:list-style-name")))), "")

    def _paragraph(self, element: Element, lists: tuple[str, ...]) -> Paragraph:
        style = element.get(qualified_name("text:style-name"), "")
        self._check_shown("paragraph", style)
        if element.find(f".//{qualified_name('text:note')}") is not None:
            raise InvalidArtifact(f"{self._path} has notes, whose marks are shown and are no part of its text")
        looks = [self.looks("paragraph", style) | more for more in self._run_formats(element)]
        return Paragraph(
            text=_text(element),
            style=self.display_name("paragraph", style),
            align=self.style_property("paragraph", style, "paragraph", "fo:text-align"),
            looks=frozenset.intersection(*looks) if looks else frozenset(),
            list_kind=self._list_kind(lists, style),
            page_break=self.style_property("paragraph", style, "paragraph", "fo:break-before") == "page",
        )

    def _check_shown(self, family: str, style: str) -> None:
        """Raise InvalidArtifact for characters that nobody sees: hidden ones, tiny ones, and white ones."""
        size_cm = _length_cm(self.style_property(family, style, "text", "fo:font-size"))
        if (
            self.style_property(family, style, "text", "text:display") == "none"
            or (size_cm is not None and size_cm < MIN_FONT_CM)
            or self.style_property(family, style, "text", "fo:color").lower() == "#ffffff"
        ):
            raise InvalidArtifact(f"{self._path} has text that is not shown")

    def _run_formats(self, element: Element) -> Iterator[frozenset[str]]:
        """What each run of characters that is not blank adds to the paragraph's looks."""
        if (element.text or "").strip():
            yield frozenset()
        for child in element:
            if child.tag == qualified_name("text:span"):
                self._check_shown("text", child.get(qualified_name("text:style-name"), ""))
                own = self.looks("text", child.get(qualified_name("text:style-name"), ""))
                yield from (own | inner for inner in self._run_formats(child))
            if (child.tail or "").strip():
                yield frozenset()

    def page(self) -> tuple[str, ...]:
        """Orientation of each page layout of the document, `portrait` or `landscape`."""
        layouts = (group for root in self._roots for group in root.iter(qualified_name("style:page-layout-properties")))
        return tuple(layout.get(qualified_name("style:print-orientation"), "portrait") for layout in layouts)

    # Presentations.

    def slides(self) -> list[Slide]:
        """The slides, in order."""
        return [self._slide(page) for page in self.body.findall(qualified_name("draw:page"))]

    def _check_on_slide(self, shape: Element) -> None:
        """Raise InvalidArtifact for a box that is not on the slide."""
        sizes = [
            (
                _length_cm(layout.get(qualified_name("fo:page-width"), "")),
                _length_cm(layout.get(qualified_name("fo:page-height"), "")),
            )
            for root in self._roots
            for layout in root.iter(qualified_name("style:page-layout-properties"))
        ]
        for index, (near, size) in enumerate((("svg:x", "svg:width"), ("svg:y", "svg:height"))):
            limit = max((one for pair in sizes if (one := pair[index]) is not None), default=None)
            begin, length = (_length_cm(shape.get(qualified_name(name), "")) for name in (near, size))
            if begin is not None and ((limit is not None and begin >= limit) or begin + (length or 0.0) <= 0.0):
                raise InvalidArtifact(f"{self._path} has a box that is not on its slide")

    def _slide(self, page: Element) -> Slide:
        style = page.get(qualified_name("draw:style-name"), "")
        for element in page:
            if _is_shape(element):
                self._check_on_slide(element)
            elif element.tag not in _BESIDE_SLIDE and "".join(element.itertext()).strip():
                raise InvalidArtifact(f"{self._path} has text outside the boxes of its slides")
        for shape in filter(_is_shape, page):
            for family, tag in (("paragraph", "text:p"), ("text", "text:span")):
                for element in shape.iter(qualified_name(tag)):
                    self._check_shown(family, element.get(qualified_name("text:style-name"), ""))
        shapes = [
            tuple(_text(line) for line in shape.iter(qualified_name("text:p"))) for shape in page if _is_shape(shape)
        ]
        notes = page.find(qualified_name("presentation:notes"))
        noted = [] if notes is None else [_text(line) for line in notes.iter(qualified_name("text:p"))]
        moves = ("presentation:transition-type", "presentation:transition-style", "smil:type")
        return Slide(
            title=" ".join(shapes[0]) if shapes else "",
            lines=tuple(line for shape in shapes[1:] for line in shape if line),
            notes="\n".join(line for line in noted if line and not line.startswith("<")),
            hidden=self.style_property("drawing-page", style, "drawing-page", "presentation:visibility") == "hidden",
            transition=any(
                self.style_property("drawing-page", style, "drawing-page", name)
                not in ("", "none", "manual", "automatic", "semi-automatic")
                for name in moves
            ),
        )


_STYLE_GROUPS = (("office:automatic-styles", 1), ("office:styles", 2))
"""Where the styles of the content are, and in how many parts: the automatic ones of styles.xml are for headers and footers only."""
MIN_FONT_CM = 4 * 2.54 / 72
_BESIDE_SLIDE = frozenset({qualified_name("presentation:notes"), qualified_name("office:annotation")})
_LENGTH = re.compile(r"(-?\d+(?:\.\d+)?)(cm|mm|in|pt)")
_CM = {"cm": 1.0, "mm": 0.1, "in": 2.54, "pt": 2.54 / 72}


def _list_mark(level: Element) -> str:
    """What a level of a list style puts before its items."""
    if level.tag == qualified_name("text:list-level-style-bullet"):
        return "bulleted" if level.get(qualified_name("text:bullet-char"), "").strip() else "unmarked"
    if level.tag == qualified_name("text:list-level-style-number"):
        return "numbered" if level.get(qualified_name("style:num-format"), "") else "unmarked"
    return "bulleted" if level.tag == qualified_name("text:list-level-style-image") else "unmarked"


def _length_cm(text: str) -> float | None:
    """A length in centimetres; None where it is none."""
    match = _LENGTH.fullmatch(text)
    return None if match is None else float(match[1]) * _CM[match[2]]


def _is_shape(element: Element) -> bool:
    return element.tag in (qualified_name("draw:frame"), qualified_name("draw:custom-shape"))


def _repeats(element: Element, what: str, how: str = "repeated") -> int:
    value = element.get(qualified_name(f"table:number-{what}-{how}"), "1")
    return max(1, int(value)) if value.isdecimal() and len(value) < 10 else 1


def _text(element: Element) -> str:
    """Characters of a paragraph: spaces, tabs and line breaks are elements of their own, notes are not part of it."""
    parts = [element.text or ""]
    for child in element:
        if child.tag == qualified_name("text:s"):
            count = child.get(qualified_name("text:c"), "1")
            parts.append(" " * (int(count) if count.isdecimal() and len(count) < 6 else 1))
        elif child.tag == qualified_name("text:tab"):
            parts.append("\t")
        elif child.tag == qualified_name("text:line-break"):
            parts.append("\n")
        elif child.tag not in (qualified_name("office:annotation"), qualified_name("text:note")):
            parts.append(_text(child))
        parts.append(child.tail or "")
    return "".join(parts)
