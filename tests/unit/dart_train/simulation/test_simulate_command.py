"""`dart-train simulate`: tables and files; what is wrong is one sentence and exit code 2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dart_agent.task_suites import open_suite
from dart_envs.tasks import Split
from dart_train.cli import app
from dart_train.config import load_recipe
from dart_train.exits import EXIT_WRONG_INPUT
from dart_train.simulation.command import models_of, scenario_of
from dart_train.simulation.models import SystemModels, load_models
from dart_train.simulation.outcome import SimulationOutcome, simulate
from dart_train.simulation.planning import recommend_split, usd_per_hour
from dart_train.simulation.scenario import Scenario

RECIPE = str(Path(__file__).parents[4] / "dart_train" / "recipes" / "demo.toml")


def test_tables_chart_and_figures_are_written(tmp_path: Path) -> None:
    figures, chart, models = tmp_path / "figures.json", tmp_path / "chart.svg", tmp_path / "models.toml"
    arguments = ["simulate", RECIPE, "--desktops", "8", "--workers", "2", "--hours", "0.1", "--seed", "5"]
    files = ["--json", str(figures), "--gantt", str(chart), "--save-models", str(models)]
    result = CliRunner().invoke(app, [*arguments, *files])
    assert result.exit_code == 0, result.output
    for text in ("Utilisation", "actions per minute", "Bottleneck:", "Cost of 1,000", "Recommended split:"):
        assert text in result.output
    data = json.loads(figures.read_text())
    assert (data["desktops"], data["workers"], data["seed"], data["mode"]) == (8, 2, 5, "rollout-per-worker")
    assert data["outcome"]["lost"] == 0
    assert len(data["splits"]) == 9
    assert "desktop-7" in chart.read_text()
    again = CliRunner().invoke(app, [*arguments, "--no-split", "--models", str(models), "--json", str(figures)])
    assert again.exit_code == 0, again.output
    assert json.loads(figures.read_text())["outcome"] == data["outcome"]


def test_figures_of_splits_that_train_nothing_are_valid_json(tmp_path: Path) -> None:
    figures, models = tmp_path / "figures.json", tmp_path / "models.toml"
    models.write_text("[desktop]\nstep_s = { mean_s = 1e6 }\n")
    arguments = ["simulate", RECIPE, "--desktops", "2", "--workers", "1", "--hours", "0.05", "--models", str(models)]
    result = CliRunner().invoke(app, [*arguments, "--json", str(figures)])
    assert result.exit_code == 0, result.output

    def refuse(constant: str) -> None:
        raise AssertionError(f"JSON has no {constant}")

    data = json.loads(figures.read_text(), parse_constant=refuse)
    assert data["usd_per_1000_rollouts"] is None
    assert data["recommended_split"]["usd_per_1000_rollouts"] is None
    assert {each["usd_per_1000_rollouts"] for each in data["splits"]} == {None}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--mode", "serial"], "there is no scheduling mode 'serial': choose one of batch, task"),
        (["--models", "none.json"], "do not exist"),
        (["--gantt", "chart.png"], "must be an .svg file"),
        (["--json", "/nowhere/figures.json"], "is not a folder: make it first"),
        (["--fit", "/nowhere"], "has no metrics.jsonl"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["simulate", RECIPE, *options])
    assert result.exit_code == EXIT_WRONG_INPUT
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_recipe_is_simulated_with_its_own_sizes() -> None:
    recipe = load_recipe(Path(RECIPE), ["inference.max_num_seqs=3", "inference.max_updating=2"])
    models = models_of(recipe)
    assert (models.engine.max_requests, models.episode.max_response_tokens) == (3, recipe.rollout.max_tokens)
    assert models.episode.context_tokens == recipe.inference.max_model_len
    assert models.episode.image_tokens < 200, "a screenshot of the tiny policy, not of a policy of 7 billion parameters"
    assert models.publish.weights_gib < 0.1
    assert models.engine.kv_cache_tokens != SystemModels().engine.kv_cache_tokens
    scenario = scenario_of(recipe, models)
    assert scenario.max_updating == 2
    suite = open_suite(recipe.tasks.suite)
    assert scenario.tasks == len(suite.tasks(split=Split.TRAIN, families=list(recipe.tasks.families)))


def test_a_recipe_without_gpus_pays_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = load_recipe(Path(RECIPE), [])
    scenario = scenario_of(recipe, models_of(recipe))
    assert usd_per_hour(scenario) == pytest.approx(scenario.desktops * scenario.models.prices.desktop_hour)


def test_other_splits_of_the_same_gpus_are_tried() -> None:
    recipe = load_recipe(Path(RECIPE).parent / "ui-tars-1.5-7b-8gpu.toml", [])
    models = models_of(recipe)
    assert models.prices.trainer_gpus == recipe.train.processes
    assert models.prices.gpus_per_worker == recipe.inference.tensor_parallel
    scenario = scenario_of(recipe, models)
    outcome = simulate(replace(scenario, desktops=4, hours=0.02, warm_up_hours=0.0))
    speeds: dict[tuple[int, int], float] = {}

    def run(other: Scenario) -> SimulationOutcome:
        speeds[other.workers, other.models.prices.trainer_gpus] = other.models.trainer.tokens_per_s
        return outcome

    _, options = recommend_split(scenario, outcome, run)
    gpus = models.prices.trainer_gpus + scenario.workers * models.prices.gpus_per_worker
    same = {
        (each.workers, each.trainer_gpus)
        for each in options
        if each.trainer_gpus + each.workers * models.prices.gpus_per_worker == gpus
    }
    assert len(same) >= 3
    for workers, trainer_gpus in same - {(scenario.workers, models.prices.trainer_gpus)}:
        share = trainer_gpus / models.prices.trainer_gpus
        assert speeds[workers, trainer_gpus] == pytest.approx(share * models.trainer.tokens_per_s)


def test_a_file_of_models_changes_what_it_names_only(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("[desktop]\nstep_s = { mean_s = 9.0 }\n")
    start = models_of(load_recipe(Path(RECIPE), []))
    loaded = load_models(file, start)
    assert loaded.desktop.step_s.mean_s == 9.0
    assert loaded.desktop.fork_s == start.desktop.fork_s
    assert loaded.episode == start.episode
