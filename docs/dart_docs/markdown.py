"""Markdown that generated pages are made of.

Role: tables, code and headings. Rule: text from the code is escaped where Markdown would read it as markup. Non-goals: what pages say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def code(text: object) -> str:
    """Format a text as code inside a table cell or a sentence.

    Args:
        text: The text; its `str` is taken.

    Returns:
        Markdown.
    """
    plain = str(text).replace("\n", " ")
    if not plain:
        return ""
    ticks = "``" if "`" in plain else "`"
    space = " " if plain[0] == "`" or plain[-1] == "`" else ""
    return f"{ticks}{space}{plain}{space}{ticks}"


def cell(text: str) -> str:
    """Put a text on one line, with the bars that would end the cell escaped.

    Args:
        text: Markdown of any number of lines.

    Returns:
        Markdown of one line.
    """
    joined = re.sub(r"\s*\n\s*", " ", text.strip())
    return re.sub(r"(?<!\\)\|", r"\\|", joined)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table.

    Args:
        header: Names of the columns.
        rows: Cells of each row, as many as columns.

    Returns:
        Markdown that ends with an empty line.
    """
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(cell(each) for each in row)} |" for row in rows]
    return "\n".join(lines) + "\n\n"


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, on one line.

    Args:
        text: The docstring; None where there is none.

    Returns:
        Its first paragraph.
    """
    return cell((text or "").strip().split("\n\n")[0])
