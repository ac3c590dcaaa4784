"""The benchmark of exploration, small: its figures, the folder that it goes on from, and intervals."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.exploration import bench_exploration, cells
from benchmarks.exploration.figures import ratio
from dart_envs.errors import UnsupportedCapabilityError


def arguments(*more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_exploration.add_arguments(parser)
    return parser.parse_args(["--steps", "8", "--pages", "6", "--applications", "1", "2", "--seeds", "1", *more])


def test_every_arm_explores_every_application_and_what_is_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = bench_exploration.measure(arguments("--work", str(tmp_path)))
    for table, arms in bench_exploration.TABLES.items():
        assert set(figures[table]) == set(arms) <= set(cells.ARMS)
        for found in figures[table].values():
            assert [run["application"] for run in found["runs"]] == ["simulated/1", "simulated/2"]
            assert [run["steps"] for run in found["runs"]] == [8, 8]
            assert found["screens_per_step"] == pytest.approx(found["screens"] / 8, abs=1e-3)
    screens = {arm: found["screens"] for arm, found in figures["with_snapshots"].items()}
    assert figures["qicrl_over_random"] == round(screens["qicrl"] / screens["random"], 2)
    assert figures["qicrl_model_over_random"] == round(screens["qicrl_model"] / screens["random"], 2)
    assert [figures["forks"][desktops]["steps"] for desktops in ("1", "2", "4")] == [2, 4, 8]
    assert all(run["returns_by_snapshot"] == 0 for run in figures["without_snapshots"]["breadth_first"]["runs"])

    async def refuse(*_: object) -> cells.Cell:
        raise AssertionError("it is done already")

    monkeypatch.setattr(bench_exploration, "explore", refuse)
    assert bench_exploration.measure(arguments("--work", str(tmp_path))) == figures
    with pytest.raises(UnsupportedCapabilityError, match="other settings"):
        bench_exploration.measure(arguments("--work", str(tmp_path), "--pages", "7"))


def test_a_ratio_is_paired_by_application_and_seed() -> None:
    ours, theirs = {"a": [10.0, 12.0], "b": [40.0, 44.0]}, {"a": [5.0, 6.0], "b": [20.0, 22.0]}
    assert ratio(ours, theirs) == {"ratio": 2.0, "interval": [2.0, 2.0]}
    low, high = ratio(ours, {"a": [10.0, 12.0], "b": [20.0, 22.0]})["interval"]
    assert low == 1.0 < high == 2.0
    with pytest.raises(ValueError, match="did not explore the same"):
        ratio(ours, {"a": [5.0, 6.0]})
