"""Tutorials and how-to guides do what they say: every block of every page is executed in order (`make test-snippets`)."""

from __future__ import annotations

from pathlib import Path

import live_host
import pytest
from snippets import PageRun, needs, read_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [page for part in ("tutorials", "how-to") for page in sorted((DOCS / part).glob("*.md"))]
pytestmark = [pytest.mark.snippets, pytest.mark.slow, pytest.mark.desktop, pytest.mark.timeout(7200)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_block_of_a_page_does_what_it_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for marker in needs(text):
        live_host.require(marker)
    with PageRun() as run:
        for snippet in read_page(text):
            wrong = run.do(snippet)
            assert wrong is None, f"{page}:{snippet.line}: {wrong}"
