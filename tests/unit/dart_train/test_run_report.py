"""What the report of a run tells, gathered from a real store; and `dart-train report` on runs in every state."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from run_harness import PICTURE, STAGES, RunHarness, SimulatedCrash
from typer.testing import CliRunner

from dart_train.cli import app
from dart_train.metrics import append_metrics
from dart_train.report.build import build_report
from dart_train.report.page import RunReport
from dart_train.run import components
from dart_train.run.phases import report_phases
from dart_train.run.state import run_lock


def report_on(run_dir: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["report", str(run_dir), *options])


def refusal(result: Result) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == 2, result.output
    (sentence,) = result.stderr.strip().splitlines()
    return sentence


async def report_of(harness: RunHarness) -> RunReport:
    async with harness.launcher() as run:
        return await build_report(run.client, harness.recipe, harness.paths, run.state, report_phases(run.state))


async def test_the_story_of_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    for version in (1, 2):
        append_metrics(
            harness.paths.metrics, {"kind": "update", "version": version, "reward_mean": 0.5, "reward/press_nth": 1.0}
        )
    append_metrics(harness.paths.metrics, {"kind": "warmup", "images": 8, "loss": 2.0})
    with harness.paths.metrics.open("a") as torn:
        torn.write('{"kind": "upd')
    await harness.run()
    report = await report_of(harness)
    assert report.name == "small"
    assert report.conclusion.startswith("The policy learned: 0.0 % → 100.0 % on 6 validation episodes")
    assert report.paired_evaluation is not None
    assert set(report.paired_evaluation.families) == {"press_nth", "tick_nth"}
    assert report.baselines == {"random policy": 0.0, "blank screenshot": 0.0}
    assert tuple(report.stages_s) == STAGES
    assert report.counts["trajectories stored"] == 4 + 6 + 6 + 2 + 2
    assert report.counts["policy version at the end"] == 2
    assert [(share.what, share.episodes, share.masked) for share in report.masked] == [
        ("all episodes", 16, 0),
        ("press_nth", 8, 0),
        ("tick_nth", 8, 0),
        ("policy version 0", 16, 0),
    ]
    charts = {chart.title: {curve.label: list(curve.y) for curve in chart.curves} for chart in report.charts}
    assert charts["Reward of training rollouts"] == {"all": [0.5, 0.5], "press_nth": [1.0, 1.0]}
    assert charts["Warm start"] == {"loss": [2.0]}
    assert [example.title for example in report.examples] == [
        f"{when} training · {family}" for when in ("before", "after") for family in ("press_nth", "tick_nth")
    ]
    assert {example.reward for example in report.examples} == {0.0, 1.0}
    assert all(len(example.steps_S) == 2 and example.instruction for example in report.examples)


async def test_examples_show_where_the_policy_clicked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch, desktops={"resolution": (640, 400)})
    harness.action = {"type": "click", "x": 400, "y": 200}
    await harness.run()
    report = await report_of(harness)
    assert {step.click_xy for example in report.examples for step in example.steps_S} == {(160, 80)}
    page = (harness.paths.report / "index.html").read_text()
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
        for text in re.findall(r"data:image/png;base64,([^\"]+)", page)
    ]
    assert len(shown) == 4 * 2
    for picture in shown:
        assert picture.shape == PICTURE.shape
        changed = np.argwhere((picture != PICTURE).any(axis=-1))
        assert changed.mean(axis=0).round().tolist() == [80, 160]  # rows are y
        assert np.abs(changed - [80, 160]).max() == 9
        assert picture[80, 160 + 8].tolist() == [255, 0, 0]
        assert (picture[78:83, 158:163] == PICTURE[78:83, 158:163]).all()


async def test_an_action_without_a_place_marks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    harness.action = {"type": "wait", "duration_s": 1.0}
    await harness.run()
    assert {step.click_xy for example in (await report_of(harness)).examples for step in example.steps_S} == {None}


def test_a_finished_run_is_reported_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    asyncio.run(harness.run())
    (harness.paths.report / "result.json").unlink()
    result = report_on(harness.paths.root, "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["paired_evaluation"]["overall"]["gain_points"] == 100.0


@pytest.mark.parametrize("stage", ["demos", "eval-before", "eval-after"])
def test_an_interrupted_run_is_reported_as_far_as_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    with pytest.raises(SimulatedCrash):
        asyncio.run(harness.run(crashes_before_marking=stage))
    result = report_on(harness.paths.root)
    assert result.exit_code == 0, result.output
    page = harness.paths.report / "index.html"
    assert result.stdout == f"The run has no paired evaluation yet.\n{page}\n"
    assert "no paired evaluation yet" in page.read_text()


def test_a_run_that_is_going_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    asyncio.run(report_of(harness))
    with run_lock(harness.paths):
        assert "another dart-train is running" in refusal(report_on(harness.paths.root))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "is not a run directory" in refusal(report_on(tmp_path / "nowhere"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("resolved.json", '{"format": 1, "recipe": {"run": {"name": "small"}, "robots": 3}}', "unknown key `robots`"),
        ("resolved.json", '{"run": {"na', "is damaged"),
        ("resolved.json", '{"run": {"name": "small"}, "robots": 3}', "made by an older version of DART"),
        ("state.json", '{"format": 1, "stages_s": {}, "robots": 3}', "is damaged"),
        ("state.json", '{"sta', "is damaged"),
        ("state.json", '{"stages_s": {}, "incidents": []}', "made by an older version of DART"),
        ("state.json", '{"format": 2}', "made by a newer version of DART"),
    ],
)
def test_files_of_another_version_and_damaged_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str, reason: str
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    asyncio.run(report_of(harness))
    (harness.paths.root / file).write_text(content)
    assert reason in refusal(report_on(harness.paths.root))


def test_a_store_that_cannot_be_read_ends_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    asyncio.run(report_of(harness))
    for path in harness.paths.root.glob("data.db*"):
        path.unlink()
    harness.paths.database.write_text("not a database" * 100)
    restarted = components._python_module
    monkeypatch.setattr(components, "_python_module", lambda *args, **more: restarted(*args, **more | {"restarts": 0}))
    result = report_on(harness.paths.root)
    assert result.exit_code == 1
    assert "the report cannot be written" in result.stderr
    assert "file is not a database" in result.stderr
