"""Commands on pages are those of the programs: each `dart-farm`, `dart-envs`, `dart-agent` and `dart-train` with its verbs and options.

Rule: fenced blocks of a shell, indented blocks and code in a sentence are read. Words in capitals stand for something else.
Non-goals: values and arguments, which only running a command can judge (`make test-snippets`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dart_docs.commands_page import PROGRAMS, walk_commands

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHELLS = {"sh", "bash", "shell", "console"}
_FENCED = re.compile(r"^(?P<fence>```+|~~~+)(?P<language>\w*).*?\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    (?P<text>.*)$", re.MULTILINE)
_SPAN = re.compile(r"(?P<ticks>`+)(?P<text>(?:(?!\n\n).)+?)(?P=ticks)", re.DOTALL)
_PROGRAM = re.compile(
    rf"(?<![\w.:-])(?<![a-z]/)(?:[\w.$/~-]*/bin/)?(?P<name>{'|'.join(PROGRAMS)})(?![\w.:/-])(?P<rest>[^\n]*)"
)
_END = re.compile(r"[;|&<>()`]|\s#|\s{2,}|\$\(")
"""Where a command ends: at an operator of the shell, a comment, or the two spaces before an explanation."""
_VERB = re.compile(r"[a-z][a-z-]*")
_BARE_OPTION = re.compile(r"--[a-z][a-z0-9-]+")
OPTIONS_OF_OTHERS = {
    *("--help", "--installed", "--user"),
    *(
        "--engine",
        "--live",
        "--smoke",
        "--work",
        "--records",
        "--minutes-per-arm",
        "--noise",
        "--late",
    ),  # `python -m benchmarks`
    *("--reward", "--verifier", "--config"),  # `python -m dart_train.grounding`
}
"""Options that a sentence names without their program, which is none of ours."""
FILTERS = {"head", "tail", "grep", "jq", "sort", "less", "tee", "wc", "python", "xargs"}
DEFAULT_VERBS = {"dart-agent ground": "point"}
"""Groups in which an argument in the place of a verb belongs to this one."""


@cache
def parsers(program: str) -> dict[str, Any]:
    return dict(walk_commands(program))


def codes(page: str) -> Iterator[tuple[int, str]]:
    """Where code of a shell begins, and what it says: blocks, indented lines, and code in a sentence."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    for found in _FENCED.finditer(page):
        if found["language"] in SHELLS:
            yield found.start("text"), found["text"]
    prose = _FENCED.sub(blank, page)
    for found in _INDENTED.finditer(prose):
        yield found.start("text"), found["text"]
    for found in _SPAN.finditer(_INDENTED.sub(blank, prose)):
        yield found.start("text"), re.sub(r"\n *", " ", found["text"])


def commands(page: str) -> Iterator[tuple[int, str, list[str]]]:
    """Line, program and the words after it, of every command on a page; of `a | b` of a usage line both."""
    for start, text in codes(page):
        # A command that goes on in the next line stays where it begins.
        joined = re.sub(r" *\\\n *", " ", text)
        for found in _PROGRAM.finditer(joined):
            line = page[: start + len(joined[: found.start()])].count("\n") + 1
            known, words = parsers(found["name"]), list[str]()
            for part in found["rest"].split(" | "):
                own = _words(part)
                if words and (not own or own[0] in FILTERS):
                    break
                in_group = " ".join([found["name"], *words[:1], *own[:1]]) in known
                words = [*words[:1], *own] if words and in_group else own
                yield line, found["name"], words
                if _END.search(part.strip()):
                    break


def _words(text: str) -> list[str]:
    """The words of one command, without the brackets of what may be left out."""
    given = re.sub(r"[\[\]]", "", _END.split(text, maxsplit=1)[0])
    try:
        return shlex.split(given)
    except ValueError:  # a quotation that the end of the command has cut
        return given.split()


def wrong_word(program: str, words: list[str]) -> str | None:
    """The first verb or option that the program does not have."""
    known, name = parsers(program), program
    words = list(words)
    while words:
        word = words.pop(0).partition("=")[0]
        parser = known[name]
        verbs = getattr(parser, "commands", {})
        if re.fullmatch(r"-\w|--[\w-]+", word):
            options = _options(parser)
            if word not in options:
                return f"{name} {word}"
            option = options[word]
            if option is not None and not option.is_flag and words and not words[0].startswith("-"):
                words.pop(0)
        elif verbs and word in verbs and not verbs[word].hidden:
            name = f"{name} {word}"
        elif verbs and name in DEFAULT_VERBS:
            name = f"{name} {DEFAULT_VERBS[name]}"
        elif verbs and _VERB.fullmatch(word):
            return f"{name} {word}"
        elif verbs:
            return None
    return None


def wrong_commands(page: str, *, bare_options: bool = True) -> list[str]:
    """Every command and option of a page that no program has, with its line."""
    found = [(line, wrong_word(program, words)) for line, program, words in commands(page)]
    options = {option for program in PROGRAMS for parser in parsers(program).values() for option in _options(parser)}
    for start, text in codes(page) if bare_options else ():
        bare = _BARE_OPTION.match(text)
        if bare is not None and bare[0] not in options | OPTIONS_OF_OTHERS:
            found.append((page[:start].count("\n") + 1, bare[0]))
    return [f"{line}: {wrong}" for line, wrong in sorted(found, key=lambda one: one[0]) if wrong is not None]


def _options(parser: Any) -> dict[str, Any]:
    return {each: one for one in parser.params for each in (*one.opts, *one.secondary_opts)} | {"--help": None}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_of_the_program(page: Path) -> None:
    # The engineering log names options of benchmarks and tests.
    bare_options = page.parent.name != "engineering-log"
    assert wrong_commands(page.read_text(encoding="utf-8"), bare_options=bare_options) == []


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("a\n```sh\ndart-farm serve --prot 1 &\n```\n", ["3: dart-farm serve --prot"]),
        ("```sh\ntrue && venv/bin/dart-farm keys ad x\n```\n", ["2: dart-farm keys ad"]),
        ("```sh\ndart-farm serve \\\n  --port 1 \\\n  --hots x\n```\n", ["2: dart-farm serve --hots"]),
        ("See\n\n    dart-farm leases [shew]   it shows\n", ["3: dart-farm leases shew"]),
        ("See\n\n    dart-farm leases [list] | show | relaese\n", ["3: dart-farm relaese"]),
        ("See\n\n    dart-farm images | snapshots [lizt] | show    b\n", ["3: dart-farm snapshots lizt"]),
        ("```sh\ndart-farm events | head -n 1\n```\nWith `--no-such`.", ["4: --no-such"]),
        ("Run `dart-train\nbegin`.\n", ["1: dart-train begin"]),
        ("```sh\nX=$(dart-envs tasks list --no-such)\n```\n", ["2: dart-envs tasks list --no-such"]),
        ("`dart-agent ground a.png x --modle m`", ["1: dart-agent ground point --modle"]),
        (
            "`dart-farm serve --port=1`, `dart-farm VERB`, `dart-farm.service`, `dart-farm-tls`\n```text\ndart-farm x\n```\n",
            [],
        ),
    ],
)
def test_the_check_sees_what_is_wrong_and_nothing_else(page: str, wrong: list[str]) -> None:
    assert wrong_commands(page) == wrong
