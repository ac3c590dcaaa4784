"""Evaluations of runs that differ in their training seed, side by side.

Role: `compare_seeds`, from results to means over seeds. Rule: results are compared only where tasks, repeats, sampling, budgets and rewards
agree.
Non-goals: formulas (`statistics`), printing (`command`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_train.config import RecipeError
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
        Rows with `name`, `mean`, `lower`, `upper` and `values`, in the order of the first evaluation.

    Raises:
        RecipeError: Two evaluations differ in tasks, repeats, sampling, budget or rewards, or are of the same weights.
    """
    first = results[0]
    for other in results[1:]:
        if other["split"] != first["split"]:
            raise RecipeError(
                f"{other['source']} was evaluated on {other['split']}, {first['source']} on {first['split']}"
            )
        before, now = ({**REWARD_CONDITIONS, **each["conditions"]} for each in (first, other))
        differing = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        if differing:
            told = ", ".join(f"{key} {now.get(key)} and {before.get(key)}" for key in differing)
            raise RecipeError(
                f"{other['source']} and {first['source']} cannot be compared, they differ in {told}: evaluate both with one recipe"
            )
    if len({(result["source"], result["version"]) for result in results}) < len(results):
        raise RecipeError("an evaluation is given twice: give one of each training seed")
    by_name = [{row["name"]: row["success"]["value"] for row in result["rows"]} for result in results]
    rows = []
    for name in by_name[0]:
        values = [each[name] for each in by_name if name in each]
        estimate = mean_over_seeds(values)
        rows.append(
            {"name": name, "mean": estimate.value, "lower": estimate.lower, "upper": estimate.upper, "values": values}
        )
    return rows
