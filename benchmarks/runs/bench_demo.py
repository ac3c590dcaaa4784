"""The main job: what the demo recipe learns, per seed, with its control and its floors.

Role: runs `dart-train run` once per seed and once with learning rate 0, each in a run directory of its own, and gathers what the runs
report. Rule: the seeds are named on the command line before anything runs; a run that does not learn is a figure, not an error. Hours of
runs may be measured in several goes: a finished run that an earlier record holds is taken over, with the commit it was measured on.
Memory is the host's: the peak of used memory (tmpfs counted) above what was used before the run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.earlier_records import add_records_argument, read_records
from benchmarks.machine import commit
from benchmarks.memory import MemoryPeak

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "dart_train" / "recipes" / "demo.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="declared beforehand")
    parser.add_argument(
        "--control-seed", type=int, default=None, help="seed of a run with learning rate 0; default: none"
    )
    parser.add_argument(
        "--baselines",
        type=int,
        default=0,
        help="episodes of the random and blank-screenshot policies, with the first seed",
    )
    add_records_argument(parser, "finished runs of a seed, and the control,")
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs" / "benchmark")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="passed on to dart-train run")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run every seed (and the control); figures per run, and the median over the seeds."""
    earlier, control = earlier_runs(args.records)
    runs = {}
    for seed in args.seeds:
        baselines = args.baselines if seed == args.seeds[0] else 0
        overrides = [f"run.seed={seed}", f"eval.baseline_episodes={baselines}"]
        runs[f"seed-{seed}"] = earlier.get(f"seed-{seed}") or run(args, f"demo-{seed}", overrides)
    figures: dict[str, Any] = {"runs": runs}
    if runs:
        figures["minutes_median"] = statistics.median(found["minutes"] for found in runs.values())
        gains, bounds = ([found[key] for found in runs.values()] for key in ("gain_points", "gain_lower_points"))
        if None not in gains:
            figures["gain_points_median"] = statistics.median(gains)
        if None not in bounds:
            figures["gain_lower_points_min"] = min(bounds)
    if args.control_seed is not None:
        figures["control"] = control or run(
            args,
            f"control-{args.control_seed}",
            [f"run.seed={args.control_seed}", "train.learning_rate=0.0", "eval.baseline_episodes=0"],
        )
    return figures


def earlier_runs(records: list[Path]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The finished runs by seed, and the finished control, that records of this benchmark hold."""
    runs: dict[str, Any] = {}
    control = None
    for _, figures in read_records(records, "demo"):
        runs |= {name: run for name, run in figures["runs"].items() if run["exit_code"] == 0}
        if (figures.get("control") or {}).get("exit_code") == 0:
            control = figures["control"]
    return runs, control


def run(args: argparse.Namespace, name: str, overrides: list[str]) -> dict[str, Any]:
    """One run of the recipe; what it reported."""
    settings = [f"run.name={name}", *overrides, *args.overrides]
    resumed = (args.runs_dir / name).exists()
    command = [sys.executable, "-m", "dart_train.cli", "run", str(RECIPE), "--runs-dir", str(args.runs_dir)]
    for setting in settings:
        command += ["--set", setting]
    began_s = time.monotonic()
    with MemoryPeak() as memory:
        code = subprocess.run(command, check=False).returncode
    page = args.runs_dir / name / "report" / "result.json"
    result = json.loads(page.read_text(encoding="utf-8")) if page.exists() else {}
    verdict = result.get("paired_evaluation")
    overall = verdict["overall"] if verdict else {}
    return {
        "commit": commit(),
        "settings": settings,
        "resumed": resumed,
        "exit_code": code,
        "minutes": round((time.monotonic() - began_s) / 60, 1),
        "memory_peak_gib": round(memory.peak_gib, 2),
        **{
            key: overall.get(key)
            for key in ("episodes", "before_percent", "after_percent", "gain_points", "gain_lower_points")
        },
        "families": verdict["families"] if verdict else None,
        "baselines_percent": result.get("baselines_percent"),
        "stages_s": result.get("stages_s"),
        "counts": result.get("counts"),
        "incidents": result.get("incidents"),
    }
