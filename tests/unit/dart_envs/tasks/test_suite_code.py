"""What a user reads whose suite has an error in its own code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_envs.cli.main import app
from dart_envs.tasks import loader

HEAD = "from dart_envs.tasks import Family, Suite, TaskDraft\n"
GOOD = """
def total_line(random):
    return TaskDraft(
        instruction="Write the total.",
        config=[],
        evaluator={
            "func": "file_contains",
            "result": {"type": "vm_file", "path": "a"},
            "expected": {"type": "rule", "rules": {"expected": ["1"]}},
        },
        oracle=[{"do": "type", "text": "1"}],
        near_miss=[{"do": "type", "text": "2"}],
    )
"""
TAIL = '\nSUITE = Suite.from_families("receipt", [Family("total_line", "mousepad", "Totals.", 4, total_line)])\n'
WriteSuite = Callable[[str], Path]


@pytest.fixture
def write_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteSuite]:
    """Writes the module of a suite `receipt` whose entry point is installed."""
    entry = EntryPoint("receipt", "receipt_suite:SUITE", loader.ENTRY_POINT_GROUP)
    monkeypatch.setattr(loader, "entry_points", lambda group: [entry])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "receipt_suite", raising=False)

    def write(text: str) -> Path:
        path = tmp_path / "receipt_suite.py"
        path.write_text(text, encoding="utf-8")
        return path

    yield write
    loader.load_suite.cache_clear()
    sys.modules.pop("receipt_suite", None)


def said(*arguments: str, code: int = 2) -> str:
    result = CliRunner().invoke(app, ["tasks", *arguments])
    assert result.exit_code == code, result.output
    if code:
        assert len(result.stderr.strip().splitlines()) == 1
        assert "Traceback" not in result.stderr
    return result.output


def test_a_good_suite_is_listed_and_shown(write_suite: WriteSuite) -> None:
    write_suite(HEAD + GOOD + TAIL)
    assert "total_line" in said("list", "receipt", code=0)
    assert "Write the total." in said("show", "receipt/total_line/0000", code=0)


@pytest.mark.parametrize(
    ("text", "line", "error"),
    [
        (HEAD + "import no_such_module\n", 2, "ModuleNotFoundError: No module named 'no_such_module'"),
        (HEAD + "x = (\n", 2, "SyntaxError: '(' was never closed"),
        (HEAD + "import json\njson.loads('{')\n", 3, "JSONDecodeError: Expecting property name"),
    ],
)
def test_an_import_that_fails_names_suite_entry_point_file_and_line(
    write_suite: WriteSuite, text: str, line: int, error: str
) -> None:
    path = write_suite(text)
    place = f"The import of suite 'receipt' (entry point receipt_suite:SUITE) failed in {path}, line {line}: {error}"
    assert place in said("list", "receipt")


def test_an_entry_point_that_is_not_there_is_named(write_suite: WriteSuite) -> None:
    write_suite(HEAD)
    assert "(entry point receipt_suite:SUITE) failed: AttributeError:" in said("list", "receipt")


@pytest.mark.parametrize(
    ("family", "line", "error"),
    [
        ("\ndef total_line(random):\n    return make(random)\n", 4, "NameError: name 'make' is not defined"),
        (
            "\ndef total_line(random):\n    return TaskDraft(\n        instructions='Write.')\n",
            4,
            "TypeError: TaskDraft.__init__() got an unexpected keyword argument 'instructions'",
        ),
        (
            "\ndef total_line(random):\n    return random.sample([1], 2)\n",
            4,
            "ValueError: Sample larger than population",
        ),
        ("\ndef total_line():\n    pass\n", 3, "TypeError: total_line() takes 0 positional arguments"),
    ],
)
def test_a_family_that_fails_names_task_function_file_and_line(
    write_suite: WriteSuite, family: str, line: int, error: str
) -> None:
    path = write_suite(HEAD + family + TAIL)
    place = f"task receipt/total_line/0000 (receipt_suite:total_line) failed in {path}, line {line}: {error}"
    for command in (["show", "receipt/total_line/0000"], ["check", "receipt", "-n", "1"]):
        assert place in said(*command)


def test_a_family_that_gives_something_else_is_named(write_suite: WriteSuite) -> None:
    write_suite(HEAD + "\ndef total_line(random):\n    return {}\n" + TAIL)
    assert "receipt_suite:total_line gives dict, not a TaskDraft." in said("show", "receipt/total_line/0000")


@pytest.mark.parametrize(
    ("right", "wrong", "nearest"),
    [
        ("file_contains", "file_containz", "no metric 'file_containz' (nearest: 'file_contains'"),
        ("vm_file", "vm_fil", "no getter 'vm_fil' (nearest: 'vm_file'"),
        ("vm_file", "qqqq", "no getter 'qqqq'. The page `Getters and metrics`"),
    ],
)
def test_an_unknown_metric_or_getter_is_wrong_input(
    write_suite: WriteSuite, right: str, wrong: str, nearest: str
) -> None:
    write_suite(HEAD + GOOD.replace(f'"{right}"', f'"{wrong}"') + TAIL)
    for command in (["show", "receipt/total_line/0000"], ["check", "receipt", "-n", "1"]):
        assert f"receipt/total_line/0000: field 'evaluator': there is {nearest}" in said(*command)
