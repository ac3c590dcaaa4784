"""Recipes over task files in OSWorld's layout: such a folder has what they ask for, and only the suite sets them apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

import osworld_data
import pytest

from dart_envs.evaluators.scorer_choice import required_packages
from dart_envs.scorer.catalogue import CODE_EXECUTING_METRICS
from dart_envs.tasks import FolderSuite, Split, task_split
from dart_envs.tasks.requirements import web_addresses
from dart_train.config import Recipe, load_recipe
from dart_train.run import phases, preflight

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "dart_train" / "recipes"
OSWORLD_RECIPES = sorted(RECIPES.glob("*-osworld-*gpu.toml"))
each_recipe = pytest.mark.parametrize("path", OSWORLD_RECIPES, ids=lambda path: path.stem)
TASK = {
    "snapshot": "os", "instruction": "Make the file.", "related_apps": [], "config": [],
    "evaluator": {
        "func": "exact_match", "result": {"type": "vm_command_line", "command": "echo"},
        "expected": {"type": "rule", "rules": {"expected": "x"}},
    },
}  # fmt: skip
RUNNABLE = {
    "chrome": (10, 1, 2), "gimp": (18, 3, 5), "libreoffice_calc": (30, 8, 9), "libreoffice_impress": (29, 9, 8),
    "libreoffice_writer": (18, 4, 1), "multi_apps": (35, 16, 13), "os": (16, 4, 4), "thunderbird": (10, 2, 3), "vlc": (13, 2, 1),
}  # fmt: skip
"""Tasks of OSWorld in the splits train, validation and test that need no live web, account, extra of the scorer, or program that the image
`desktop` does not have."""


def write_tasks(folder: Path, suite: str, counts: dict[str, tuple[int, int, int]]) -> Path:
    """Write made-up task files, so many of each family and split, as FOLDER/FAMILY/NAME.json."""
    for family, sizes in counts.items():
        (folder / family).mkdir(parents=True)
        left = dict(zip(Split, sizes, strict=True))
        number = 0
        while any(left.values()):
            split = task_split(f"{suite}/{family}/t{number}")
            if left[split]:
                left[split] -= 1
                (folder / family / f"t{number}.json").write_text(json.dumps({**TASK, "id": f"{family}-{number}"}))
            number += 1
    return folder


def load_over(path: Path, folder: Path, index: str = "none") -> Recipe:
    return load_recipe(path, (f"tasks.folder={json.dumps(str(folder))}", f"tasks.index={index}"))


def task_problems(recipe: Recipe) -> list[str]:
    """What a dry run says about the tasks: the image, the families, tasks that cannot run, the counts."""
    return preflight._task_problems(recipe)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sizes of OSWorld's families and splits."""
    return write_tasks(tmp_path_factory.mktemp("osworld") / "examples", "osworld", RUNNABLE)


@pytest.fixture(autouse=True)
def _no_installed_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DART_HOME", str(tmp_path / "home"))


def test_every_checkpoint_and_number_of_gpus_has_a_recipe_over_osworld() -> None:
    over_office = {path.stem for path in RECIPES.glob("*gpu.toml")} - {path.stem for path in OSWORLD_RECIPES}
    assert {path.stem.replace("-osworld", "") for path in OSWORLD_RECIPES} == over_office
    assert len(over_office) == 6


@each_recipe
def test_a_dry_run_finds_all_tasks_that_a_recipe_asks_for(path: Path, folder: Path) -> None:
    recipe = load_over(path, folder)
    suite = phases.recipe_suite(recipe)
    assert preflight._count_problems(recipe, suite) == []
    assert task_problems(recipe) == []
    assert recipe.run.name == path.stem
    assert (recipe.desktops.image, recipe.desktops.resolution) == (suite.image, suite.shape.resolution)
    assert (recipe.tasks.train_variations, recipe.tasks.max_steps) == (None, 30)
    trained = len(suite.tasks("train", recipe.tasks.families))
    assert trained == len(suite.tasks("train")) == 179
    assert recipe.train.updates * recipe.train.groups_per_batch >= 3 * trained, "the experience pool needs repetition"


@each_recipe
def test_too_few_tasks_are_refused_with_the_number_to_give(path: Path, tmp_path: Path) -> None:
    small = write_tasks(tmp_path / "examples", "osworld", dict.fromkeys(RUNNABLE, (3, 2, 1)))
    problems = preflight._count_problems(recipe := load_over(path, small), phases.recipe_suite(recipe))
    assert [problem.partition(":")[0] for problem in problems] == ["eval.episodes", "eval.during_episodes"]
    assert all(problem.endswith("give at most 18") for problem in problems)


@each_recipe
def test_a_version_is_chosen_on_validation_before_it_is_tested(path: Path, folder: Path) -> None:
    recipe = load_over(path, folder)
    assert recipe.eval.during_training
    assert recipe.eval.test_episodes == 0


@each_recipe
def test_a_recipe_differs_from_the_one_over_office_in_the_suite_alone(path: Path) -> None:
    def rest(recipe: Recipe) -> dict[str, object]:
        suite_keys = {"train": {"updates"}, "curation": {"evidence"}, "limits": {"min_free_disk_gib"}}
        whole = recipe.model_dump(mode="json", exclude={"run", "tasks", "eval"})
        return {
            section: {key: value for key, value in values.items() if key not in suite_keys.get(section, ())}
            for section, values in whole.items()
        }

    over_office = path.with_name(path.name.replace("-osworld", ""))
    assert rest(load_recipe(path)) == rest(load_recipe(over_office))


@each_recipe
def test_osworlds_own_tasks_are_as_many_as_a_recipe_asks_for(path: Path, tmp_path: Path) -> None:
    examples = osworld_data.data() / "examples"
    index = tmp_path / "index.json"
    index.write_text(json.dumps(runnable(FolderSuite("osworld", examples), load_recipe(path).tasks.families)))
    recipe = load_over(path, examples, json.dumps(str(index)))
    suite = phases.recipe_suite(recipe)
    assert {
        family: tuple(len(suite.tasks(split, [family])) for split in Split) for family in suite.families
    } == RUNNABLE
    assert preflight._count_problems(recipe, suite) == []


def runnable(suite: FolderSuite, families: tuple[str, ...]) -> dict[str, list[str]]:
    """Names by family of the tasks that a usual host can run, without a look at this host."""
    kept: dict[str, list[str]] = {family: [] for family in families}
    for task_id in suite.tasks(families=families):
        task = suite.load(task_id)
        without = (
            task.unsupported,
            web_addresses(task),
            required_packages(task.evaluator),
            set(task.evaluator.functions) & CODE_EXECUTING_METRICS,
            {"vscode", "vs_code"} & set(task.related_apps),
        )
        if not any(without):
            _, family, name = task_id.split("/")
            kept[family].append(name)
    return kept


def test_the_recipe_for_own_task_files_of_the_documentation_fits_a_folder(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "osworld.md").read_text(encoding="utf-8")
    found = re.search(r"^    # own-tasks\.toml\n((?:    .*\n)+)", page, re.MULTILINE)
    assert found is not None
    file = tmp_path / "own-tasks.toml"
    file.write_text(re.sub(r"^    ", "", found[1], flags=re.MULTILINE).replace("dart_train/recipes", str(RECIPES)))
    own = write_tasks(tmp_path / "my-tasks", "own", {"invoices": (40, 10, 5), "letters": (40, 10, 5)})
    recipe = load_over(file, own)
    assert task_problems(recipe) == []
    assert recipe.tasks.max_steps == 30
