"""Every page of the site that a person has written says for whom it is, where its readers begin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
FIRST_LINES = 15
AUDIENCE = re.compile(r"\bThis (page|guide) is for \w+")
"""The form of the sentence; what one can do after reading follows it."""
EXCEPTIONS = {
    "tutorials/index.md": "a table says for whom each tutorial is",
    "how-to/index.md": "a table says which guide solves which problem",
}
"""Pages without the sentence: why. The engineering log is a record of measurements, for those who change DART."""
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.relative_to(DOCS).parts[0] != "engineering-log" and page.relative_to(DOCS).as_posix() not in EXCEPTIONS
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_says_for_whom_it_is(page: Path) -> None:
    head = "\n".join(page.read_text(encoding="utf-8").splitlines()[:FIRST_LINES])
    assert AUDIENCE.search(head), f"{page}: begin with `This page is for ...`, and say what one can do after it"


def test_exceptions_are_pages_that_need_one() -> None:
    assert len(PAGES) > 20
    assert [name for name in EXCEPTIONS if AUDIENCE.search((DOCS / name).read_text(encoding="utf-8"))] == []
