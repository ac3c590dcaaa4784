"""Which checkpoint of a run is its result: chosen on validation, never on test.

Role: a pure choice. Rule: a candidate has played most tasks of an evaluation alone, because some of the tasks may be easy ones; the highest
lower end of the 95 % interval of success wins, so that few episodes do not win by luck; of equal ones the earlier version wins.
Non-goals: which evaluations there are (`stored`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dart_envs.success import SUCCESS_AT
from dart_train.evaluation.statistics import Estimate, success_rate

MIN_TASK_SHARE = 0.75
"""Of the tasks of an evaluation: a version that played fewer of them is not compared with others."""


@dataclass(frozen=True, slots=True)
class ChosenCheckpoint:
    """The checkpoint that validation chose.

    Attributes:
        version: Its number.
        success: Its success on validation. It is the best of several, and therefore too high on average: a test tells what it is worth.
        candidates: Success on validation by version.
    """

    version: int
    success: Estimate
    candidates: Mapping[int, Estimate]


def versions_that_played(episodes: Iterable[tuple[int, str]], tasks: int) -> set[int]:
    """Find the versions that an evaluation judges: while it goes on, inference workers take newer ones.

    Args:
        episodes: Version and task of each episode that one version wrote.
        tasks: Number of tasks of the evaluation.

    Returns:
        Those that played at least `MIN_TASK_SHARE` of its tasks.
    """
    played: dict[int, set[str]] = defaultdict(set)
    for version, task_id in episodes:
        played[version].add(task_id)
    return {version for version, found in played.items() if len(found) >= MIN_TASK_SHARE * tasks}


def choose_checkpoint(
    rewards: Mapping[int, Mapping[str, Sequence[float]]], success_at: float = SUCCESS_AT
) -> ChosenCheckpoint | None:
    """Choose a version by its validation episodes.

    Args:
        rewards: By version, the rewards of the episodes of each task.
        success_at: Least reward of a solved episode.

    Returns:
        The choice, None where no version has an episode.
    """
    found = {version: success_rate(by_task, success_at) for version, by_task in sorted(rewards.items())}
    candidates = {version: estimate for version, estimate in found.items() if estimate is not None}
    if not candidates:
        return None
    best = max(candidates, key=lambda version: (candidates[version].lower or 0.0, -version))
    return ChosenCheckpoint(best, candidates[best], candidates)
