from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dart_envs.cli.main import app
from dart_envs.errors import FarmError
from dart_envs.farm import AsyncFarmClient
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_server.wire import A11yElement

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


def test_columns_of_the_list_are_as_wide_as_the_longest_name() -> None:
    lines = RUN.invoke(app, ["tasks", "list", "system"]).stdout.splitlines()
    assert any(len(line.split()[0]) > 14 for line in lines)
    assert len({line.index("steps<=") for line in lines}) == 1
    assert len({line.index("train=") for line in lines}) == 1


def test_list_of_a_folder_names_domain_id_and_instruction(tmp_path: Path) -> None:
    (tmp_path / "os").mkdir()
    write(tmp_path / "os" / "a.json", id="28cc3b7e-a", instruction="Turn it up.\nNow.")
    assert RUN.invoke(app, ["tasks", "list", str(tmp_path)]).stdout == "os/28cc3b7e-a  Turn it up. ...\n"
    assert RUN.invoke(app, ["tasks", "list", str(tmp_path), "--ids"]).stdout == "28cc3b7e-a\n"
    (tmp_path / "none").mkdir()
    empty = RUN.invoke(app, ["tasks", "list", str(tmp_path / "none")])
    assert (empty.exit_code, "has no task file" in empty.stderr) == (2, True)


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


def test_check_names_what_cannot_run_here_instead_of_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "home" / "images" / "desktop" / "current"
    (image / "rootfs").mkdir(parents=True)
    (image / "manifest.json").write_text('{"packages": {}}')
    monkeypatch.setenv("DART_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DART_FARM_URL", raising=False)
    (tmp_path / "tasks").mkdir()
    tabs = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://www.drugs.com/"]}}
    write(tmp_path / "tasks" / "web.json", id="web", config=[tabs])
    write(tmp_path / "tasks" / "code.json", id="code", related_apps=["vscode"])
    write(tmp_path / "tasks" / "plain.json", id="plain")
    checked = RUN.invoke(app, ["tasks", "check", str(tmp_path / "tasks")])
    assert checked.exit_code == 0, checked.output
    said = checked.stdout
    assert "plain.json: good" in said
    assert "web.json: well-formed, but it cannot run here: it needs the live web (https://www.drugs.com/)" in said
    assert "code.json: well-formed, but it cannot run here: it needs vscode, which the image desktop" in said
    assert "2 of 3 tasks cannot run here and are left out" in said


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


def test_a_folder_without_task_files_is_no_success(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["tasks", "check", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == f"dart-envs: there is no task file (*.json) in {tmp_path}: name a folder that has some.\n"


def test_a_farm_that_cannot_be_reached_is_one_sentence_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect() -> Any:
        raise FarmError("The farm is away.")

    monkeypatch.setattr(AsyncFarmClient, "connect", connect)
    for arguments in (["basics", "-f", "press_nth"], ["basics/press_nth"]):
        result = RUN.invoke(app, ["tasks", "check", *arguments])
        assert result.exit_code == 1
        assert result.stderr.strip() == "dart-envs: The farm is away."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"oracle": [{"do": "key", "keys": ["ctlr", "s"]}]}, ["oracle.0", "'ctlr'"]),
        ({"near_miss": [{"do": "click"}]}, ["near_miss.0", "needs target"]),
        ({"oracle": [{"do": "wait", "text": "x"}]}, ["oracle.0", "takes no text"]),
        ({"oracle": [{"do": "key", "keys": ["s"], "target": {"name": "OK"}}]}, ["takes no target"]),
        ({"evaluator": {"func": "is_nice", "result": {"type": "vm_file"}}}, ["metric", "is_nice"]),
        ({"evaluator": {"func": "file_containz", "result": {"type": "vm_file"}}}, ["nearest: 'file_contains'"]),
        ({"evaluator": {"func": "exists", "result": {"type": "vm_thought"}}}, ["getter", "vm_thought"]),
    ],
)
def test_what_can_never_work_is_wrong_and_named(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    checked = RUN.invoke(app, ["tasks", "check", str(write(tmp_path / "bad.json", **changes))])
    assert checked.exit_code == 2, checked.output
    assert len(checked.stderr.strip().splitlines()) == 1
    for word in ("bad.json", *words):
        assert word in checked.stderr


TYPED = {
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["typed"]},
        "expected": {"type": "rule", "rules": {"expected": "hello"}},
    },
    "oracle": [{"do": "type", "text": "hello"}],
    "near_miss": [{"do": "type", "text": "hell"}],
}


@pytest.fixture
def connected_farm(farm: FakeFarm, monkeypatch: pytest.MonkeyPatch) -> FakeFarm:
    class Connected:
        async def __aenter__(self) -> FakeFarm:
            return farm

        async def __aexit__(self, *_exc: object) -> None:
            return

    async def connect() -> Connected:
        return Connected()

    monkeypatch.setattr(AsyncFarmClient, "connect", connect)
    return farm


@pytest.mark.usefixtures("connected_farm")
def test_a_saved_run_has_a_picture_and_the_tree_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def a11y(_desktop: FakeDesktop) -> list[A11yElement]:
        return [A11yElement(role="push button", name="OK", x=1, y=2, w=3, h=4)]

    monkeypatch.setattr(FakeDesktop, "a11y", a11y)
    path = write(tmp_path / "one.json", **TYPED)
    ran = RUN.invoke(app, ["tasks", "run", str(path), "--save", str(tmp_path / "saved")])
    assert ran.exit_code == 0, ran.output
    names = {file.name for file in (tmp_path / "saved").iterdir()}
    assert names == {f"{step:02d}.{kind}" for step in range(3) for kind in ("png", "a11y.jsonl")}
    (shown, *_) = (tmp_path / "saved" / "00.a11y.jsonl").read_text().splitlines()
    assert (json.loads(shown)["role"], json.loads(shown)["name"]) == ("push button", "OK")


@pytest.mark.parametrize(
    ("near_miss", "code", "words"),
    [("hell", 0, "3 of 3 validations hold"), ("hello", 1, "scored 1")],
)
@pytest.mark.usefixtures("connected_farm")
def test_a_file_with_oracle_and_near_miss_is_proved(tmp_path: Path, near_miss: str, code: int, words: str) -> None:
    write(tmp_path / "one.json", **TYPED | {"near_miss": [{"do": "type", "text": near_miss}]})
    write(tmp_path / "plain.json", id="two")
    out = tmp_path / "proofs"
    command = ["tasks", "check", str(tmp_path / "one.json"), str(tmp_path / "plain.json"), "--out", str(out)]
    checked = RUN.invoke(app, command)
    assert checked.exit_code == code, checked.output
    assert words in checked.stdout
    assert "plain.json: good" in checked.stdout
    assert "proving 1 of them" in checked.stdout
    again = RUN.invoke(app, command)
    assert again.exit_code == code
    assert f"{3 if code == 0 else 2} of 3 validations stand already" in again.stdout
