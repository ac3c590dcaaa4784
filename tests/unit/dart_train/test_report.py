"""The report shows what the report holds, and nothing in it is taken as markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.types import Purpose, SamplingParams, WorkItem
from dart_train.evaluation.paired_evaluation import compare_evaluations
from dart_train.report import examples
from dart_train.report.examples import MAX_IMAGE_BYTES, embed_image
from dart_train.report.page import Chart, Curve, Example, ExampleStep, FailedBatch, RunReport, write_report

PIXELS = np.full((40, 64, 3), 200, dtype=np.uint8)


def test_report_shows_the_verdict_curves_and_examples(tmp_path: Path) -> None:
    before = {(f"basics/a/{i}", 0): float(i % 4 == 0) for i in range(40)}
    after = {(f"basics/a/{i}", 0): float(i % 4 != 1) for i in range(40)}
    report = RunReport(
        name="demo",
        recipe={"run": {"name": "demo"}},
        paired_evaluation=compare_evaluations(before, after),
        conclusion="It learned.",
        baselines={"random policy": 1.5},
        stages_s={"demos": 12.0},
        counts={"episodes": 80},
        charts=[Chart("Reward", "policy version", "mean reward", [Curve("train", [0, 1], [0.2, 0.6])])],
        examples=[
            Example(
                "Success",
                "Press <Lemon>",
                1.0,
                True,
                "done",
                [ExampleStep(1, embed_image(PIXELS), "", "Action", "click")],
            )
        ],
        incidents=["vllm-1 restarted"],
        alarms=["the training reward rose alone"],
        failed_batches=[FailedBatch(7, "the gradient has the norm 5000", 16, 60)],
    )
    page = write_report(report, tmp_path).read_text(encoding="utf-8")
    assert "25.0 %" in page
    assert "75.0 %" in page
    assert "+50.0" in page
    assert "<svg" in page
    assert "Press &lt;Lemon&gt;" in page
    assert "vllm-1 restarted" in page
    assert '<li class="bad">the training reward rose alone</li>' in page
    assert '<td>7</td><td class="text">the gradient has the norm 5000</td><td>16</td><td>60</td>' in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    figures = json.loads((tmp_path / "result.json").read_text())
    assert figures["paired_evaluation"]["overall"]["gain_points"] == 50.0
    assert figures["baselines_percent"] == {"random policy": 1.5}


def test_an_embedded_image_is_bounded_whatever_it_shows() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2160, 3840, 3), dtype=np.uint8)
    uri = embed_image(noise, (1920, 1080))
    assert uri.startswith("data:image/jpeg;base64,")
    assert len(uri) < 1.4 * MAX_IMAGE_BYTES
    assert embed_image(PIXELS).startswith("data:image/png;base64,")


def test_a_long_trajectory_is_shown_by_its_first_and_last_steps() -> None:
    item = WorkItem("roll", "group", "basics/press_nth/0001", Purpose.EVAL, SamplingParams(), 50, "eval-after")
    trajectory, _ = fake_trajectory(item, steps=50)
    example = examples._example(cast(Any, None), trajectory, "press_nth", (640, 400))
    assert [step.number for step in example.steps_S] == [1, 2, 3, 4, 5, 46, 47, 48, 49, 50]
    assert example.omitted_steps == 40
    assert {step.missing for step in example.steps_S} == {"no screenshot is stored for this step"}
