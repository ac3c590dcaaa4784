"""The report shows what the report holds, and nothing in it is taken as markup."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from dart_train.report.page import Chart, Curve, Example, ExampleStep, RunReport, write_report
from dart_train.report.paired_evaluation import compare_evaluations


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((40, 64, 3), 200, dtype=np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


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
        examples=[Example("after", "Press <Lemon>", 1.0, "done", [ExampleStep(png(), "Action: click", (10, 10))])],
        incidents=["vllm-1 restarted"],
    )
    page = write_report(report, tmp_path).read_text(encoding="utf-8")
    assert "25.0 %" in page
    assert "75.0 %" in page
    assert "+50.0" in page
    assert "<svg" in page
    assert "Press &lt;Lemon&gt;" in page
    assert "vllm-1 restarted" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    figures = json.loads((tmp_path / "result.json").read_text())
    assert figures["paired_evaluation"]["overall"]["gain_points"] == 50.0
    assert figures["baselines_percent"] == {"random policy": 1.5}
