from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dart_envs.cli.main import app
from dart_envs.errors import FarmError
from dart_envs.farm import AsyncFarmClient

RUN = CliRunner()
GOOD = {"id": "one", "instruction": "Do it.", "evaluator": {"func": "exists", "result": {"type": "vm_file"}}}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(GOOD | changes), encoding="utf-8")
    return path


def test_list_names_families_and_ids() -> None:
    listed = RUN.invoke(app, ["tasks", "list"])
    assert listed.exit_code == 0
    assert "press_nth" in listed.stdout
    assert "[held out]" in listed.stdout
    ids = RUN.invoke(app, ["tasks", "list", "--ids", "--split", "validation", "--families", "tick_nth"])
    assert ids.stdout.splitlines()[0].startswith("basics/tick_nth/")
    assert 100 < len(ids.stdout.splitlines()) < 200


def test_show_gives_the_whole_task() -> None:
    assert "Press" in RUN.invoke(app, ["tasks", "show", "basics/press_nth/0000"]).stdout
    shown = RUN.invoke(app, ["tasks", "show", "basics/press_nth/0000", "--json"])
    assert json.loads(shown.stdout)["id"] == "basics/press_nth/0000"


def test_check_says_good_or_names_file_and_field(tmp_path: Path) -> None:
    good = RUN.invoke(app, ["tasks", "check", str(write(tmp_path / "good.json"))])
    assert (good.exit_code, "good.json: good" in good.stdout) == (0, True)
    write(tmp_path / "bad.json", max_steps="many")
    bad = RUN.invoke(app, ["tasks", "check", str(tmp_path)])
    assert bad.exit_code == 2
    assert len(bad.stderr.strip().splitlines()) == 1
    assert "bad.json: field 'max_steps'" in bad.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["tasks", "list", "nowhere"],
        ["tasks", "list", "--ids", "--split", "exam"],
        ["tasks", "show", "basics/nothing/0000"],
        ["tasks", "check", "absent.json"],
        ["tasks", "check", "basics", "--families", "nothing"],
        ["tasks", "check", "basics", "--resolution", "big"],
        ["tasks", "run", "basics/press_nth/9999"],
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(arguments: list[str]) -> None:
    result = RUN.invoke(app, arguments)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("dart-envs: ")


def test_a_farm_that_cannot_be_reached_is_one_sentence_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect() -> Any:
        raise FarmError("The farm is away.")

    monkeypatch.setattr(AsyncFarmClient, "connect", connect)
    for arguments in (["basics", "-f", "press_nth"], ["basics/press_nth"]):
        result = RUN.invoke(app, ["tasks", "check", *arguments])
        assert result.exit_code == 1
        assert result.stderr.strip() == "dart-envs: The farm is away."
