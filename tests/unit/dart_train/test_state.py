"""A run directory belongs to one recipe and one launcher at a time, and remembers what is done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dart_train.config import Recipe, RecipeError
from dart_train.run.paths import RunPaths
from dart_train.run.state import RunState, open_run_directory, run_lock


def recipe(**run: object) -> Recipe:
    return Recipe.model_validate(
        {"run": {"name": "r", **run}, "tasks": {"families": ["press_nth"]}, "model": {"preset": "tiny"}}
    )


def test_the_same_recipe_continues(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    state = open_run_directory(recipe(), paths)
    state.stages_s["demos"] = 3.0
    state.save(paths.state)
    assert open_run_directory(recipe(), paths).stages_s == {"demos": 3.0}


def test_another_recipe_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    open_run_directory(recipe(), paths)
    with pytest.raises(RecipeError, match=r"choose another run\.name"):
        open_run_directory(recipe(seed=1), paths)


def test_a_second_launcher_is_refused(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    with run_lock(paths), pytest.raises(RecipeError, match="another dart-train"), run_lock(paths):
        pass


def test_a_new_run_has_done_nothing(tmp_path: Path) -> None:
    assert RunState.load(tmp_path / "state.json") == RunState()


def test_the_architecture_names_everything_in_a_run_directory(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    values = (getattr(paths, name) for name, member in vars(RunPaths).items() if isinstance(member, property))
    entries = {value.relative_to(tmp_path).parts[0] for value in values if str(value).startswith(f"{tmp_path}/")}
    text = (Path(__file__).resolve().parents[3] / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Run directory")
    told = {word.partition("/")[0] for word in re.split(r"[\s;,]+", section) if re.match(r"[a-z]+(/|\.\w+$)", word)}
    assert entries == told - {"runs", "index.html", "result.json"}
