"""A wrong recipe is refused before anything starts, with the key's path and the fix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_train.cli import app
from dart_train.config import RecipeError, load_recipe

GOOD = """
[run]
name = "small"
[tasks]
families = ["press_nth"]
[model]
preset = "tiny"
[eval]
episodes = 100
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_recipe_has_every_default(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, GOOD))
    assert recipe.desktops.count == 4
    assert recipe.rollout.sampling.temperature == 1.0


def test_overrides_are_toml_values(tmp_path: Path) -> None:
    recipe = load_recipe(
        write(tmp_path, GOOD),
        ("train.learning_rate=0", "run.seed=7", "run.name=other", "desktops.resolution=[800, 600]"),
    )
    assert recipe.train.learning_rate == 0
    assert recipe.run.seed == 7
    assert recipe.run.name == "other"
    assert recipe.desktops.shape.resolution == (800, 600)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("[train]\nlearningrate = 1\n", "unknown key `train.learningrate`"),
        ('[train]\nupdates = "many"\n', "`train.updates`"),
        ("[trian]\n", "unknown key `trian`"),
        ('[warmup]\nimitated_families = ["nope"]\n', "not in tasks.families"),
        ("[demos]\nper_family = 0\n", "set demos.per_family above 0"),
        ("[rollout]\ntemperature = 0\n", "`rollout.temperature`"),
        ("[rollout]\ntop_p = 0.9\n", "`rollout.top_p`: 0.9 would cut tokens off"),
    ],
)
def test_a_wrong_recipe_names_the_key(tmp_path: Path, change: str, expected: str) -> None:
    with pytest.raises(RecipeError) as failure:
        load_recipe(write(tmp_path, GOOD + change))
    assert expected in str(failure.value)


def test_a_model_needs_exactly_one_source(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="either `preset` or `path`"):
        load_recipe(write(tmp_path, GOOD.replace('preset = "tiny"', 'preset = "tiny"\npath = "x"')))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["missing.toml"], "does not exist"),
        (["recipe.toml", "--set", "train.updates"], "section.key=value"),
        (["recipe.toml", "--set", "train.nope=1"], "unknown key `train.nope`"),
        (
            ["recipe.toml", "--set", 'model={path = "./no-such-model"}', "--set", "warmup.enabled=false"],
            "there is no folder ./no-such-model",
        ),
        (["recipe.toml", "--set", 'tasks.families=["no_such_family"]'], "is not a family of basics"),
        (["recipe.toml", "--set", "limits.min_free_disk_gib=1000000"], "free some space"),
        (["recipe.toml", "--set", "limits.min_free_memory_gib=1000000"], "limits.min_free_memory_gib"),
    ],
)
def test_the_command_exits_with_2_and_one_sentence(
    tmp_path: Path, arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", *arguments, "--dry-run"])
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()


def test_dry_run_prints_the_resolved_recipe_and_starts_nothing(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    command = [sys.executable, "-m", "dart_train.cli", "run", "recipe.toml", "--dry-run"]
    command += ["--set", 'desktops.provider="sim"', "--set", "limits.min_free_memory_gib=0"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["run"] == {"name": "small", "seed": 0}
    assert not (tmp_path / "runs").exists()


def test_shipped_recipes_are_valid() -> None:
    folder = Path(__file__).resolve().parents[3] / "dart_train" / "recipes"
    recipes = sorted(folder.glob("*.toml"))
    assert recipes
    for path in recipes:
        load_recipe(path)


@pytest.mark.parametrize(
    ("mode", "sync"),
    [
        ("batch", "global"),
        ("task", "global"),
        ("rollout-global", "global"),
        ("rollout-per-worker", "per_worker"),
    ],
)
def test_the_scheduling_mode_says_how_weights_are_updated(tmp_path: Path, mode: str, sync: str) -> None:
    recipe = write(tmp_path, GOOD)
    assert load_recipe(recipe, (f"rollout.scheduling={mode}",)).update_mode.value == sync
    other = "global" if sync == "per_worker" else "per_worker"
    with pytest.raises(RecipeError, match=r"leave inference\.update_mode out"):
        load_recipe(recipe, (f"rollout.scheduling={mode}", f"inference.update_mode={other}"))


def test_the_default_scheduling_waits_for_nothing(tmp_path: Path) -> None:
    recipe = write(tmp_path, GOOD)
    assert load_recipe(recipe).rollout.scheduling.value == "rollout-per-worker"
    with pytest.raises(RecipeError, match=r"rollout\.scheduling"):
        load_recipe(recipe, ("rollout.scheduling=whenever",))
