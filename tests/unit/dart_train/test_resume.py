"""The same command goes on wherever the last one died, and does nothing twice; components are fakes, the store is real."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_harness import STAGES, RunHarness, SimulatedCrash

from dart_train.model.weights import write_directory_atomically
from dart_train.run.state import RunState

PHASES = {"demo": 4, "eval-before": 6, "eval-after": 6, "eval-random": 2, "eval-blank": 2}


async def episodes(harness: RunHarness) -> dict[str, int]:
    async with harness.launcher() as run:
        return {name: len([each async for each in run.client.trajectories(name)]) for name in PHASES}


@pytest.mark.parametrize("stage", STAGES)
async def test_a_launcher_that_dies_before_it_marks_a_stage_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    with pytest.raises(SimulatedCrash):
        await harness.run(crashes_before_marking=stage)
    assert stage not in RunState.load(harness.paths.state).stages_s
    verdict = await harness.run()
    assert verdict is not None
    assert verdict.overall.gain_points == 100.0
    assert tuple(RunState.load(harness.paths.state).stages_s) == STAGES
    assert harness.starts["init-model"] == harness.starts["warm-start"] == 1
    assert harness.updates == 2
    assert await episodes(harness) == PHASES


async def test_a_finished_run_only_writes_its_report_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    first = await harness.run()
    started = harness.starts.copy()
    (harness.paths.report / "index.html").unlink()
    assert await harness.run() == first
    assert (harness.paths.report / "index.html").exists()
    assert harness.starts - started == {"data-manager": 1}


def test_a_directory_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "warm"
    (tmp_path / ".warm-of-a-killed-writer").mkdir()

    def torn(staging: Path) -> None:
        (staging / "config.json").write_text("{}")
        raise SimulatedCrash

    with pytest.raises(SimulatedCrash):
        write_directory_atomically(target, torn)
    assert list(tmp_path.iterdir()) == []
    write_directory_atomically(target, lambda staging: (staging / "config.json").touch())
    assert [path.name for path in tmp_path.rglob("*")] == ["warm", "config.json"]
