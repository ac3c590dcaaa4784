"""Every block of the tutorials and how-to guides is executed or says why not; the checker of `make test-snippets` sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from snippets import PageError, PageRun, needs, read_page

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = [page for part in ("tutorials", "how-to") for page in sorted((DOCS / part).glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_block_of_a_page_is_executed_or_says_why_not(page: Path) -> None:
    read_page(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "page",
    [
        "```toml\nx = 1\n```\n",
        "```\nsomething\n```\n",
        "1. first\n\n    ```sh\n    true\n    ```\n",
        "<!-- snippet: not run: -->\n```sh\ntrue\n```\n",
        "<!-- snippet: output -->\n\n```text\na\n```\n",
    ],
    ids=["language", "no-language", "indented", "no-reason", "mark-alone"],
)
def test_a_block_that_is_neither_executed_nor_marked_is_an_error(page: str) -> None:
    with pytest.raises(PageError, match=r"^line [13]:"):
        read_page(page)


def test_the_page_says_what_becomes_of_each_block() -> None:
    page = (
        '<!-- snippets need: vllm -->\n```toml title="a/b.toml"\nx = 1\n```\n```sh\ncat a/b.toml\n```\n<!-- snippet: output -->\n'
        "```text\nx = ...\n```\n<!-- snippet: not run: needs a GPU -->\n```sh\nfalse\n```\n<!-- snippet: exit 2 -->\n```sh\nexit 2\n```\n"
    )
    assert [snippet.treatment for snippet in read_page(page)] == ["file", "run", "output", "skip", "run"]
    assert needs(page) == ["vllm"]


def test_blocks_of_a_page_follow_each_other_and_leave_nothing() -> None:
    page = (
        '```python title="a.py"\nprint(6 * 7)\n```\n```sh\nmkdir b && cd b\nexport NAME=value\nsleep 600 &\n```\n'
        "```sh\npython ../a.py; echo $NAME in $(basename $PWD)\n```\n<!-- snippet: output -->\n```text\n42\nvalue in ...\n```\n"
        "<!-- snippet: exit 0 or 3 -->\n```sh\nexit 3\n```\n"
    )
    with PageRun() as run:
        assert [run.do(snippet) for snippet in read_page(page)] == [None] * 5
    assert not run.place.exists()


def test_a_block_that_fails_or_prints_something_else_is_seen() -> None:
    with PageRun() as run:
        failed, other = (
            run.do(block)
            for block in read_page("```sh\necho said; false\n```\n<!-- snippet: output -->\n```text\nnot\n```\n")
        )
    assert failed is not None
    assert "exit code 1 in place of 0" in failed
    assert other is not None
    assert "said" in other
