"""The test split: judged once, at the end, apart from what is compared, and counted where it was judged again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_harness import RECIPE, RunHarness

from dart_agent.types import Purpose, WorkItem
from dart_envs.tasks import load_suite
from dart_train.config import Recipe
from dart_train.evaluation.results import TEST_RECORD
from dart_train.report.build import build_report
from dart_train.report.page import RunReport, write_report
from dart_train.run import preflight
from dart_train.run.phases import TEST, evaluation, held_out_families, report_phases

HELD_OUT = {"delete_line", "pick_day"}


def harness_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, episodes: int = 8) -> RunHarness:
    return RunHarness(tmp_path, monkeypatch, eval={"episodes": 6, "baseline_episodes": 2, "test_episodes": episodes})


async def report_of(harness: RunHarness) -> RunReport:
    async with harness.launcher() as run:
        return await build_report(run.client, harness.recipe, harness.paths, run.state, report_phases(run.state))


def test_the_test_is_of_the_test_split_with_the_held_out_families() -> None:
    recipe = Recipe.model_validate(RECIPE | {"eval": {"episodes": 6, "test_episodes": 8}})
    suite = load_suite("basics")
    assert set(held_out_families(recipe)) == HELD_OUT
    judged, compared = evaluation(recipe, "test-2").select, evaluation(recipe, "eval-after").select
    assert judged is not None
    assert compared is not None
    assert (judged.split, set(judged.families or ()), judged.count) == ("test", {*recipe.tasks.families, *HELD_OUT}, 8)
    assert (compared.split, compared.families, compared.count) == ("validation", list(recipe.tasks.families), 6)
    assert not set(suite.tasks("test", list(HELD_OUT))) & set(suite.tasks("train"))


def test_a_recipe_chooses_its_held_out_families() -> None:
    tasks = {**RECIPE["tasks"], "held_out_families": ["tick_two", "press_both"]}
    recipe = Recipe.model_validate(RECIPE | {"tasks": tasks, "eval": {"episodes": 6, "test_episodes": 8}})
    judged = evaluation(recipe, TEST).select
    assert judged is not None
    assert judged.families == [*recipe.tasks.families, "tick_two", "press_both"]


async def test_the_last_policy_is_tested_after_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = harness_with(tmp_path, monkeypatch)
    phases: list[str] = []

    def reward(item: WorkItem) -> float | None:
        phases.append(item.phase)
        family = item.task_id.split("/")[1]
        if item.phase == TEST:
            return float(family not in HELD_OUT or family == "pick_day")
        return float(item.purpose is Purpose.DEMO or item.phase == "eval-after")

    harness.reward = reward
    evaluation_result = await harness.run()
    assert evaluation_result is not None
    assert evaluation_result.overall.episodes == 6, "the test is not part of the comparison"
    first = phases.index(TEST)
    assert not {"eval-before", "train", "eval-after"} & set(phases[first:])
    report = await report_of(harness)
    rows = {row.name: row for row in report.test}
    assert list(rows) == ["trained families", "press_nth", "tick_nth", "held-out families", "delete_line", "pick_day"]
    assert (rows["trained families"].episodes, rows["trained families"].success.value) == (4, 1.0)
    assert (rows["held-out families"].episodes, rows["held-out families"].success.value) == (4, 0.5)
    assert rows["held-out families"].success.lower == pytest.approx(0.150, abs=0.001), "Wilson's interval of 2 of 4"
    assert report.test_number == 1
    write_report(report, tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "<h2>Test split</h2>" in page
    assert "times in this run" not in page
    written = json.loads((tmp_path / "page" / "result.json").read_text(encoding="utf-8"))
    assert (written["test"]["number"], len(written["test"]["rows"])) == (1, 6)


async def test_a_second_test_is_counted_openly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = harness_with(tmp_path, monkeypatch)
    await harness.run()
    async with harness.launcher() as run:
        run.state.stages_s.pop(TEST)
        run.state.begin_anew(TEST)
        run.state.save(harness.paths.state)
    await harness.run()
    report = await report_of(harness)
    assert report.test_number == 2
    harness.paths.evaluations.mkdir()
    (harness.paths.evaluations / TEST_RECORD).write_text('["test-v1-9x1-t0"]', encoding="utf-8")
    assert (await report_of(harness)).test_number == 3, "that of `dart-train eval` counts, too"
    write_report(report, tmp_path / "page")
    assert "was evaluated 2 times in this run" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


async def test_a_finished_run_can_be_tested_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    await harness.run()
    report = await report_of(harness)
    assert (report.test, report.test_number) == ([], 0)
    trained = harness.updates
    later = harness_with(tmp_path, monkeypatch)
    later.updates = trained
    await later.run()
    assert (await report_of(later)).test_number == 1
    assert later.starts["trainer"] == 0


async def test_training_on_before_the_first_test_is_no_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    await harness.run()
    later = harness_with(tmp_path, monkeypatch)
    later.updates = harness.updates
    longer = later.recipe.train.model_copy(update={"updates": later.recipe.train.updates + 1})
    later.recipe = later.recipe.model_copy(update={"train": longer})
    await later.run()
    assert later.starts["trainer"] == 1
    report = await report_of(later)
    assert len(report.test) > 0
    assert report.test_number == 1


@pytest.mark.parametrize(("episodes", "refused"), [(8, False), (10**6, True)])
def test_more_test_episodes_than_there_are_tasks_are_refused(episodes: int, refused: bool) -> None:
    sections: dict[str, Any] = RECIPE | {"eval": {"episodes": 6, "test_episodes": episodes}}
    recipe = Recipe.model_validate(sections)
    found = preflight._count_problems(recipe, load_suite("basics"))
    assert any("eval.test_episodes" in each for each in found) is refused
