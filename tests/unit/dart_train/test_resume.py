"""The same command goes on wherever the last one died, and does nothing twice; components are fakes, the store is real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_harness import RECIPE, STAGES, RunHarness, SimulatedCrash, untrained_then_trained

from dart_train.config import Recipe
from dart_train.model.weights import write_directory_atomically
from dart_train.run.orchestrator import RunFailed
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


async def test_an_extended_run_trains_on_and_is_evaluated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    await harness.run()
    started = harness.starts.copy()
    harness.recipe = Recipe.model_validate(RECIPE | {"train": {"updates": 3}})
    verdict = await harness.run()
    assert verdict is not None
    assert (harness.updates, verdict.overall.gain_points) == (3, 0.0)
    again = harness.starts - started
    assert (again["trainer"], again["rollout-oracle"], again["warm-start"]) == (1, 0, 0)
    async with harness.launcher() as run:
        for name, count in (PHASES | {"eval-after-2": 6, "eval-random-2": 2, "eval-blank-2": 2}).items():
            assert len([each async for each in run.client.trajectories(name)]) == count
    stages = json.loads((harness.paths.report / "result.json").read_text())["stages_s"]
    assert tuple(stages) == STAGES


async def test_demonstrations_are_played_again_after_all_of_them_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    harness.reward = lambda item: 0.0
    with pytest.raises(RunFailed, match="no demonstration succeeded"):
        await harness.run()
    harness.reward = untrained_then_trained
    assert await harness.run() is not None


async def test_a_corrected_recipe_goes_on_after_all_demonstrations_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    harness.reward = lambda item: 0.0 if item.task_id.startswith("basics/press_nth/") else untrained_then_trained(item)
    sections = {"tasks": {"families": ["press_nth"]}}
    harness.recipe = Recipe.model_validate(RECIPE | sections)
    with pytest.raises(RunFailed, match="any setting of the recipe may be changed now"):
        await harness.run()
    harness.recipe = Recipe.model_validate(RECIPE | {"tasks": {"families": ["tick_nth"]}})
    assert await harness.run() is not None


@pytest.mark.parametrize("phase", ["eval-before", "eval-after"])
async def test_an_evaluation_without_any_reward_is_not_finished_and_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    harness = RunHarness(tmp_path, monkeypatch, eval={"episodes": 2})
    harness.reward = lambda item: None if item.phase == phase else untrained_then_trained(item)
    with pytest.raises(RunFailed, match=f"{phase}: none of 2 episodes got a reward"):
        await harness.run()
    assert phase not in RunState.load(harness.paths.state).stages_s
    verdict = await harness.run()
    assert verdict is not None
    assert verdict.overall.episodes == 2


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
