"""A version of a run as a model folder to share: complete weights, and a card with what its evaluations found.

Role: `export_version`. Rule: an adapter is merged into its model; the result appears only when it is complete; the card tells every stored
evaluation of exactly these weights, with its interval, and how often the test split was used. Non-goals: uploading.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_agent.errors import AgentError
from dart_agent.inference.weights.adapters import is_adapter
from dart_train.config import RecipeError
from dart_train.evaluation.comparison import read_result
from dart_train.evaluation.results import RESULT_FILE
from dart_train.evaluation.reward_marks import describe_rewards
from dart_train.evaluation.statistics import Estimate
from dart_train.evaluation.stored import StoredVersion
from dart_train.model.adapters import merge_version
from dart_train.model.model_card import add_evaluations
from dart_train.model.weights import ORIGIN_FILE, write_directory_atomically


def export_version(version: StoredVersion, out: Path) -> list[dict[str, Any]]:
    """Write a version as a complete model folder for transformers and vLLM.

    Args:
        version: The version.
        out: The folder; it must not exist, or be empty.

    Returns:
        The evaluations that its card tells, as plain data.

    Raises:
        RecipeError: The folder is not empty, or the weights cannot be read.
    """
    if out.exists() and any(out.iterdir()):
        raise RecipeError(f"{out} is not empty: choose another folder")
    source = version.start if version.record is None else Path(version.record.path)
    evaluations = evaluations_of(version)

    def save(directory: Path) -> None:
        if is_adapter(source):
            directory.rmdir()
            merge_version(source, version.start, directory)
            shutil.copyfile(source / "README.md", directory / "README.md")
        else:
            shutil.copytree(source, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", ORIGIN_FILE))
        add_evaluations(directory, [*_own_validation(version), *evaluation_lines(evaluations)])

    try:
        write_directory_atomically(out, save)
    except (AgentError, OSError) as error:
        raise RecipeError(f"version {version.version} of {version.source} cannot be exported: {error}") from error
    return evaluations


def _own_validation(version: StoredVersion) -> list[str]:
    """The run's own evaluations on validation, by which the best version is chosen."""
    if version.validation is None:
        return []
    reward = version.recipe.reward
    mark = describe_rewards(reward.described(reward.evaluation)) or ""
    return [f"| validation | in the run itself, which chooses by it | | {_interval(version.validation)} | {mark} |"]


def evaluations_of(version: StoredVersion) -> list[dict[str, Any]]:
    """Read the stored evaluations of a version's weights.

    Args:
        version: The version.

    Returns:
        Results of `dart-train eval` as plain data, validation before test.
    """
    found = [read_result(file) for file in sorted(version.folder.glob(f"*/{RESULT_FILE}"))]
    own = [each for each in found if each["version"] == version.version and each.get("digest") == version.digest]
    return sorted(own, key=lambda each: str(each["split"]), reverse=True)


def evaluation_lines(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write evaluations as rows of a Markdown table.

    Args:
        evaluations: Results of `dart-train eval` as plain data.

    Returns:
        A row for each group of tasks: split, tasks, episodes, success with its interval, what judged it where no evaluator did, use of
        the test split.
    """
    lines = []
    for each in evaluations:
        marks = [] if each.get("test_number") is None else [f"use {each['test_number']} of the test split"]
        rewards = describe_rewards(each["conditions"])
        use = "; ".join(marks if rewards is None else [rewards, *marks])
        for row in each["rows"]:
            lines.append(
                f"| {each['split']} | {row['name']} | {row['episodes']} | {_interval(Estimate(**row['success']))} | {use} |"
            )
    return lines


def _interval(success: Estimate) -> str:
    interval = ""
    if success.lower is not None and success.upper is not None:
        interval = f" ({100 * success.lower:.1f} to {100 * success.upper:.1f})"
    return f"{100 * success.value:.1f} %{interval}"
