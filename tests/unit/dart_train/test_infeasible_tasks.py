"""Infeasible tasks are in no rate of a run: a policy that answers FAIL everywhere solves them all and has learned nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from run_harness import RunHarness
from test_evaluation_during_training import train_until_evaluated

from dart_agent.data_client.wire import EpisodeResult
from dart_agent.types import Purpose, WorkItem
from dart_envs.types import EndReason
from dart_train.config import RecipeError
from dart_train.data_commands.open_run import open_run
from dart_train.evaluation import during_training
from dart_train.evaluation.during_training import METRICS_KIND, describe_evaluation
from dart_train.evaluation.stored import chosen_version, validated_versions, version_of_run
from dart_train.report.build import build_report, read_metrics
from dart_train.report.page import RunReport
from dart_train.run.phases import report_phases

FEASIBLE, IMPOSSIBLE = ("os",), ("vlc", "web")
LAST = 2
EVALUATOR = {
    "func": "exact_match", "result": {"type": "vm_command_line", "command": "echo"},
    "expected": {"type": "rule", "rules": {"expected": "x"}},
}  # fmt: skip
ONLY_INFEASIBLE = "so that validation has tasks that can be done."


def infeasible(item: WorkItem) -> bool:
    return item.task_id.split("/")[1] in IMPOSSIBLE


def learned_to_say_fail(item: WorkItem) -> float:
    """The policy before training does what can be done; all other policies answer FAIL."""
    if item.purpose is Purpose.DEMO:
        return 1.0
    return float(infeasible(item) != (item.phase == "eval-before"))


def run_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, families: tuple[str, ...], **sections: Any) -> RunHarness:
    """A run over task files; the evaluations have two tasks of each family."""
    folder = tmp_path / "examples"
    for family in (*FEASIBLE, *IMPOSSIBLE):
        (folder / family).mkdir(parents=True)
        evaluator = {"func": "infeasible"} if family in IMPOSSIBLE else EVALUATOR
        for number in range(40):
            task: dict[str, Any] = {
                "id": f"{family}-{number}", "snapshot": "os", "instruction": "Do it.", "related_apps": [], "config": [],
                "image": "basic", "evaluator": evaluator,
            }  # fmt: skip
            (folder / family / f"t{number}.json").write_text(json.dumps(task), encoding="utf-8")
    count = 2 * len(families)
    given: dict[str, Any] = {
        "tasks": {"suite": "mine", "folder": str(folder), "families": list(families), "max_steps": 2},
        "eval": {"episodes": count, "baseline_episodes": count},
    }
    harness = RunHarness(tmp_path, monkeypatch, **given | sections)
    harness.reward = learned_to_say_fail
    harness.version = lambda item: 0 if item.phase == "eval-before" else LAST
    return harness


async def report_of(harness: RunHarness) -> RunReport:
    async with harness.launcher() as run:
        return await build_report(run.client, harness.recipe, harness.paths, run.state, report_phases(run.state))


async def test_a_policy_that_learned_to_say_fail_has_not_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = run_over(tmp_path, monkeypatch, (*FEASIBLE, *IMPOSSIBLE))
    paired = await harness.run()
    assert paired is not None
    assert (paired.overall.episodes, paired.overall.gain_points) == (2, -100.0)
    assert set(paired.families) == set(FEASIBLE)
    report = await report_of(harness)
    assert report.conclusion.startswith("The policy did not learn: success 100.0 % → 0.0 % on 2 validation episodes")
    assert set(report.baselines.values()) == {0.0}
    apart = report.paired_infeasible
    assert apart is not None
    assert (apart.episodes, apart.before_percent, apart.after_percent) == (4, 0.0, 100.0)
    assert "<td>infeasible tasks</td><td>4</td><td>0.0 %</td><td>100.0 %</td>" in (
        harness.paths.report / "index.html"
    ).read_text(encoding="utf-8")
    figures = json.loads((harness.paths.report / "result.json").read_text(encoding="utf-8"))
    assert figures["paired_infeasible"]["gain_points"] == 100.0
    assert "eval-after: 0.0 % of 2 episodes, 100.0 % of 4 episodes of infeasible tasks" in harness.printed.getvalue()


async def test_a_version_is_not_chosen_by_infeasible_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = run_over(tmp_path, monkeypatch, (*FEASIBLE, *IMPOSSIBLE))
    await harness.run()
    with open_run(harness.paths.root) as run:
        assert chosen_version(run).version == 0
        found = validated_versions(run)
    assert {version: (each.value, each.count) for version, each in found.items()} == {0: (1.0, 2), LAST: (0.0, 2)}
    shutil.rmtree(tmp_path / "examples")
    with pytest.raises(
        RecipeError, match=r"it cannot be told which evaluated tasks are infeasible: .* no folder of task"
    ):
        version_of_run(harness.paths, harness.recipe, "best")


async def test_an_evaluation_of_infeasible_tasks_only_is_said_and_chooses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = run_over(tmp_path, monkeypatch, IMPOSSIBLE)
    assert await harness.run() is None
    report = await report_of(harness)
    assert report.conclusion.startswith("Only infeasible tasks have a reward both before and after training")
    assert report.conclusion.endswith(ONLY_INFEASIBLE)
    assert report.baselines == {}
    assert report.paired_infeasible is not None
    page = (harness.paths.report / "index.html").read_text(encoding="utf-8")
    assert "<td>infeasible tasks</td><td>4</td>" in page
    with pytest.raises(RecipeError, match=r"was evaluated on infeasible tasks only, .* give a number as --version"):
        version_of_run(harness.paths, harness.recipe, "best")
    assert version_of_run(harness.paths, harness.recipe, "1").validation is None


async def test_a_run_that_trains_nothing_says_that_its_tasks_are_infeasible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = run_over(tmp_path, monkeypatch, IMPOSSIBLE, train={"updates": 0})
    await harness.run()
    report = await report_of(harness)
    assert "its evaluation has infeasible tasks only" in report.conclusion
    assert report.conclusion.endswith(ONLY_INFEASIBLE)
    assert [row.name for row in report.untrained] == ["infeasible tasks"]


async def test_an_evaluation_during_training_has_them_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"episodes": 6, "every_updates": 1, "during_episodes": 6}
    harness = run_over(tmp_path, monkeypatch, (*FEASIBLE, *IMPOSSIBLE), eval=settings)
    monkeypatch.setattr(during_training, "LOOK_S", 0.01)
    train_until_evaluated(monkeypatch)
    await asyncio.wait_for(harness.run(), 60)
    line = next(line for line in read_metrics(harness.paths) if line["kind"] == METRICS_KIND)
    assert (line["success"], line["episodes"], line["mixed_episodes"]) == (0.0, 2, 0)
    assert (line["infeasible_success"], line["infeasible_episodes"]) == (1.0, 4)
    (chart,) = (each for each in (await report_of(harness)).charts if each.title.startswith("Success on validation"))
    assert (chart.curves[-1].label, list(chart.curves[-1].y)) == ("infeasible tasks", [1.0])


def test_an_evaluation_during_training_of_infeasible_tasks_only_has_no_success() -> None:
    played = EpisodeResult(
        task_id="mine/web/t0", family="web", repeat=0, rollout_id="r", reward=1.0, end=EndReason.FAIL, steps=1,
        duration_s=1.0, version_min=1, version_max=1,
    )  # fmt: skip
    assert describe_evaluation([played], infeasible=["mine/web/t0"]) is None
    found = describe_evaluation([played])
    assert found is not None
    assert "infeasible_episodes" not in found
