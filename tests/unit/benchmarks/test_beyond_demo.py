"""What the benchmark of twelve families makes of a run's report and of its test."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runs import bench_beyond_demo as bench
from dart_envs.errors import UnsupportedCapabilityError
from dart_train.config import load_recipe
from dart_train.evaluation.results import HELD_OUT, TRAINED


def gain(before: float, after: float) -> dict[str, Any]:
    return {"episodes": 10, "before_percent": before, "after_percent": after}


REPORT = {
    "paired_evaluation": {"families": {"a": gain(10, 80), "b": gain(30, 90)}},
    "stages_s": {"demos": 60.0, "train": 120.0},
    "counts": {},
    "incidents": [],
}
TESTED = {
    "version": 4,
    "rows": [{"name": name} for name in (TRAINED, "a", "b", HELD_OUT, "h")],
    "against": {
        "gains": {TRAINED: gain(0, 0), "a": gain(20, 70), "b": gain(40, 100), HELD_OUT: gain(5, 50), "h": gain(5, 50)}
    },
}


def test_the_macro_mean_is_over_the_trained_families() -> None:
    found = bench.figures(REPORT, TESTED)
    assert (found["validation_macro_before_percent"], found["validation_macro_percent"]) == (20.0, 85.0)
    assert (found["macro_before_percent"], found["macro_percent"]) == (30.0, 85.0)
    assert found["held_out"]["after_percent"] == 50
    assert found["minutes"] == 3.0


def test_a_missing_part_is_left_out() -> None:
    assert bench.figures({}, {}) == {}
    assert "macro_percent" not in bench.figures(REPORT, {})


def episode(family: str, reward: float | None, version: int, phase: str = "train-1") -> dict[str, Any]:
    return {
        "kind": "episode",
        "phase": phase,
        "task": f"basics/{family}/0001",
        "reward": reward,
        "versions": [version, version],
    }


def test_the_curve_is_the_mean_over_families_of_parts_of_the_training() -> None:
    lines = [{"kind": "update"}, episode("a", 1.0, 0, "eval-before")]
    for part in range(bench.CURVE_POINTS):
        lines += [episode("a", 1.0, part), episode("a", float(part > 4), part), episode("b", float(part > 4), part)]
        lines += [episode("b", 0.0, part), episode("a", None, part)]
    points = bench.curve(lines)
    assert [point["version"] for point in points] == list(range(bench.CURVE_POINTS))
    assert [point["macro_percent"] for point in points] == [25.0] * 5 + [75.0] * 5
    assert points[0] == {"episodes": 4, "version": 0, "macro_percent": 25.0, "families": {"a": 50.0, "b": 0.0}}
    assert bench.curve(lines[:2]) == []


def test_wrong_settings_are_an_error_and_no_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args(["--runs-dir", str(tmp_path / "runs"), "--set", "warmup.processes=3"])
    with pytest.raises(UnsupportedCapabilityError, match="refused the settings or the folder"):
        bench.measure(args)
    assert "no multiple of processes 3" in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_recipe_names_twelve_families_and_others_to_test_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = load_recipe(bench.RECIPE, ()).tasks
    assert len(tasks.families) == len(set(tasks.families)) == 12
    assert tasks.held_out_families
    assert not set(tasks.held_out_families) & set(tasks.families)
