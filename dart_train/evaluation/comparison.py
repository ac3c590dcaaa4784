"""Evaluations side by side: of runs that differ in their training seed, and of two policies on the same tasks.

Role: `compare_seeds`, from results to means over seeds; `paired_gains`, from two results to gains by group of tasks. Rule: results are
compared only where tasks, repeats, sampling, budgets and rewards agree.
Non-goals: formulas (`statistics`, `paired_evaluation`), reading arguments (`command`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_train.config import RecipeError
from dart_train.evaluation.paired_evaluation import Gain, gain
from dart_train.evaluation.reward_marks import REWARD_CONDITIONS
from dart_train.evaluation.statistics import mean_over_seeds


def read_result(file: Path) -> dict[str, Any]:
    """Read the result of an evaluation.

    Args:
        file: Its `result.json`, or the file of `--json`.

    Returns:
        The result as plain data.

    Raises:
        RecipeError: The file is none.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or not {"source", "version", "split", "conditions", "rows"} <= content.keys():
        raise RecipeError(f"{file} is no result of dart-train eval: give its result.json, or the file of --json")
    return content


def compare_seeds(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Average evaluations over training seeds, row by row.

    Args:
        results: An evaluation per seed, as plain data.

    Returns:
        Rows with `name`, `mean`, `lower`, `upper` and `values`, in the order of the first evaluation; the interval is cut off at 0 and 1.

    Raises:
        RecipeError: Two evaluations differ in tasks, repeats, sampling, budget or rewards, or are of one run or of the same weights.
    """
    for other in results[1:]:
        _require_equal_conditions(results[0], other)
    digests = [digest for result in results if (digest := result.get("digest")) is not None]
    if len({result["source"] for result in results}) < len(results) or len(set(digests)) < len(digests):
        raise RecipeError(
            "two evaluations are of one run or of the same weights: give one of each training seed; two versions of a run are compared "
            "with --paired"
        )
    by_name = [{row["name"]: row["success"]["value"] for row in result["rows"]} for result in results]
    rows = []
    for name in by_name[0]:
        values = [each[name] for each in by_name if name in each]
        estimate = mean_over_seeds(values)
        lower = None if estimate.lower is None else max(0.0, estimate.lower)
        upper = None if estimate.upper is None else min(1.0, estimate.upper)
        rows.append({"name": name, "mean": estimate.value, "lower": lower, "upper": upper, "values": values})
    return rows


def paired_gains(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Gain]:
    """Pair two evaluations task by task.

    Args:
        before: The evaluation of one policy, as plain data.
        after: That of the other one, which is compared with the first.

    Returns:
        The gain of `after` over `before`, in the share of solved episodes, by row of `after`. Tasks without a reward in one of them are
        left out, and rows without a common task.

    Raises:
        RecipeError: They differ in tasks, repeats, sampling, budget or rewards, or one of them does not say which tasks were solved.
    """
    _require_equal_conditions(before, after)
    for each in (before, after):
        if any("solved_by_task" not in row for row in each["rows"]):
            raise RecipeError(
                f"the result of version {each['version']} of {each['source']} does not say which tasks were solved: evaluate it again"
            )
    earlier = {row["name"]: row["solved_by_task"] for row in before["rows"]}
    gains = {}
    for row in after["rows"]:
        pairs = [
            (earlier[row["name"]][task_id], solved)
            for task_id, solved in row["solved_by_task"].items()
            if task_id in earlier.get(row["name"], {})
        ]
        if pairs:
            gains[row["name"]] = gain(pairs)
    return gains


def format_gains(gains: Mapping[str, Gain]) -> str:
    """Lay gains out as text.

    Args:
        gains: Gains by name of their tasks.

    Returns:
        Lines: a head, and a row for each.
    """
    lines = [f"{'':24} {'tasks':>6} {'before':>9} {'after':>9} {'gain':>8}   points, paired by task"]
    for name, each in gains.items():
        lines.append(
            f"{name:24} {each.episodes:>6} {each.before_percent:>7.1f} % {each.after_percent:>7.1f} % {each.gain_points:>+8.1f}   "
            f"{each.describe_interval()}"
        )
    return "\n".join(lines)


def _require_equal_conditions(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    if other["split"] != first["split"]:
        raise RecipeError(f"{other['source']} was evaluated on {other['split']}, {first['source']} on {first['split']}")
    before, now = ({**REWARD_CONDITIONS, **each["conditions"]} for each in (first, other))
    differing = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differing:
        told = ", ".join(f"{key} {now.get(key)} and {before.get(key)}" for key in differing)
        raise RecipeError(
            f"{other['source']} and {first['source']} cannot be compared, they differ in {told}: evaluate both with one recipe"
        )
