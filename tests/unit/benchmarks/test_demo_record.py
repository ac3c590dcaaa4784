"""What the demo's benchmark makes of runs that earlier records hold."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runs import bench_demo
from dart_envs.errors import UnsupportedCapabilityError


def measured(tmp_path: Path, *runs: dict[str, Any]) -> dict[str, Any]:
    """Figures of runs, none of which is started."""
    record = tmp_path / "record.json"
    named = {f"seed-{seed}": run for seed, run in enumerate(runs, 1)}
    record.write_text(json.dumps({"benchmark": "demo", "figures": {"runs": named}}), encoding="utf-8")
    parser = argparse.ArgumentParser()
    bench_demo.add_arguments(parser)
    seeds = [str(seed) for seed in range(1, len(runs) + 1)]
    return bench_demo.measure(parser.parse_args(["--seeds", *seeds, "--records", str(record)]))


def run(minutes: float, gain: float | None, lower: float | None) -> dict[str, Any]:
    """A run."""
    return {"exit_code": 0, "minutes": minutes, "gain_points": gain, "gain_lower_points": lower}


def test_duration_and_gain_are_medians_and_the_bound_is_the_lowest(tmp_path: Path) -> None:
    found = measured(tmp_path, run(33.9, 49.0, 42.0), run(30.0, 60.0, 55.0), run(36.0, 50.0, 44.0))
    assert (found["minutes_median"], found["gain_points_median"], found["gain_lower_points_min"]) == (33.9, 50.0, 42.0)


@pytest.mark.parametrize(("gain", "lower", "told"), [(None, None, set()), (0.0, None, {"gain_points_median"})])
def test_a_run_without_a_gain_or_an_interval_has_a_duration(
    tmp_path: Path, gain: float | None, lower: float | None, told: set[str]
) -> None:
    found = measured(tmp_path, run(33.9, 49.0, 42.0), run(30.0, gain, lower))
    assert found.keys() == {"runs", "minutes_median"} | told


def test_a_run_that_was_stopped_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_demo, "run", lambda args, name, overrides: run(31.0, 50.0, 44.0))
    found = measured(tmp_path, run(33.9, 49.0, 42.0), run(0.1, None, None) | {"exit_code": 130})
    assert [found["runs"][f"seed-{seed}"]["minutes"] for seed in (1, 2)] == [33.9, 31.0]


def test_what_is_no_record_of_the_demo_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"benchmark": "rollout", "figures": {}}), encoding="utf-8")
    for path, words in ((other, "of the benchmark rollout"), (tmp_path / "none.json", "cannot be read")):
        with pytest.raises(UnsupportedCapabilityError, match=words):
            bench_demo.earlier_runs([path])
