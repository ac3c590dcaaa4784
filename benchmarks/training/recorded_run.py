"""What a finished run tells of its trainer: how long it idled, and how long its versions took to the inference workers.

Role: `run_figures(run)` reads the metrics of a run folder. Rule: formulas are those of `dart_train.utilisation`; a version counts where
every worker took it before the next one came. Its seconds begin when it is published, completely written, and end when the last worker
serves it; the workers' polling is part of them. Non-goals: running it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_envs.errors import UnsupportedCapabilityError
from dart_train.report.build import read_metrics
from dart_train.report.throughput import update_lines
from dart_train.run.paths import RunPaths
from dart_train.utilisation import TrainerActivity, active_intervals, total_s, trainer_shares


def run_figures(run: Path) -> dict[str, Any]:
    """Gather the figures of a run.

    Args:
        run: Its folder.

    Returns:
        `trainer_idle_share`, `publish_to_serving_s_per_gb` (median; None where no version was taken), and what they are made of.

    Raises:
        UnsupportedCapabilityError: It has no train step.
    """
    lines = read_metrics(RunPaths(run))
    updates = update_lines(lines)
    seconds = total_s(active_intervals((each.begin_s, each.end_s) for each in updates))
    if seconds <= 0:
        raise UnsupportedCapabilityError(f"{run} has no train step in its metrics: give --run the folder of a run")
    shares = trainer_shares(
        {
            TrainerActivity.TRAINING: sum(each.step_s for each in updates),
            TrainerActivity.PUBLISHING: sum(each.publish_s for each in updates),
        },
        seconds,
    )
    per_gb = seconds_per_gb(lines)
    return {
        "trainer_idle_share": round(shares.waiting, 4),
        "trainer_publishing_share": round(shares.publishing, 4),
        "train_steps": len(updates),
        "publish_to_serving_s_per_gb": round(statistics.median(per_gb), 3) if per_gb else None,
        "publish_to_serving_s_per_gb_range": [round(min(per_gb), 3), round(max(per_gb), 3)] if per_gb else None,
        "versions_taken": len(per_gb),
        "workers": max((len(line["workers"]) for line in lines if line.get("kind") == "weights"), default=0),
    }


def seconds_per_gb(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds per 10^9 bytes from the publication of a version until all workers serve it.

    Args:
        lines: Metric lines of a run.

    Returns:
        One value per version that all workers took.
    """
    published = {
        line["version"]: (line["time_s"], line["published_bytes"])
        for line in lines
        if line.get("kind") == "update" and line.get("published_bytes")
    }
    serving = {line["version"]: line["time_s"] for line in lines if line.get("kind") == "weights"}
    return [
        max(0.0, serving[version] - published_s) / (size / 1e9)
        for version, (published_s, size) in published.items()
        if version in serving
    ]
