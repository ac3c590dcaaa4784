"""What a finished run learned, over the desktop steps that it took: read from its database.

Role: `read_curve`, `read_evaluation`, `steps_to_reach`. Rule: desktop steps are those of all stored training rollouts, trained on or not,
up to the moment; evaluations count for none. Only episodes that one version wrote count. Non-goals: means over seeds (`figures`).
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dart_train.report.throughput import update_lines, workers_lines
from dart_train.report.utilisation_rows import training_workers

LEAST_EPISODES = 0.5
"""Of the fullest evaluation of a run: one that the end of training cut off before that is no point of a level."""
SMOOTHED = 3
"""Evaluations in a row whose mean tells that a level is reached, so that one lucky evaluation does not."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluation during training.

    Attributes:
        desktop_steps: Steps of training rollouts before it.
        train_s: Seconds since the first training rollout.
        episodes: Its episodes that one version wrote.
        success: Their share that was solved.
    """

    desktop_steps: int
    train_s: float
    episodes: int
    success: float


@dataclass(frozen=True, slots=True)
class RunCurve:
    """How a run learned.

    Attributes:
        points: Evaluations during training, in order.
        desktop_steps: All steps of training rollouts.
        rollouts: Training rollouts with a reward.
        masked: Training rollouts without one.
        updates: Train steps.
        staleness_mean: Mean over train steps of the mean staleness of their tokens.
        groups: What became of the groups of training, by state.
        workers_down_share: Of the inference workers' time, what they had failed for and were not back yet; None: not known.
        evaluation_share: What evaluations during training took of the desktops' time, of that of all episodes; None: not known.
    """

    points: Sequence[CurvePoint]
    desktop_steps: int
    rollouts: int
    masked: int
    updates: int
    staleness_mean: float | None
    groups: dict[str, int]
    evaluation_share: float | None = None
    workers_down_share: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def read_curve(run: Path) -> RunCurve:
    """Read a run folder.

    Args:
        run: The folder of a finished run.

    Returns:
        Its curve.
    """
    with closing(sqlite3.connect(f"file:{run / 'data.db'}?mode=ro", uri=True)) as store:
        rows = store.execute(
            "select phase, purpose, reward, started_at_s, stored_s, n_steps, version_min, version_max, duration_s "
            "from trajectories"
        ).fetchall()
        states = store.execute("select state, count(*) from groups where phase like 'train%' group by state").fetchall()
    trained = [row for row in rows if row[0].startswith("train")]
    first_s = min((row[3] for row in trained), default=0.0)
    phases: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        if row[0].startswith("eval-during") and row[2] is not None and row[6] is not None and row[6] == row[7]:
            phases[row[0]].append(row)
    evaluated_s = sum(row[8] for row in rows if row[0].startswith("eval-during"))
    busy_s = evaluated_s + sum(row[8] for row in trained)
    points = []
    for episodes in phases.values():
        middle_s = fmean(row[3] for row in episodes)
        points.append(
            CurvePoint(
                desktop_steps=sum(row[5] for row in trained if row[4] <= middle_s),
                train_s=round(middle_s - first_s, 1),
                episodes=len(episodes),
                success=round(sum(row[2] == 1 for row in episodes) / len(episodes), 4),
            )
        )
    lines = _lines(run / "metrics.jsonl")
    updates = [line for line in lines if line.get("kind") == "update"]
    workers = training_workers(update_lines(lines), workers_lines(lines))
    staleness = [line["staleness_mean"] for line in updates if line.get("staleness_mean") is not None]
    return RunCurve(
        points=sorted(points, key=lambda point: point.desktop_steps),
        desktop_steps=sum(row[5] for row in trained),
        rollouts=sum(row[2] is not None for row in trained),
        masked=sum(row[2] is None for row in trained),
        updates=max((line["update"] for line in updates), default=0),
        staleness_mean=round(fmean(staleness), 3) if staleness else None,
        groups=dict(states),
        evaluation_share=round(evaluated_s / busy_s, 4) if busy_s else None,
        workers_down_share=None if workers is None else round(workers.down, 4),
    )


def read_evaluation(result: Path) -> dict[str, dict[str, float]]:
    """Read the result of `dart_train.evaluation`.

    Args:
        result: Its `result.json`.

    Returns:
        By row, the number of episodes and the share that was solved.
    """
    rows = json.loads(result.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: {"episodes": row["episodes"], "success": row["success"]["value"]} for row in rows}


def steps_to_reach(curve: RunCurve, level: float, final: float) -> int | None:
    """Find after how many desktop steps a run first reached a level.

    Args:
        curve: How it learned.
        level: A share of solved episodes.
        final: Success of its last version, a point of its own at the end.

    Returns:
        The steps before the last of the first `SMOOTHED` evaluations in a row whose mean is at least the level; all steps where only the
        last version reaches it; None where it does not either.
    """
    fullest = max((point.episodes for point in curve.points), default=0)
    points = [point for point in curve.points if point.episodes >= LEAST_EPISODES * fullest]
    for end in range(SMOOTHED, len(points) + 1):
        if fmean(point.success for point in points[end - SMOOTHED : end]) >= level:
            return points[end - 1].desktop_steps
    return curve.desktop_steps if final >= level else None


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    found = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue  # a process was killed while it wrote the line
    return found
