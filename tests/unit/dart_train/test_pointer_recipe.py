"""A recipe whose policy points: what its components get, and what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dart_agent.grounding.acting.settings import WORKERS, PointerSettings
from dart_agent.rollouts.worker_config import load_worker_config
from dart_train.cli import app
from dart_train.config import load_recipe
from dart_train.run import components, preflight, recipe_policy, training_components
from dart_train.run.decisions.stages import plan_stages
from dart_train.run.paths import RunPaths
from dart_train.trainer.config import read_trainer_config
from tests.unit.dart_agent.grounding_models import small_model

RECIPE = """
[run]
name = "points"
[tasks]
families = ["press_nth"]
[model]
path = "MODEL"
pointer = true
[warmup]
enabled = false
[desktops]
count = 3
workers = 2
resolution = [320, 200]
[inference]
engine = "ENGINE"
max_model_len = 1500
threads = 2
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("pointer")
    small_model("qwen3_vl", root).save(root / "model")
    return root / "model"


def recipe_at(folder: Path, model: Path, engine: str = "vllm") -> Path:
    file = folder / "recipe.toml"
    file.write_text(RECIPE.replace("MODEL", str(model)).replace("ENGINE", engine), encoding="utf-8")
    return file


def test_inference_workers_serve_the_head_that_the_trainer_trains(tmp_path: Path, model: Path) -> None:
    recipe, paths = load_recipe(recipe_at(tmp_path, model)), RunPaths(tmp_path / "r")
    paths.make()
    assert recipe_policy.problems(recipe) == []
    assert {stage.policy for stage in plan_stages(recipe)} == {"vllm"}
    served = json.loads(Path(components.inference(recipe, paths).argv[-1]).read_text())
    assert served["worker"]["model"] == str(model)
    for spec in components.rollout_workers(recipe, paths, recipe.acting_policy):
        config = load_worker_config(Path(spec.argv[-1]))
        assert config.policy == "vllm"
        assert config.addresses == paths.addresses
        assert config.pointer == PointerSettings(model=WORKERS)
        assert "may describe" in config.prompt_spec.notes
    assert read_trainer_config(Path(training_components.trainer(recipe, paths).argv[-1])).pointer


def test_rollout_workers_act_with_their_own_head_where_there_are_no_inference_workers(
    tmp_path: Path, model: Path
) -> None:
    recipe, paths = load_recipe(recipe_at(tmp_path, model, "transformers")), RunPaths(tmp_path / "r")
    paths.make()
    assert recipe_policy.problems(recipe) == []
    assert {stage.policy for stage in plan_stages(recipe)} == {"transformers"}
    specs = components.rollout_workers(recipe, paths, recipe.acting_policy)
    configs = [load_worker_config(Path(spec.argv[-1])) for spec in specs]
    for spec, config in zip(specs, configs, strict=True):
        assert config.pointer is not None
        assert (config.policy, config.addresses) == ("transformers", None)
        assert (config.pointer.model, config.pointer.follow, config.pointer.device) == (str(model), True, "cpu")
        assert (config.pointer.max_context, config.pointer.threads) == (1500, 2)
        assert config.pointer.served == paths.served_versions / f"{spec.name}.json"
        assert "may describe" in config.prompt_spec.notes
    assert read_trainer_config(Path(training_components.trainer(recipe, paths).argv[-1])).pointer


async def test_the_versions_that_act_are_those_that_the_workers_wrote(tmp_path: Path, model: Path) -> None:
    recipe, paths = load_recipe(recipe_at(tmp_path, model, "transformers")), RunPaths(tmp_path / "r")
    paths.make()
    first, second = components.rollout_workers(recipe, paths, "transformers")
    with pytest.raises(FileNotFoundError):
        await components.served_versions(recipe, paths)
    for spec, version in ((first, 3), (second, 2)):
        (paths.served_versions / f"{spec.name}.json").write_text(json.dumps({"version": version}))
    assert sorted(await components.served_versions(recipe, paths)) == [2, 3]
    components.rollout_workers(recipe, paths, "transformers")
    with pytest.raises(FileNotFoundError):
        await components.served_versions(recipe, paths)


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("train.lora_rank=4 inference.publish=adapter", 'set inference.publish = "model"'),
        ("train.kl_coefficient=0.1", "set train.kl_coefficient = 0"),
        ('rollout.scheduling="batch"', 'set rollout.scheduling = "rollout-per-worker", or inference.engine = "vllm"'),
        ("model.pointer=false", 'set model.pointer = true, or engine = "vllm"'),
        ("eval.baseline_episodes=2", "set eval.baseline_episodes = 0"),
        ('demos.thoughts="none" demos.path="demos"', 'set demos.thoughts = "instruction"'),
    ],
)
def test_what_does_not_go_with_a_head_is_refused(tmp_path: Path, model: Path, setting: str, fix: str) -> None:
    recipe = recipe_at(tmp_path, model, "transformers")
    result = CliRunner().invoke(
        app, ["run", str(recipe), *(part for one in setting.split() for part in ("--set", one))]
    )
    assert result.exit_code == 2
    assert fix in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_model_or_a_prompt_without_targets_is_refused(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_package_problems", "_resource_problems"):
        monkeypatch.setattr(preflight, name, lambda *_: [])
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in model.iterdir():
        (plain / file.name).write_bytes(file.read_bytes())
    config = json.loads((plain / "config.json").read_text())
    del config["pointer_pad_token_id"]
    (plain / "config.json").write_text(json.dumps(config))

    def refusal(path: Path, *changes: str) -> Any:
        overrides = [part for change in changes for part in ("--set", change)]
        result = CliRunner().invoke(app, ["run", str(recipe_at(tmp_path, path)), "--dry-run", *overrides])
        assert result.exit_code == 2
        return result.stderr

    assert "model.pointer: " in (told := refusal(plain)), told
    assert "has no action head: train one with" in told
    assert "model.prompt: answers to the prompt qwen3-vl describe no targets" in refusal(
        model, 'model.prompt="qwen3-vl"', "inference.max_model_len=4000"
    )
    assert "starts from random weights" in refusal(model, 'model={preset="tiny", pointer=true}')
    warmed = ("warmup.enabled=true", 'desktops.provider="sim"')
    recipe = load_recipe(recipe_at(tmp_path, model), ('model={preset="tiny", pointer=true}', *warmed))
    assert recipe_policy.problems(recipe) == [], "the warm start makes the head"
    paths = RunPaths(tmp_path / "r")
    paths.make()
    assert json.loads(Path(training_components.warm_start(recipe, paths).argv[-1]).read_text())["pointer"]
