"""A wrong recipe is refused before anything starts, with the key's path and the fix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import NoneType
from typing import get_args

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from dart_agent.prompts.builder import preset
from dart_envs.tasks import load_suite
from dart_train.cli import app
from dart_train.config import FamilyLimitSection, Recipe, RecipeError, load_recipe
from dart_train.config.loading import BUNDLED
from dart_train.curation.experience_pool import ExperiencePoolSettings
from dart_train.curation.length_budget import LengthBudgetSettings
from dart_train.curation.rollout_budget import RolloutBudgetSettings
from dart_train.scheduling.settings import CurationSettings

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


def optional_keys() -> list[str]:
    """Every key of a section that may have no value."""
    found = []
    for name, field in Recipe.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        found += [
            f"{name}.{key}"
            for key, value in field.annotation.model_fields.items()
            if NoneType in get_args(value.annotation)
        ]
    return found


@pytest.mark.parametrize("key", sorted(set(optional_keys()) - {"model.preset", "model.path"}))
@pytest.mark.parametrize("word", ["null", "none", '"none"'])
def test_every_key_that_may_have_no_value_can_be_given_none(tmp_path: Path, key: str, word: str) -> None:
    section, name = key.split(".")
    recipe = load_recipe(write(tmp_path, GOOD), (f"{key}={word}",))
    assert getattr(getattr(recipe, section), name) is None


@pytest.mark.parametrize("key", sorted(FamilyLimitSection.model_fields))
@pytest.mark.parametrize("word", ["null", '"none"'])
def test_a_limit_of_a_family_can_be_given_none(tmp_path: Path, key: str, word: str) -> None:
    path = write(tmp_path, GOOD + f"[tasks.limits.press_nth]\n{key} = 2\n")
    assert getattr(load_recipe(path).tasks.limits["press_nth"], key) == 2
    recipe = load_recipe(path, (f"tasks.limits.press_nth.{key}={word}",))
    assert getattr(recipe.tasks.limits["press_nth"], key) is None


def test_the_source_of_the_policy_is_replaced_by_overrides(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, GOOD), ("model.preset=null", "model.path=some/model", "warmup.enabled=false"))
    assert (recipe.model.preset, recipe.model.path) == (None, "some/model")


def test_a_recipe_extends_another_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write(tmp_path, GOOD + "[train]\nupdates = 3\nlearning_rate = 1e-6\n")
    middle = tmp_path / "folder" / "middle.toml"
    middle.write_text('extends = "../recipe.toml"\n[train]\nupdates = 4\n[run]\nseed = 5\n', encoding="utf-8")
    top = tmp_path / "top.toml"
    top.write_text('extends = "folder/middle.toml"\n[tasks]\nfamilies = ["type_word"]\n', encoding="utf-8")
    recipe = load_recipe(top, ("train.learning_rate=2e-6",))
    assert (recipe.train.updates, recipe.train.learning_rate) == (4, 2e-6)
    assert (recipe.run.name, recipe.run.seed, recipe.tasks.families) == ("small", 5, ("type_word",))


def test_recipes_of_the_package_are_found_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # such as runs of it
    assert load_recipe(Path("demo")) == load_recipe(BUNDLED / "demo.toml")
    with pytest.raises(RecipeError, match=r"recipe demo\.toml does not exist"):
        load_recipe(Path("demo.toml"))
    (tmp_path / "own.toml").write_text(
        'extends = ["bases/ui-tars-1.5-7b.toml", "bases/office.toml", "bases/8gpu"]\n[run]\nname = "own"\n'
    )
    own, theirs = load_recipe(Path("own.toml")), load_recipe(Path("ui-tars-1.5-7b-8gpu"))
    assert own.model_copy(update={"run": theirs.run}) == theirs
    (tmp_path / "demo.toml").write_text('extends = "qwen3-vl-8b-1gpu"\n[run]\nname = "mine"\n')
    for name in ("demo.toml", "demo"):
        assert load_recipe(Path(name)).run.name == "mine", "one's own file comes first"
    for absent in ("nope", "../bases/8gpu.toml", str(tmp_path / "twelve-families")):
        with pytest.raises(RecipeError, match=r"one of the names demo, qwen3-vl-8b-1gpu, .*twelve-families"):
            load_recipe(Path(absent))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ('extends = "b.toml"', 'extends = "a.toml"', "in a circle"),
        ('extends = "a.toml"', "", "in a circle"),
        ('extends = "."', "", "cannot be read: Is a directory"),
        ('extends = "c.toml"', "", "which .*a.toml extends, does not exist"),
        ("extends = 3", "", "path of a recipe, or a list"),
        ('extends = ["b.toml", 3]', "", "path of a recipe, or a list"),
    ],
)
def test_a_wrong_composition_is_refused(tmp_path: Path, first: str, second: str, expected: str) -> None:
    (tmp_path / "a.toml").write_text(first, encoding="utf-8")
    (tmp_path / "b.toml").write_text(second, encoding="utf-8")
    with pytest.raises(RecipeError, match=expected):
        load_recipe(tmp_path / "a.toml")


def test_a_preset_of_the_curation_gives_what_the_recipe_leaves_out(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, GOOD)).curation.settings() == CurationSettings()
    dart = load_recipe(write(tmp_path, GOOD + '[curation]\npreset = "dart"\npool_max_uses = 2\n'))
    settings = dart.curation.settings()
    assert settings.rollout_budget == RolloutBudgetSettings(enabled=True, rule="dart", threshold=0.6)
    assert settings.length_budget == LengthBudgetSettings(
        enabled=True, margin_steps=0, min_successes=1, full_length_fraction=0
    )
    assert settings.experience_pool == ExperiencePoolSettings(enabled=True, max_age=None, max_uses=2)
    assert (dart.curation.high_entropy_step_fraction, dart.train.tis_cap) == (0.8, 1.0)
    own_cap = load_recipe(write(tmp_path, GOOD + '[train]\ntis_cap = 2.0\n[curation]\npreset = "dart"\n'))
    assert own_cap.train.tis_cap == 2.0
    masks = load_recipe(write(tmp_path, GOOD + '[train]\ncorrection = "token_mask"\n[curation]\npreset = "dart"\n'))
    assert masks.train.tis_cap == load_recipe(write(tmp_path, GOOD)).train.tis_cap == 2.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("[train]\nlearningrate = 1\n", "unknown key `train.learningrate`: did you mean `learning_rate`?"),
        ('[train]\nupdates = "many"\n', "`train.updates`"),
        ("[trian]\n", "unknown key `trian`: did you mean `train`?"),
        ('[warmup]\nimitated_families = ["nope"]\n', "not in tasks.families"),
        ("[demos]\nper_family = 0\n", "set demos.per_family above 0"),
        ("[rollout]\ntemperature = 0\n", "`rollout.temperature`"),
        ('[desktops]\nfarm = "farm.example"\n', "`desktops.farm`: 'farm.example' is no address of a farm"),
        ('[desktops]\nfarm = "https://me:secret@farm.example"\n', "put the key into DART_API_KEY"),
        ('[train]\nreference_model = "some/model"\n', "set kl_coefficient above 0"),
        ("[rollout]\ntop_p = 0.9\n", "`rollout.top_p`: 0.9 would cut tokens off"),
        ("[train]\nmax_grad_norm = 0.5\n", "max_grad_norm = 0.5 is below grad_clip = 1"),
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
        (
            ["recipe.toml", "--set", 'tasks.held_out_families=["nonsense"]'],
            "tasks.held_out_families: 'nonsense' is not",
        ),
        (["recipe.toml", "--set", 'tasks.held_out_families=["press_nth"]'], "both name press_nth"),
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


RECIPES = Path(__file__).resolve().parents[3] / "dart_train" / "recipes"
OVER_BUNDLED_SUITES = sorted(path for path in RECIPES.glob("*.toml") if "-osworld-" not in path.stem)
"""Those over OSWorld's task files are in `test_osworld_recipes.py`."""


@pytest.mark.parametrize("path", OVER_BUNDLED_SUITES, ids=lambda path: path.stem)
def test_a_shipped_recipe_asks_for_what_exists(path: Path) -> None:
    recipe = load_recipe(path)
    suite = load_suite(recipe.tasks.suite)
    assert recipe.desktops.image == suite.image
    assert set(recipe.tasks.families) <= {name for name, family in suite.families.items() if not family.held_out}
    assert recipe.eval.episodes <= len(suite.tasks("validation", recipe.tasks.families))
    assert recipe.run.name == path.stem


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*gpu.toml")), ids=lambda path: path.stem)
def test_a_shipped_recipe_for_gpus_fits_its_context_and_its_gpus(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.model.prompt is not None
    spec = preset(recipe.model.prompt, images=recipe.model.history_images, max_pixels=recipe.model.max_pixels)
    width, height = spec.picture_wh(recipe.desktops.resolution)
    images = spec.images * width * height // spec.multiple**2
    texts = recipe.tasks.max_steps * 100 + 1000
    assert images + texts + recipe.rollout.max_tokens <= recipe.inference.max_model_len
    assert recipe.train.micro_batch_tokens >= recipe.inference.max_model_len, "one stream is one pass"
    engines, trainers = set(recipe.inference.devices or ()), set(recipe.train.devices or ())
    assert engines | trainers == set(range(int(path.stem.rpartition("-")[2].removesuffix("gpu"))))
    assert not engines & trainers or recipe.inference.gpu_memory_fraction <= 0.6
    assert (recipe.train.dtype, recipe.inference.dtype) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize("name", ["ui-tars-1.5-7b-8gpu", "qwen3-vl-8b-1gpu"])
@pytest.mark.parametrize(
    ("algorithm", "widths"),
    [("grpo", (0.2, 0.28)), ("gspo", (3e-4, 4e-4)), ("cispo", (1.0, 4.0)), ("dr-grpo", (0.2, 0.2))],
)
def test_an_algorithm_brings_its_clip_widths_to_a_large_policy(
    name: str, algorithm: str, widths: tuple[float, float]
) -> None:
    train = load_recipe(Path(name), (f"train.algorithm={algorithm}",)).train
    assert (train.clip_low, train.clip_high) == widths


@pytest.mark.parametrize("path", OVER_BUNDLED_SUITES, ids=lambda path: path.stem)
def test_a_shipped_recipe_with_the_experience_pool_runs_its_tasks_again(path: Path) -> None:
    recipe = load_recipe(path)
    if recipe.curation.experience_pool:
        groups, suite = recipe.train.updates * recipe.train.groups_per_batch, load_suite(recipe.tasks.suite)
        tasks = [suite.tasks("train", [family])[: recipe.tasks.train_variations] for family in recipe.tasks.families]
        assert groups >= 3 * sum(map(len, tasks)), "a success of a task can only help when the task is run again"


def test_a_recipe_extends_several_others_the_later_over_the_earlier(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "a.toml").write_text("[train]\nupdates = 4\nepochs = 2\n", encoding="utf-8")
    (tmp_path / "b.toml").write_text("[train]\nupdates = 5\n", encoding="utf-8")
    top = tmp_path / "top.toml"
    top.write_text('extends = ["recipe.toml", "a.toml", "b.toml"]\n[run]\nname = "top"\n', encoding="utf-8")
    recipe = load_recipe(top)
    assert (recipe.train.updates, recipe.train.epochs, recipe.run.name) == (5, 2, "top")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("train.devices=[0, 1]",), "names 2 different GPUs for 1 processes"),
        (("train.processes=2", "train.devices=[1, 1]"), "names 1 different GPUs for 2 processes"),
        (
            ("train.devices=[0]", "inference.workers=1", "inference.devices=[0]"),
            "train.devices and inference.devices share GPU 0",
        ),
    ],
)
def test_gpus_that_do_not_fit_are_refused(tmp_path: Path, overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        load_recipe(write(tmp_path, GOOD), overrides)


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


FP8 = ("inference.quantization=fp8_per_channel", "inference.dtype=bfloat16")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (FP8[:1], "set dtype = 'bfloat16'"),
        ((*FP8, "train.correction=none"), r"set train\.correction = \"token_truncate\" and train\.tis_cap = 2"),
        ((*FP8, "train.tis_cap=none"), r"with train\.tis_cap = \"none\" does not correct the difference"),
        ((*FP8, "model.pointer=true", "inference.engine=transformers"), "has no quantised weights"),
    ],
)
def test_quantised_workers_need_16_bits_and_a_correction(
    tmp_path: Path, overrides: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        load_recipe(write(tmp_path, GOOD), overrides)


@pytest.mark.parametrize("correction", ["token_mask", "sequence_truncate", "decoupled", "rollout_anchor"])
def test_quantised_workers_go_with_every_correction(tmp_path: Path, correction: str) -> None:
    recipe = load_recipe(write(tmp_path, GOOD), (*FP8, f"train.correction={correction}"))
    assert recipe.inference.quantization == "fp8_per_channel"
    assert load_recipe(write(tmp_path, GOOD), (*FP8, "inference.quantization=none")).inference.quantization is None
