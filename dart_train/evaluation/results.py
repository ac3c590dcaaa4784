"""The result of an evaluation: rates with intervals by family, held-out families and infeasible tasks apart.

Role: from the episodes of one phase to plain data and a table, and what is stored of earlier ones. Rule: only episodes that the evaluated
version alone wrote count; what is missing is counted; a task that cannot be done is in no rate of tasks that can. Non-goals: playing
episodes (`stored`), formulas (`statistics`).
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dart_agent.data_client.wire import EpisodeResult, PhaseSpec
from dart_envs.success import SUCCESS_AT, count_successes
from dart_train.evaluation.reward_marks import describe_rewards
from dart_train.evaluation.statistics import Estimate, pass_rate, success_rate

RESULT_FILE = "result.json"
TEST_RECORD = "test-split.json"
PASS_AT = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TRAINED, HELD_OUT, INFEASIBLE = "trained families", "held-out families", "infeasible tasks"


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Success on some tasks.

    Attributes:
        name: A family, or one of `TRAINED`, `HELD_OUT` and `INFEASIBLE`.
        episodes: Episodes that count.
        success: Share of solved episodes over the tasks.
        mean_reward: Mean reward of the episodes, which partial credit raises above the share of solved ones.
        pass_at_k: pass@k by k, as far as tasks have k episodes.
        solved_by_task: Share of solved episodes by task id.
    """

    name: str
    episodes: int
    success: Estimate
    mean_reward: float
    pass_at_k: Mapping[int, Estimate]
    solved_by_task: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StoredEvaluation:
    """An evaluation of one stored policy version.

    Attributes:
        source: The run folder or the model.
        version: Number of the version.
        digest: Digest of its weights, None where none is recorded.
        split: The split.
        conditions: What two evaluations must share to be compared: tasks, repeats, sampling, budgets and rewards.
        rows: All tasks of trained families, each of these families, held-out families together and each, infeasible tasks.
        missing: Items without a reward.
        other_versions: Episodes that another version wrote in, which do not count.
        test_number: How many evaluations on the test split the source has had with this one; None: another split.
    """

    source: str
    version: int
    digest: str | None
    split: str
    conditions: Mapping[str, Any]
    rows: Sequence[ResultRow]
    missing: int
    other_versions: int
    test_number: int | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def episodes_of(results: Sequence[EpisodeResult], version: int) -> list[EpisodeResult]:
    """Leave out the episodes that another version wrote in.

    Args:
        results: Episodes that have a reward.
        version: The version that is evaluated.

    Returns:
        The episodes that it alone wrote.
    """
    return [each for each in results if (each.version_min, each.version_max) == (version, version)]


def separate_infeasible(
    episodes: Sequence[EpisodeResult], infeasible: Collection[str]
) -> tuple[list[EpisodeResult], list[EpisodeResult]]:
    """Separate the episodes of tasks that cannot be done, which are in no rate of the other ones.

    Args:
        episodes: The episodes.
        infeasible: Ids of tasks that cannot be done (`dart_train.run.phases.infeasible_tasks`).

    Returns:
        The episodes of tasks that can be done, and those of tasks that cannot.
    """
    feasible = [each for each in episodes if each.task_id not in infeasible]
    return feasible, [each for each in episodes if each.task_id in infeasible]


def result_rows(
    episodes: Sequence[EpisodeResult],
    *,
    trained_families: Collection[str],
    infeasible: Collection[str],
    success_at: float = SUCCESS_AT,
) -> list[ResultRow]:
    """Compute the rows of an evaluation.

    Args:
        episodes: The episodes that count.
        trained_families: Families that the policy was trained on; the others are held out.
        infeasible: Ids of tasks that cannot be done.
        success_at: Least reward of a solved episode.

    Returns:
        The rows: trained families together and each, held-out families together and each, infeasible tasks.
    """
    feasible, impossible = separate_infeasible(episodes, infeasible)
    trained = [each for each in feasible if each.family in trained_families]
    held_out = [each for each in feasible if each.family not in trained_families]
    return [
        *_rows(TRAINED, trained, success_at),
        *_rows(HELD_OUT, held_out, success_at),
        *_rows(INFEASIBLE, impossible, success_at)[:1],
    ]


def _rows(name: str, episodes: Sequence[EpisodeResult], success_at: float) -> list[ResultRow]:
    """The row of all these episodes, and one for each of their families."""
    by_family: dict[str, list[EpisodeResult]] = defaultdict(list)
    for each in episodes:
        by_family[each.family].append(each)
    groups = [(name, list(episodes)), *sorted(by_family.items())] if episodes else []
    return [_row(label, members, success_at) for label, members in groups]


def _row(name: str, episodes: Sequence[EpisodeResult], success_at: float) -> ResultRow:
    rewards: dict[str, list[float]] = defaultdict(list)
    for each in episodes:
        rewards[each.task_id].append(each.reward)
    success = success_rate(rewards, success_at)
    assert success is not None, "a row has an episode"
    found = {k: pass_rate(rewards, k, success_at) for k in PASS_AT}
    return ResultRow(
        name,
        len(episodes),
        success,
        fmean(each.reward for each in episodes),
        {k: estimate for k, estimate in found.items() if estimate is not None},
        {task_id: count_successes(each, success_at) / len(each) for task_id, each in sorted(rewards.items())},
    )


def format_mean_rewards(episodes: Sequence[EpisodeResult], infeasible: Collection[str]) -> str:
    """Format the mean reward of an evaluation for a line of progress.

    Args:
        episodes: Its episodes that have a reward.
        infeasible: Ids of tasks that cannot be done.

    Returns:
        The mean reward in percent, that of infeasible tasks apart.
    """
    groups = zip(("", f" of {INFEASIBLE}"), separate_infeasible(episodes, infeasible), strict=True)
    return ", ".join(
        f"{100 * fmean(each.reward for each in group):.1f} % of {len(group)} episodes{name}"
        for name, group in groups
        if group
    )


def comparison_conditions(evaluation: PhaseSpec, task_ids: Iterable[str], limits: Mapping[str, Any]) -> dict[str, Any]:
    """Gather what two evaluations must share to be compared.

    Args:
        evaluation: The phase.
        task_ids: Its tasks.
        limits: Budgets of an episode other than steps, and what judged it.

    Returns:
        Tasks as a digest, repeats, sampling, budgets, and rewards.
    """
    ids = sorted(task_ids)
    return {
        "tasks": len(ids),
        "tasks_sha256": hashlib.sha256("\n".join(ids).encode()).hexdigest(),
        "samples_per_task": evaluation.rollouts_per_task,
        "temperature": evaluation.sampling.temperature,
        "max_tokens": evaluation.sampling.max_tokens,
        "max_steps": evaluation.max_steps,
        **limits,
    }


def format_table(evaluation: StoredEvaluation) -> str:
    """Lay the rows out as text.

    Args:
        evaluation: The evaluation.

    Returns:
        Lines: what was evaluated, a row for each group and family, and what does not count.
    """
    conditions = evaluation.conditions
    lines = [
        f"version {evaluation.version} of {evaluation.source}, split {evaluation.split}: {conditions['tasks']} tasks x "
        f"{conditions['samples_per_task']}, temperature {conditions['temperature']:g}, at most {conditions['max_steps']} steps",
        f"{'':24} {'tasks':>6} {'episodes':>9} {'success':>9}  {'95 % interval':<16} pass@k",
    ]
    for row in evaluation.rows:
        passes = "  ".join(f"{k}: {_percent(each.value)}" for k, each in row.pass_at_k.items() if k > 1)
        lines.append(
            f"{row.name:24} {row.success.count:>6} {row.episodes:>9} {_percent(row.success.value):>9}  "
            f"{_percent(row.success.lower)} to {_percent(row.success.upper):<8} {passes}".rstrip()
        )
    rewards = describe_rewards(conditions)
    if rewards is not None:
        lines.append(f"rewards: {rewards}")
    if evaluation.missing or evaluation.other_versions:
        lines.append(
            f"{evaluation.missing} items without a reward, {evaluation.other_versions} episodes of other versions: left out"
        )
    if evaluation.test_number is not None and evaluation.test_number > 1:
        lines.append(
            f"evaluation number {evaluation.test_number} on the test split: it is no independent test any more"
        )
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read the finished evaluations of a run.

    Args:
        folder: The folder `evaluations` of the run.

    Returns:
        Their results as plain data, by name of their folder; empty where there is none.
    """
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"*/{RESULT_FILE}"))]


def evaluations_on_test(folder: Path) -> list[tuple[str, ...]]:
    """Read which evaluations used the test split.

    Args:
        folder: Where evaluations of the source are.

    Returns:
        Names of the folders of each use, several where versions were compared, in the order in which they began.
    """
    file = folder / TEST_RECORD
    names = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [(each,) if isinstance(each, str) else tuple(each) for each in names]
