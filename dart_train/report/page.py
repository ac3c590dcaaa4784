"""The page of a report: one HTML file that opens anywhere, with charts, tables and example trajectories.

Role: turns a `RunReport` (plain data that `dart_train.report.build` gathers) into `report/index.html` and `report/result.json`. Rule:
images are embedded, nothing is loaded from elsewhere, and every number of the page is also in the JSON. Non-goals: database access,
statistics (`dart_train.evaluation.paired_evaluation`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dart_train.evaluation.paired_evaluation import Gain, PairedEvaluation
from dart_train.evaluation.results import INFEASIBLE, ResultRow
from dart_train.evaluation.reward_marks import describe_rewards


@dataclass(frozen=True, slots=True)
class ExampleStep:
    """One step of an example.

    Attributes:
        number: The step's number, from 1.
        image_uri: The screenshot that the policy saw, as a data URI; None where there is none.
        missing: Why there is no screenshot; empty where there is one.
        text: The response of the policy.
        action: The action that was performed, formatted for display.
    """

    number: int
    image_uri: str | None
    missing: str
    text: str
    action: str


@dataclass(frozen=True, slots=True)
class Example:
    """One trajectory of the report.

    Attributes:
        title: Whether it succeeded, and its family.
        instruction: What the policy was asked to do.
        reward: The reward in [0, 1].
        succeeded: Whether that is a success.
        end: Why the episode ended.
        steps_S: The steps that are shown.
        omitted_steps: How many steps in the middle are not shown.
    """

    title: str
    instruction: str
    reward: float
    succeeded: bool
    end: str
    steps_S: Sequence[ExampleStep]
    omitted_steps: int = 0


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart.

    Attributes:
        label: Its name in the legend.
        x: Horizontal values.
        y: Vertical values, as many as `x`.
        points: What the line is a mean of, drawn as points without a line: horizontal and vertical values.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    points: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        title: Its title.
        x_label: Name and unit of the horizontal axis.
        y_label: Name or unit of the vertical axis.
        curves: Its lines.
    """

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A row of the table of masked episodes.

    Attributes:
        family: A task family, or `all families`.
        cause: The end reason of the masked episodes; empty in the row of all families.
        episodes: All episodes of the family.
        masked: The masked episodes of this row.
        percent: Masked episodes in percent of the family's episodes.
        versions: The policy versions of the masked episodes; empty without masked episodes.
    """

    family: str
    cause: str
    episodes: int
    masked: int
    percent: float
    versions: str


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """A batch that was not trained on.

    Attributes:
        version: The policy version that it should have changed.
        cause: Why it was not trained on.
        trajectories: Trajectories of which steps were quarantined.
        steps: Quarantined steps.
    """

    version: int
    cause: str
    trajectories: int
    steps: int


@dataclass(frozen=True, slots=True)
class StageThroughput:
    """Rates of one stage, from the begin of its first episode to the end of its last, without pauses.

    Attributes:
        stage: Name of the stage.
        minutes: Length of that time.
        episodes_per_min: Finished episodes per minute.
        actions_per_min: Performed actions (steps) per minute.
        sampled_tokens_per_s: Tokens sampled by the policy per second; None where not recorded.
        trained_rows_per_min: Steps trained on per minute; None for a stage without training.
        trained_tokens_per_s: Tokens trained on per second; None for a stage without training.
        lag_s: Mean seconds from the end of a trajectory to the end of the train step that used it; None where not recorded.
    """

    stage: str
    minutes: float
    episodes_per_min: float
    actions_per_min: float
    sampled_tokens_per_s: float | None
    trained_rows_per_min: float | None
    trained_tokens_per_s: float | None
    lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How much one part of a run was used while the policy was trained.

    Attributes:
        what: Name of the quantity.
        percent: Its value in percent.
        definition: What is measured, in one sentence.
    """

    what: str
    percent: float
    definition: str


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that the report of a run shows.

    Attributes:
        name: Name of the run.
        recipe: The recipe as plain data.
        paired_evaluation: The evaluation before and after training on feasible tasks, None where no item has a reward in both.
        paired_infeasible: That on infeasible tasks, which are in no other rate; None where no item has a reward in both.
        conclusion: One sentence: whether the policy learned.
        untrained: Success on the validation split where the run trains nothing; empty where it trains.
        baselines: Mean reward in percent of the random and of the blank-screenshot policy on feasible tasks, by name.
        test: Success on the test split, as in an evaluation of a stored version; empty where there was no test.
        test_number: How often the test split was evaluated in this run, by `dart-train eval`, too; 0 without a test of the run itself.
        stages_s: Seconds per finished stage.
        counts: Totals of the run by name.
        masked: Table of masked episodes.
        failed_batches: Batches that were not trained on, and what of them is quarantined.
        throughput: Rates per stage; empty where no episode is recorded.
        utilisation: Utilisation during training; empty where no train step is recorded.
        throughput_charts: Rates and utilisation over time.
        charts: Curves of the warm start and of training.
        examples: Trajectories of the evaluation after training, or of the only one.
        examples_note: One sentence on examples that cannot be shown; empty where all are.
        incidents: One sentence per restart of a component and the like.
        alarms: One sentence for each time that the reward rose while evaluation during training did not.
        evaluations: Results of evaluations of stored versions (`dart_train.evaluation`), as plain data.
        rewards: One sentence each on rewards of training and evaluation that are not the plain verdict of evaluators.
    """

    name: str
    recipe: Mapping[str, Any]
    paired_evaluation: PairedEvaluation | None
    conclusion: str
    baselines: Mapping[str, float]
    stages_s: Mapping[str, float]
    counts: Mapping[str, int]
    paired_infeasible: Gain | None = None
    untrained: Sequence[ResultRow] = ()
    test: Sequence[ResultRow] = ()
    test_number: int = 0
    masked: Sequence[MaskedRow] = ()
    failed_batches: Sequence[FailedBatch] = ()
    throughput: Sequence[StageThroughput] = ()
    utilisation: Sequence[Utilisation] = ()
    throughput_charts: Sequence[Chart] = ()
    charts: Sequence[Chart] = ()
    examples: Sequence[Example] = ()
    examples_note: str = ""
    incidents: Sequence[str] = ()
    alarms: Sequence[str] = ()
    evaluations: Sequence[Mapping[str, Any]] = ()
    rewards: Sequence[str] = ()

    def figures(self) -> dict[str, Any]:
        """Convert the numbers of the report to plain data.

        Returns:
            What `report/result.json` holds.
        """
        return {
            "name": self.name,
            "conclusion": self.conclusion,
            "paired_evaluation": None if self.paired_evaluation is None else self.paired_evaluation.as_dict(),
            "paired_infeasible": None if self.paired_infeasible is None else asdict(self.paired_infeasible),
            "untrained": [asdict(row) for row in self.untrained],
            "baselines_percent": dict(self.baselines),
            "test": {"number": self.test_number, "rows": [asdict(row) for row in self.test]},
            "stages_s": dict(self.stages_s),
            "counts": dict(self.counts),
            "masked": [asdict(row) for row in self.masked],
            "failed_batches": [asdict(row) for row in self.failed_batches],
            "throughput": [asdict(row) for row in self.throughput],
            "utilisation": [asdict(row) for row in self.utilisation],
            "incidents": list(self.incidents),
            "alarms": list(self.alarms),
            "evaluations": [dict(each) for each in self.evaluations],
            "rewards": list(self.rewards),
            "recipe": dict(self.recipe),
        }


def write_report(report: RunReport, folder: Path) -> Path:
    """Write `index.html` and `result.json`.

    Args:
        report: What to show.
        folder: Where to write; it is created where it does not exist.

    Returns:
        The path of the page.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    folder.mkdir(parents=True, exist_ok=True)
    environment = Environment(
        loader=PackageLoader("dart_train.report"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        describe_rewards=describe_rewards,
        infeasible=INFEASIBLE,
        report=report,
        charts=_draw(report.charts),
        throughput_charts=_draw(report.throughput_charts),
        recipe_json=json.dumps(report.recipe, indent=2),
    )
    (folder / "result.json").write_text(json.dumps(report.figures(), indent=2) + "\n", encoding="utf-8")
    target = folder / "index.html"
    target.write_text(page, encoding="utf-8")
    return target


def _draw(charts: Sequence[Chart]) -> list[str]:
    """SVG text of every chart that has a point."""
    return [_svg(chart) for chart in charts if any(len(curve.x) or len(curve.points) for curve in chart.curves)]


def _svg(chart: Chart) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for curve in chart.curves:
        marker = "o" if len(curve.x) < 3 and not curve.points else None
        (line,) = axes.plot(curve.x, curve.y, label=curve.label, linewidth=1.6, marker=marker)
        if curve.points:
            axes.plot(*zip(*curve.points, strict=True), ".", color=line.get_color(), markersize=4, alpha=0.5)
    axes.set_title(chart.title, fontsize=10)
    axes.set_xlabel(chart.x_label, fontsize=9)
    axes.set_ylabel(chart.y_label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if len(chart.curves) > 1 or any(curve.points for curve in chart.curves):
        axes.legend(fontsize=8)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]
