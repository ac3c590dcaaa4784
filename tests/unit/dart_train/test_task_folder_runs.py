"""Runs over a folder of task files: every component knows its tasks, and what cannot run is said before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from demonstrations import write_demonstration
from pydantic import ValidationError

from dart_agent.data_client.wire import TaskSelection
from dart_agent.errors import StoreError
from dart_agent.rollouts.worker_config import load_worker_config
from dart_agent.task_suites import load_task, open_suite
from dart_envs.errors import TaskError
from dart_train.config import Recipe, RecipeError
from dart_train.data_manager.__main__ import read_config
from dart_train.data_manager.catalog import SuiteCatalog
from dart_train.imitation.demonstrations import DemonstrationsUnusableError, read_demonstrations
from dart_train.run import components, phases, preflight
from dart_train.run.paths import RunPaths
from dart_train.run.preflight import check_recipe

TASK = {
    "snapshot": "os", "instruction": "Make the file.", "related_apps": ["os"], "config": [], "image": "basic",
    "evaluator": {
        "func": "exact_match", "result": {"type": "vm_command_line", "command": "echo"},
        "expected": {"type": "rule", "rules": {"expected": "x"}},
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for family, count in (("os", 40), ("web", 20)):
        (tmp_path / "examples" / family).mkdir(parents=True)
        for number in range(count):
            file = tmp_path / "examples" / family / f"t{number}.json"
            file.write_text(json.dumps({**TASK, "id": f"own-{family}-{number}"}))
    return tmp_path / "examples"


def recipe_of(folder: Path, **sections: Any) -> Recipe:
    given: dict[str, Any] = {
        "run": {"name": "r"}, "desktops": {"provider": "sim"},
        "tasks": {"suite": "mine", "folder": str(folder), "families": ["os", "web"]},
        "model": {"path": str(folder)}, "warmup": {"enabled": False, "imitated_demos_per_family": 0}, "demos": {"per_family": 0},
        "eval": {"episodes": 5, "baseline_episodes": 2}, "limits": {"min_free_disk_gib": 0, "min_free_memory_gib": 0},
    }  # fmt: skip
    return Recipe.model_validate(given | sections)


def task_problems(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the check of tasks says; the checks of model, packages and farm are not of this test."""
    for name in ("_package_problems", "_resource_problems"):
        monkeypatch.setattr(preflight, name, lambda *_: [])
    try:
        check_recipe(recipe, RunPaths(tmp_path / "r"))
    except RecipeError as error:
        return [line for line in str(error).splitlines() if line.startswith(("tasks.", "eval.", "demos."))]
    return []


JUDGE = {"base_url": "http://127.0.0.1:1/v1", "model": "judge-1", "api_key_variable": None}


def test_tasks_without_an_evaluator_need_a_source_for_each_split(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (folder / "os").iterdir():
        file.write_text(
            json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "evaluator"})
        )
    training_only = {"source": "judge", "judge": JUDGE}
    told = {
        name: task_problems(recipe_of(folder, reward=reward), tmp_path, monkeypatch)
        for name, reward in (
            ("none", {}),
            ("training", training_only),
            ("both", {**training_only, "evaluation": "judge"}),
        )
    }
    assert 'has no evaluator, and reward.source = "evaluator" judges the train split by it' in told["none"][0]
    assert "reward.source" not in told["training"][0]
    assert 'has no evaluator, and reward.evaluation = "evaluator" judges the' in told["training"][0]
    assert told["both"] == []
    unused = recipe_of(folder, reward={**training_only, "source": "checkpoints", "evaluation": "judge"})
    assert "judges the train split by it" in task_problems(unused, tmp_path, monkeypatch)[0]


def test_partial_credit_needs_checkpoints_and_a_program_needs_to_be_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sentence,) = task_problems(recipe_of(folder, reward={"source": "checkpoints"}), tmp_path, monkeypatch)
    assert sentence.startswith("tasks.folder: none of the tasks to train on has checkpoints")
    recipe = recipe_of(folder, reward={"source": "program", "program": {"argv": ["/no/such/program"]}})
    with pytest.raises(RecipeError, match=r"reward.program.argv: /no/such/program is no program"):
        check_recipe(recipe, RunPaths(tmp_path / "r"))


def test_every_component_knows_the_tasks(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, paths = recipe_of(folder), RunPaths(tmp_path / "r")
    monkeypatch.setattr(components, "recipe_prompt", lambda recipe: "tiny")
    monkeypatch.setattr(components, "start_model", lambda recipe, paths: folder)
    paths.make()
    manager = read_config(Path(components.data_manager(recipe, paths).argv[-1]))
    catalog = SuiteCatalog(manager.task_folder)
    chosen = catalog.select(TaskSelection(suite="mine", split="train", families=["os", "web"], count=6))
    assert {task_id.split("/")[1] for task_id in chosen} == {"os", "web"}
    assert all(catalog.split_of(task_id) == "train" for task_id in chosen)
    (worker,) = components.rollout_workers(recipe, paths, "vllm")
    config = load_worker_config(Path(worker.argv[-1]))
    assert load_task(chosen[0], config.task_folder).instruction == "Make the file."
    assert load_task("basics/press_nth/0000", config.task_folder).id == "basics/press_nth/0000"
    with pytest.raises(TaskError, match="There is no suite 'mine'"):
        open_suite("mine")
    assert phases.held_out_families(recipe) == []
    assert phases.infeasible_tasks(recipe, chosen) == frozenset()


def test_a_run_over_task_files_is_checked_before_it_starts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert task_problems(recipe_of(folder), tmp_path, monkeypatch) == []
    (sentence,) = task_problems(recipe_of(folder / "nowhere"), tmp_path, monkeypatch)
    assert sentence.startswith("tasks.folder:")
    assert "is no folder of task files" in sentence
    (sentence,) = task_problems(recipe_of(folder, eval={"episodes": 50}), tmp_path, monkeypatch)
    assert sentence.startswith("eval.episodes: 50 are asked for")
    drive = {
        **TASK,
        "id": "d",
        "config": [{"type": "googledrive", "parameters": {"settings_file": "x", "operation": [], "args": []}}],
    }
    (folder / "os" / "drive.json").write_text(json.dumps(drive))
    (sentence,) = task_problems(recipe_of(folder), tmp_path, monkeypatch)
    assert sentence.startswith("tasks.folder: 1 of 61 tasks cannot run here (1 cannot run: no setup step 'googledrive'")
    assert f"dart-envs tasks index {folder} writes" in sentence
    index = tmp_path / "index.json"
    index.write_text(
        json.dumps({"os": [f"t{number}" for number in range(40)], "web": [f"t{number}" for number in range(20)]})
    )
    tasks = {"suite": "mine", "folder": str(folder), "index": str(index), "families": ["os", "web"]}
    assert task_problems(recipe_of(folder, tasks=tasks), tmp_path, monkeypatch) == []
    with pytest.raises(ValidationError, match=r"tasks.index names files of tasks.folder"):
        recipe_of(folder, tasks={"families": ["press_nth"], "index": str(index)})


def test_tasks_of_the_live_web_run_where_the_recipe_says_that_desktops_reach_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://shop.example/cart"]}}
    (folder / "web" / "shop.json").write_text(json.dumps({**TASK, "id": "shop", "config": [opens]}))
    (sentence,) = task_problems(recipe_of(folder), tmp_path, monkeypatch)
    assert "1 of 61 tasks cannot run here (1 needs the live web" in sentence
    assert sentence.endswith("where the desktops reach the live web, set tasks.web = true")
    tasks = {"suite": "mine", "folder": str(folder), "families": ["os", "web"], "web": True}
    assert task_problems(recipe_of(folder, tasks=tasks), tmp_path, monkeypatch) == []


def test_the_images_of_another_farm_are_not_those_of_this_host(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DART_FARM_URL", raising=False)
    asked: list[bool] = []
    monkeypatch.setattr(preflight, "refusal_reason", lambda *_, local_images, web: asked.append(local_images))
    task_problems(recipe_of(folder), tmp_path, monkeypatch)
    there = {"provider": "sim", "farm": "https://farm.example"}
    task_problems(recipe_of(folder, desktops=there), tmp_path, monkeypatch)
    assert (set(asked[:60]), set(asked[60:])) == ({True}, {False})


def test_demonstrations_of_task_files_are_imitated_by_their_split(folder: Path, tmp_path: Path) -> None:
    recipe = recipe_of(folder)
    catalog = SuiteCatalog(recipe.tasks.task_folder)
    by_split = {catalog.split_of(f"own-os-{number}"): number for number in range(40)}
    write_demonstration(tmp_path / "train", f"own-os-{by_split['train']}")
    write_demonstration(tmp_path / "test", f"own-os-{by_split['test']}")
    assert len(read_demonstrations([tmp_path / "train"], recipe.tasks.task_folder).episodes) == 1
    with pytest.raises(DemonstrationsUnusableError, match="of the test split"):
        read_demonstrations([tmp_path / "test"], recipe.tasks.task_folder)
    with pytest.raises(DemonstrationsUnusableError, match="cannot be imitated"):
        read_demonstrations([tmp_path / "train"])
    with pytest.raises((TaskError, StoreError)):
        catalog.split_of("own-nobody")
