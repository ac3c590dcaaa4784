"""`dart-train simulate`: tables and files; what is wrong is one sentence and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_train.cli import app
from dart_train.exits import EXIT_WRONG_INPUT

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
