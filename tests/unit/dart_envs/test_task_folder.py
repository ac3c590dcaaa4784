"""A folder of task files as a suite: families, splits, an index, what cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_envs.cli.main import app
from dart_envs.errors import TaskError
from dart_envs.tasks import FolderSuite, Split

TASK = {
    "snapshot": "os", "instruction": "Make the file.", "related_apps": ["os"], "config": [],
    "evaluator": {
        "func": "exact_match", "result": {"type": "vm_command_line", "command": "echo"},
        "expected": {"type": "rule", "rules": {"expected": "x"}},
    },
}  # fmt: skip


def write(folder: Path, family: str, names: list[str], **changes: object) -> None:
    (folder / family).mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / family / f"{name}.json").write_text(json.dumps({**TASK, "id": f"own-{name}", **changes}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "examples", "os", [f"a{number}" for number in range(20)])
    write(tmp_path / "examples", "chrome", ["b"])
    write(tmp_path / "examples", ".", ["c"])
    return tmp_path / "examples"


def test_sub_folders_are_families_and_ids_decide_splits(folder: Path) -> None:
    suite = FolderSuite("osworld", folder)
    assert list(suite.families) == ["chrome", "os", "tasks"]
    assert len(suite.tasks()) == 22
    assert suite.tasks(families=["chrome"]) == ("osworld/chrome/b",)
    by_split = {split: suite.tasks(split, ["os"]) for split in Split}
    assert sum(map(len, by_split.values())) == 20
    assert len(by_split[Split.TRAIN]) > 8
    (folder / "os" / "new.json").write_text(json.dumps({**TASK, "id": "own-new"}))
    again = FolderSuite("osworld", folder)
    assert set(by_split[Split.TRAIN]) <= set(again.tasks("train", ["os"])), "a new file moves none"
    task = suite.load("osworld/os/a3")
    assert (task.id, suite.id_of("own-a3"), suite.id_of("nobody")) == ("own-a3", "osworld/os/a3", None)
    assert (suite.image, suite.shape.resolution) == ("desktop", (1920, 1080))


def test_an_index_names_the_tasks(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "test_small.json"
    index.write_text(json.dumps({"os": ["a4", "a2"], "tasks": ["c"], "chrome": []}))
    assert FolderSuite("osworld", folder, index).tasks() == ("osworld/os/a2", "osworld/os/a4", "osworld/tasks/c")
    for content, sentence in (
        ('{"os": ["nowhere"]}', "which is not there"),
        ('["os"]', "is not of the form"),
        ("{", "cannot be read"),
        ('{"os": []}', "has no task file"),
    ):
        index.write_text(content)
        with pytest.raises(TaskError, match=sentence):
            FolderSuite("osworld", folder, index)


def test_what_is_no_folder_of_tasks_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="is no folder of task files"):
        FolderSuite("osworld", tmp_path / "nowhere")
    suite = FolderSuite("osworld", folder)
    with pytest.raises(TaskError, match="has no family 'gimp'; it has chrome, os, tasks"):
        suite.tasks(families=["gimp"])
    with pytest.raises(TaskError, match="is not a task of suite osworld"):
        suite.load("osworld/os/nowhere")
    write(folder, "os", ["other"], image="basic")
    with pytest.raises(TaskError, match=r"are for several images, basic .*: name those of one in an index"):
        _ = FolderSuite("osworld", folder).image


def test_the_command_writes_an_index_of_what_can_run(folder: Path) -> None:
    write(
        folder,
        "os",
        ["drive"],
        config=[{"type": "googledrive", "parameters": {"settings_file": "x", "operation": [], "args": []}}],
    )
    (folder / "os" / "broken.json").write_text("{")
    shown = CliRunner().invoke(app, ["tasks", "index", str(folder), "--image", "basic"])
    assert shown.exit_code == 0, shown.output
    kept = json.loads(shown.stdout)
    assert len(kept["os"]) == 20
    assert (kept["chrome"], kept["tasks"]) == (["b"], ["c"])
    assert "2 of 24 tasks cannot run here" in shown.stderr
    assert "is not JSON" in shown.stderr
    wrong = CliRunner().invoke(app, ["tasks", "index", str(folder / "nowhere")])
    assert wrong.exit_code == 2
    assert "is no folder of task files" in wrong.stderr
