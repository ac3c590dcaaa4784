"""Partial rollouts (APRIL) and asynchronous rollouts against synchronous batches, in virtual time; with `--real`, real workers beside it.

Role: the figures `april_speedup` and `async_over_april`. Rule: throughput is trained samples (steps) per minute, so that an arm that
prefers short episodes gains nothing by it; the trained lengths are published beside it. Non-goals: decoupling in DART's setting
(`bench_decoupling`).
"""

from __future__ import annotations

import argparse
import importlib
from statistics import fmean
from typing import Any

from benchmarks.rollouts.april_grid import ARMS, GRID, Cell, scenario
from dart_train.simulation.outcome import SimulationOutcome, simulate


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Sizes of the benchmark."""
    command.add_argument("--seeds", type=int, default=2, help="seeds per cell and arm")
    command.add_argument(
        "--hours", type=float, default=2.0, help="simulated hours per arm, after half an hour of warm-up"
    )
    command.add_argument("--real", action="store_true", help="measure the real CPU parts, too")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    cells = {cell.name: measure_cell(cell, args.seeds, args.hours) for cell in GRID}
    tailed = [cells[cell.name] for cell in GRID if cell.long_tailed]
    figures: dict[str, Any] = {
        "april_speedup": _mean(tailed, "april_over_sync"),
        "april_speedup_min": min(row["april_over_sync"] for row in tailed),
        "async_over_april": _mean(tailed, "async_over_april"),
        "async_over_april_min": min(row["async_over_april"] for row in tailed),
        "async_partial_over_async": _mean(tailed, "async_partial_over_async"),
        "april_speedup_all_cells": _mean(list(cells.values()), "april_over_sync"),
        "virtual": cells,
    }
    if args.real:
        figures["real"] = importlib.import_module("benchmarks.rollouts.real_update").measure(args)
    return figures


def measure_cell(cell: Cell, seeds: int, hours: float) -> dict[str, Any]:
    """All arms in one cell, means over seeds."""
    arms = {
        name: _figures([simulate(scenario(cell, scheduling, seed, hours)) for seed in range(seeds)])
        for name, scheduling in ARMS.items()
    }
    rate = {name: arm["trained_rows_per_min"] for name, arm in arms.items()}
    return {
        "long_tailed": cell.long_tailed,
        "april_over_sync": round(rate["april"] / rate["sync"], 3),
        "async_over_april": round(rate["async"] / rate["april"], 3),
        "async_over_sync": round(rate["async"] / rate["sync"], 3),
        "async_partial_over_async": round(rate["async_partial"] / rate["async"], 3),
        "arms": arms,
    }


def _figures(outcomes: list[SimulationOutcome]) -> dict[str, Any]:
    def mean(values: list[float]) -> float:
        return round(fmean(values), 3)

    return {
        "trained_rows_per_min": mean([each.trained_rows_per_min for each in outcomes]),
        "actions_per_min": mean([each.actions_per_min for each in outcomes]),
        "env_util": mean([each.slots.utilisation for each in outcomes]),
        "worker_util": mean([each.workers.utilisation for each in outcomes]),
        "trainer_util": mean([each.trainer.utilisation for each in outcomes]),
        "staleness_mean": mean([each.staleness.mean for each in outcomes]),
        "staleness_max": max(each.staleness.max for each in outcomes),
        "stale_withheld": mean([each.withheld_fraction for each in outcomes]),
        "mean_steps_attempted": mean([each.mean_steps_attempted for each in outcomes]),
        "mean_steps_trained": mean([each.mean_steps_trained for each in outcomes]),
        "parked_per_hour": mean([each.parked / (each.window_s / 3600) for each in outcomes]),
        "lost": sum(each.lost for each in outcomes),
        "twice": sum(each.finished_twice + each.trained_twice for each in outcomes),
    }


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return round(fmean(float(row[key]) for row in rows), 3)
