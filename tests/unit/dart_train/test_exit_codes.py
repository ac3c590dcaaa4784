"""What `dart-train` ends with: 0 only for a policy that learned; everything else says in one sentence what is to be done."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dart_train.cli import app
from dart_train.evaluation.paired_evaluation import PairedEvaluation, compare_evaluations
from dart_train.run import orchestrator, preflight

RECIPE = '[run]\nname = "small"\n[tasks]\nfamilies = ["press_nth"]\n[model]\npreset = "tiny"\n'
NO_CHANGE = {(f"basics/a/{number}", 0): float(number % 2) for number in range(20)}
ALL_RIGHT = dict.fromkeys(NO_CHANGE, 1.0)


def run_that_ends_with(
    verdict: PairedEvaluation | None, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> Result:
    async def ended(*_: object) -> PairedEvaluation | None:
        return verdict

    monkeypatch.setattr(preflight, "check_recipe", lambda recipe, paths: None)
    monkeypatch.setattr(orchestrator, "run_recipe", ended)
    monkeypatch.chdir(folder)
    Path("recipe.toml").write_text(RECIPE, encoding="utf-8")
    return CliRunner().invoke(app, ["run", "recipe.toml", *options])


def sentences(text: str) -> list[str]:
    return text.strip().splitlines()


def test_only_a_policy_that_learned_ends_with_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_that_ends_with(compare_evaluations(NO_CHANGE, ALL_RIGHT), tmp_path, monkeypatch).exit_code == 0
    assert run_that_ends_with(compare_evaluations(NO_CHANGE, NO_CHANGE), tmp_path, monkeypatch).exit_code == 1


def test_a_run_that_trains_nothing_ends_with_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_that_ends_with(None, tmp_path, monkeypatch, "--set", "train.updates=0")
    assert result.exit_code == 0
    assert result.stderr == ""


def test_a_run_without_a_verdict_has_not_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_that_ends_with(None, tmp_path, monkeypatch)
    assert result.exit_code == 1
    assert len(sentences(result.stderr)) == 1
    assert "has no result" in result.stderr
    assert "logs" in result.stderr
    assert "of a feasible task" in result.stderr
