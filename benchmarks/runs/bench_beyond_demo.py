"""Twelve families of `basics`, five of which require reading words: what one run of `twelve-families.toml` learns.

Role: runs the recipe, then evaluates the version that validation chose against version 0 on the test split, with the held-out families.
Rule: recipe and families are named before anything runs; the same command goes on where an earlier one stopped; a policy that falls short
is a figure, not an error. The macro mean is the mean over families of the share of solved tasks. Minutes are those of the run's stages, so
that a run in several goes counts all of them. The curve is of the sampled training rollouts, so it lies below that of greedy evaluations.
Non-goals: several seeds, the demo's four families (`benchmarks demo`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_envs.errors import UnsupportedCapabilityError
from dart_train.data_manager.catalog import task_family
from dart_train.evaluation.results import HELD_OUT, TRAINED
from dart_train.report.build import read_metrics
from dart_train.run.paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "dart_train" / "recipes" / "twelve-families.toml"
CURVE_POINTS = 10
WRONG_INPUT = 2
"""Exit code of `dart-train` for settings or a run folder that it refuses."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark.

    Args:
        parser: Its parser.
    """
    parser.add_argument("--runs-dir", type=Path, help="folder of the run; default: runs/benchmark in the repository")
    parser.add_argument("--test-tasks", type=int, default=420, help="tasks of the test split, over all families")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="passed on to dart-train run")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the recipe and the test of its result.

    Args:
        args: See `add_arguments`.

    Returns:
        The figures.

    Raises:
        UnsupportedCapabilityError: `dart-train run` refuses the settings or the folder.
    """
    command, runs_dir = [sys.executable, "-m", "dart_train.cli"], args.runs_dir or ROOT / "runs" / "benchmark"
    run = [*command, "run", str(RECIPE), "--name", "twelve-families", "--runs-dir", str(runs_dir)]
    for setting in args.overrides:
        run += ["--set", setting]
    code = subprocess.run(run, check=False).returncode
    if code == WRONG_INPUT:
        raise UnsupportedCapabilityError(
            "dart-train run refused the settings or the folder: it says above what to change"
        )
    folder = runs_dir / "twelve-families"
    report = _read(folder / "report" / "result.json")
    tested: dict[str, Any] = {}
    test_code = None
    if report:
        found = folder / "evaluations" / "against-version-0.json"
        found.unlink(missing_ok=True)
        test = [*command, "eval", str(folder), "--split", "test", "--against", "0", "--tasks", str(args.test_tasks)]
        test_code = subprocess.run([*test, "--json", str(found)], check=False).returncode
        tested = _read(found)
    codes = {"exit_code": code, "test_exit_code": test_code}
    measured = {**codes, "settings": args.overrides, **figures(report, tested)}
    return measured | {"curve": curve(read_metrics(RunPaths(folder)))}


def figures(report: Mapping[str, Any], tested: Mapping[str, Any]) -> dict[str, Any]:
    """Gather what was learned.

    Args:
        report: `report/result.json` of the run; empty where there is none.
        tested: What `dart-train eval --against 0` wrote; empty where there is nothing.

    Returns:
        The figures; those of a missing part are left out.
    """
    found: dict[str, Any] = {}
    if report:
        families = (report["paired_evaluation"] or {}).get("families", {})
        found |= {
            "minutes": round(sum(report["stages_s"].values()) / 60, 1),
            "stages_s": report["stages_s"],
            "counts": report["counts"],
            "incidents": report["incidents"],
            "validation": report["paired_evaluation"],
            "validation_macro_before_percent": macro([each["before_percent"] for each in families.values()]),
            "validation_macro_percent": macro([each["after_percent"] for each in families.values()]),
        }
    if tested:
        gains, trained = tested["against"]["gains"], _trained(tested["rows"])
        found |= {
            "tested_version": tested["version"],
            "test": gains,
            "macro_before_percent": macro([gains[name]["before_percent"] for name in trained]),
            "macro_percent": macro([gains[name]["after_percent"] for name in trained]),
            "held_out": gains.get(HELD_OUT),
        }
    return found


def curve(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Gather how the sampled rollouts of training went.

    Args:
        metrics: The lines of a run's metrics.

    Returns:
        Of `CURVE_POINTS` parts of equal numbers of episodes, in order: the median of the policy versions that they began with, the mean
        reward of each family in percent, and the mean over the families.
    """
    trained = [
        line
        for line in metrics
        if line.get("kind") == "episode" and line["phase"].startswith("train") and line["reward"] is not None
    ]
    points = []
    for part in range(CURVE_POINTS):
        episodes = trained[part * len(trained) // CURVE_POINTS : (part + 1) * len(trained) // CURVE_POINTS]
        rewards: dict[str, list[float]] = defaultdict(list)
        for line in episodes:
            rewards[task_family(line["task"])].append(line["reward"])
        if episodes:
            families = {name: round(100 * statistics.fmean(found), 1) for name, found in sorted(rewards.items())}
            points.append(
                {
                    "episodes": len(episodes),
                    "version": statistics.median_low(line["versions"][0] for line in episodes),
                    "macro_percent": macro(list(families.values())),
                    "families": families,
                }
            )
    return points


def macro(percents: Sequence[float]) -> float | None:
    """The mean over families; None without one."""
    return round(statistics.fmean(percents), 1) if percents else None


def _trained(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the trained families: the rows between those of the two groups."""
    names = [row["name"] for row in rows]
    end = names.index(HELD_OUT) if HELD_OUT in names else len(names)
    return names[names.index(TRAINED) + 1 : end]


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
