"""The report of a run: one HTML file that opens anywhere, with curves, tables and example trajectories.

Role: turns a `RunReport` (plain data that the orchestrator gathered) into `report/index.html` and `report/result.json`. Rule: pictures are
inlined, nothing is loaded from elsewhere, every number shown is also in the JSON. Non-goals: no database access, no statistics
(`dart_train.report.paired_evaluation`).
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dart_train.report.paired_evaluation import PairedEvaluation


@dataclass(frozen=True, slots=True)
class ExampleStep:
    """One step of an example: the picture that the policy saw as PNG, what it said, and where it clicked (x, y in that picture)."""

    png: bytes
    text: str
    click_xy: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Example:
    """One trajectory to show."""

    title: str
    instruction: str
    reward: float | None
    end: str
    steps_S: Sequence[ExampleStep]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: title, axis names with units, lines."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True)
class MaskedCount:
    """Of how many episodes (all, one family's, one policy version's) how many have no verdict, in numbers and in percent."""

    what: str
    episodes: int
    masked: int
    percent: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything a reader of a run wants to know.

    baselines: success in percent of the random and blank-screenshot policies, by name. stages_s: seconds per stage.
    """

    name: str
    recipe: Mapping[str, Any]
    paired_evaluation: PairedEvaluation | None
    conclusion: str
    baselines: Mapping[str, float]
    stages_s: Mapping[str, float]
    counts: Mapping[str, int]
    masked: Sequence[MaskedCount] = ()
    charts: Sequence[Chart] = ()
    examples: Sequence[Example] = ()
    incidents: Sequence[str] = field(default_factory=tuple)

    def figures(self) -> dict[str, Any]:
        """The same numbers as plain data."""
        return {
            "name": self.name,
            "conclusion": self.conclusion,
            "paired_evaluation": None if self.paired_evaluation is None else self.paired_evaluation.as_dict(),
            "baselines_percent": dict(self.baselines),
            "stages_s": dict(self.stages_s),
            "counts": dict(self.counts),
            "masked": [asdict(share) for share in self.masked],
            "incidents": list(self.incidents),
            "recipe": dict(self.recipe),
        }


def write_report(report: RunReport, folder: Path) -> Path:
    """Write `index.html` and `result.json` below `folder`; returns the path of the page."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    folder.mkdir(parents=True, exist_ok=True)
    environment = Environment(loader=PackageLoader("dart_train.report"), autoescape=select_autoescape(default=True))
    environment.filters["png_uri"] = lambda png: "data:image/png;base64," + base64.b64encode(png).decode()
    page = environment.get_template("report.html.j2").render(
        report=report,
        charts=[_svg(chart) for chart in report.charts if any(len(curve.x) > 0 for curve in chart.curves)],
        examples=[(example, [_marked(step) for step in example.steps_S]) for example in report.examples],
        recipe_json=json.dumps(report.recipe, indent=2),
    )
    (folder / "result.json").write_text(json.dumps(report.figures(), indent=2) + "\n", encoding="utf-8")
    target = folder / "index.html"
    target.write_text(page, encoding="utf-8")
    return target


def _svg(chart: Chart) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for curve in chart.curves:
        axes.plot(curve.x, curve.y, label=curve.label, linewidth=1.6)
    axes.set_title(chart.title, fontsize=10)
    axes.set_xlabel(chart.x_label, fontsize=9)
    axes.set_ylabel(chart.y_label, fontsize=9)
    axes.grid(alpha=0.3)
    if len(chart.curves) > 1:
        axes.legend(fontsize=8)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _marked(step: ExampleStep) -> ExampleStep:
    """The step with a ring drawn where the policy clicked."""
    if step.click_xy is None:
        return step
    from PIL import Image, ImageDraw

    image = Image.open(io.BytesIO(step.png)).convert("RGB")
    x, y = step.click_xy
    draw = ImageDraw.Draw(image)
    for radius, colour in ((9, "white"), (8, "red"), (7, "red")):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return ExampleStep(png=buffer.getvalue(), text=step.text, click_xy=step.click_xy)
