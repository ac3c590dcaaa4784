"""The same command goes on wherever the last one died, and does nothing twice; components are fakes, the store is real."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_bench import STAGES, Died, RunBench

from dart_train.state import RunState
from dart_train.weights import write_whole

PHASES = {"demo": 4, "eval-before": 6, "eval-after": 6, "eval-random": 2, "eval-blank": 2}


async def episodes(bench: RunBench) -> dict[str, int]:
    async with bench.launcher() as run:
        return {name: len([each async for each in run.client.trajectories(name)]) for name in PHASES}


@pytest.mark.parametrize("stage", STAGES)
async def test_a_launcher_that_dies_before_it_marks_a_stage_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    bench = RunBench(tmp_path, monkeypatch)
    with pytest.raises(Died):
        await bench.run(dies_before_marking=stage)
    assert stage not in RunState.load(bench.paths.state).stages_s
    verdict = await bench.run()
    assert verdict is not None
    assert verdict.overall.gain_points == 100.0
    assert tuple(RunState.load(bench.paths.state).stages_s) == STAGES
    assert bench.starts["init-model"] == bench.starts["warm-start"] == 1
    assert bench.updates == 2
    assert await episodes(bench) == PHASES


async def test_a_finished_run_only_writes_its_report_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = RunBench(tmp_path, monkeypatch)
    first = await bench.run()
    started = bench.starts.copy()
    (bench.paths.report / "index.html").unlink()
    assert await bench.run() == first
    assert (bench.paths.report / "index.html").exists()
    assert bench.starts - started == {"data-manager": 1}


def test_a_directory_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "warm"
    (tmp_path / ".warm-of-a-killed-writer").mkdir()

    def torn(staging: Path) -> None:
        (staging / "config.json").write_text("{}")
        raise Died

    with pytest.raises(Died):
        write_whole(target, torn)
    assert list(tmp_path.iterdir()) == []
    write_whole(target, lambda staging: (staging / "config.json").touch())
    assert [path.name for path in tmp_path.rglob("*")] == ["warm", "config.json"]
