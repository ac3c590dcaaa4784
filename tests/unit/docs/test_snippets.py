"""Every block of the tutorials and how-to guides is executed or says why not; the checker of `make test-snippets` sees what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import PageError, PageRun, needs, read_page

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = [page for part in ("tutorials", "how-to") for page in sorted((DOCS / part).glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_block_of_a_page_is_executed_or_says_why_not(page: Path) -> None:
    read_page(page.read_text(encoding="utf-8"))


def test_every_example_makes_the_environment_known_to_gymnasium() -> None:
    """`import gymnasium` alone does not: Gymnasium has no entry points for environments."""
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md"), *PAGES]
    blocks = [
        (page, block)
        for page in pages
        for block in re.findall(
            r"^```python[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        if re.search(r"\bgym\.make(_vec)?\(", block)
    ]
    unknown = [
        f"{page}:\n{block}" for page, block in blocks if not re.search(r"(import|from) dart_envs|dart_envs:", block)
    ]
    assert blocks
    assert unknown == []


def test_troubleshooting_has_what_gymnasium_says_without_the_import() -> None:
    program = "import gymnasium; gymnasium.make('DartOSWorld-v0')"
    said = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True).stderr
    error = said.strip().splitlines()[-1].removeprefix("gymnasium.error.")
    assert error.startswith("NameNotFound")
    assert error in (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [
        "```toml\nx = 1\n```\n",
        "```\nsomething\n```\n",
        "1. first\n\n    ```sh\n    true\n    ```\n",
        "<!-- snippet: not run: -->\n```sh\ntrue\n```\n",
        "<!-- snippet: output -->\n\n```text\na\n```\n",
        "~~~sh\ntrue\n~~~\n",
        "a\n\n~~~\nsomething\n~~~\n",
        "a\n\n    true\n",
        "1. first\n\n        true\n",
        "- first\n\n\ttrue\n",
        "1. first\n\n    ~~~sh\n    true\n    ~~~\n",
    ],
    ids=[
        *("language", "no-language", "indented", "no-reason", "mark-alone"),
        *("tildes", "tildes-no-language", "spaces", "spaces-in-list", "tab", "tildes-in-list"),
    ],
)
def test_a_block_that_is_neither_executed_nor_marked_is_an_error(page: str) -> None:
    with pytest.raises(PageError, match=r"^line [13]:"):
        read_page(page)


def test_indented_text_that_goes_on_with_a_sentence_is_no_block() -> None:
    assert read_page("- a list with\n    a second line\n  - and ~~~ in it\n") == []


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


def test_a_program_in_the_background_does_not_write_into_the_output_of_later_blocks() -> None:
    page = (
        "```sh\n(while sleep 0.05; do echo noise; done) &\n```\n"
        "```sh\nsleep 0.5\necho mine\n```\n<!-- snippet: output -->\n```text\nmine\n```\n"
    )
    with PageRun() as run:
        assert [run.do(snippet) for snippet in read_page(page)] == [None] * 3


def test_a_block_that_does_not_end_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snippets.BLOCK_LIMIT_S", 0.5)
    with PageRun() as run:
        (wrong,) = (run.do(snippet) for snippet in read_page("```sh\necho began\nsleep 600\n```\n"))
    assert wrong is not None
    assert wrong.startswith("it had not ended after")
    assert "began" in wrong


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
