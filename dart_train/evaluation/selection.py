"""Which checkpoint of a run is its result: chosen on validation, never on test.

Role: a pure choice. Rule: the highest lower end of the 95 % interval of success wins, so that few episodes do not win by luck; of equal
ones the earlier version wins. Non-goals: which evaluations there are (`stored`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dart_envs.success import SUCCESS_AT
from dart_train.evaluation.statistics import Estimate, success_rate


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
