"""Documents that the office families start from, made in memory: OpenDocument spreadsheets, texts and presentations.

Role: content in, the file's bytes as base64 out, for `write_binary` steps. Rule: the same content gives the same bytes on every machine.
Non-goals: reading what an office suite saved (`dart_envs.evaluators.opendocument`).
"""

from __future__ import annotations

import io
import zipfile
from base64 import b64encode
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

Value = str | int | float
Table = Sequence[Sequence[Value]]

MIME = "application/vnd.oasis.opendocument."
NAMESPACES = " ".join(
    f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for prefix, name in (
        ("office", "office"),
        ("table", "table"),
        ("text", "text"),
        ("style", "style"),
        ("draw", "drawing"),
        ("presentation", "presentation"),
        ("svg", "svg-compatible"),
        ("fo", "xsl-fo-compatible"),
    )
)
ZIP_TIMESTAMP = (2024, 1, 1, 0, 0, 0)


def spreadsheet(*sheets: tuple[str, Table]) -> str:
    """Sheets by name, each a table of texts and numbers ("" is an empty cell)."""

    def cell(value: Value) -> str:
        if value == "":
            return "<table:table-cell/>"
        if isinstance(value, str):
            return f'<table:table-cell office:value-type="string"><text:p>{escape(value)}</text:p></table:table-cell>'
        return f'<table:table-cell office:value-type="float" office:value="{value}"><text:p>{value}</text:p></table:table-cell>'

    def row(values: Sequence[Value]) -> str:
        return f"<table:table-row>{''.join(map(cell, values))}</table:table-row>"

    tables = (
        f"<table:table table:name={quoteattr(name)}>{''.join(map(row, rows))}</table:table>" for name, rows in sheets
    )
    return _pack_document("spreadsheet", f"<office:spreadsheet>{''.join(tables)}</office:spreadsheet>")


def text_document(paragraphs: Sequence[str]) -> str:
    """Paragraphs of the default style."""
    body = "".join(f"<text:p>{escape(paragraph)}</text:p>" for paragraph in paragraphs)
    return _pack_document("text", f"<office:text>{body}</office:text>")


def presentation(slides: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Slides, each with a title and the lines below it."""

    def frame(kind: str, lines: Sequence[str], top_cm: float, height_cm: float) -> str:
        paragraphs = "".join(f"<text:p>{escape(line)}</text:p>" for line in lines)
        return (
            f'<draw:frame presentation:class="{kind}" presentation:style-name="{kind}"'
            f' svg:x="1.5cm" svg:y="{top_cm}cm" svg:width="25cm" svg:height="{height_cm}cm">'
            f"<draw:text-box>{paragraphs}</draw:text-box></draw:frame>"
        )

    pages = "".join(
        f'<draw:page draw:name="page{number}" draw:master-page-name="Default">'
        f"{frame('title', [title], 0.8, 2.6)}{frame('subtitle', lines, 4.0, 9.0)}</draw:page>"
        for number, (title, lines) in enumerate(slides, start=1)
    )
    layout = (
        '<style:page-layout style:name="screen"><style:page-layout-properties fo:page-width="28cm" fo:page-height="15.75cm"'
        ' style:print-orientation="landscape"/></style:page-layout>'
    )
    master = '<style:master-page style:name="Default" style:page-layout-name="screen"/>'
    styles = (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document-styles {NAMESPACES} office:version="1.3">'
        f"<office:automatic-styles>{layout}</office:automatic-styles><office:master-styles>{master}</office:master-styles>"
        "</office:document-styles>"
    )
    looks = "".join(
        f'<style:style style:name="{kind}" style:family="presentation"><style:graphic-properties draw:stroke="none" draw:fill="none"/>'
        f'<style:text-properties fo:font-size="{size_pt}pt"/></style:style>'
        for kind, size_pt in (("title", 36), ("subtitle", 20))
    )
    return _pack_document("presentation", f"<office:presentation>{pages}</office:presentation>", styles, looks)


def _pack_document(kind: str, body: str, styles: str | None = None, looks: str = "") -> str:
    content = (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document-content {NAMESPACES} office:version="1.3">'
        f"<office:automatic-styles>{looks}</office:automatic-styles><office:body>{body}</office:body></office:document-content>"
    )
    parts = {"mimetype": MIME + kind, "content.xml": content}
    if styles is not None:
        parts["styles.xml"] = styles
    entry = '<manifest:file-entry manifest:full-path="{}" manifest:media-type="{}"/>'
    entries = [
        entry.format("/", MIME + kind),
        *(entry.format(name, "text/xml") for name in parts if name != "mimetype"),
    ]
    parts["META-INF/manifest.xml"] = (
        '<?xml version="1.0" encoding="UTF-8"?><manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"'
        f' manifest:version="1.3">{"".join(entries)}</manifest:manifest>'
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, ZIP_TIMESTAMP), data)
    return b64encode(packed.getvalue()).decode("ascii")
