"""How the latest training rollouts of each task and of each family went: the evidence of the curation.

Role: bounded histories in memory, each updated in constant time by one rollout. Rule: rollouts without a reward count nowhere. Non-goals:
what follows from them (`dart_train.curation`), timings (`measures`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import islice
from typing import Literal

from dart_agent.types import family_of
from dart_envs.success import SUCCESS_AT, count_successes, is_success

Evidence = Literal["task", "family"]
FAMILY_SAMPLE = 256
"""Latest rollouts of a family, and latest successes of it, that are remembered."""
TASK_SAMPLE = 128
"""The same of a task."""


class OutcomeHistory:
    """The latest training rollouts of one task or of one family.

    Args:
        size: Rollouts that are remembered, and successes.
        success_at: Least reward of a success.
    """

    __slots__ = ("_success_at", "rewards", "success_lengths")

    def __init__(self, size: int, success_at: float = SUCCESS_AT) -> None:
        self._success_at = success_at
        self.rewards: deque[float] = deque(maxlen=size)
        self.success_lengths: deque[int] = deque(maxlen=size)

    def add(self, reward: float, steps: int) -> None:
        """Add a rollout.

        Args:
            reward: Its reward.
            steps: Number of its steps.
        """
        self.rewards.append(reward)
        if is_success(reward, self._success_at):
            self.success_lengths.append(steps)

    def latest(self, count: int) -> list[float]:
        """Return the rewards of the latest rollouts, newest first.

        Args:
            count: How many at most.
        """
        return list(islice(reversed(self.rewards), count))

    def success_rate(self, window: int) -> float | None:
        """Compute the fraction of rollouts that succeeded.

        Args:
            window: Latest rollouts that count.

        Returns:
            The fraction, None where there was no rollout.
        """
        rewards = self.latest(window)
        return count_successes(rewards, self._success_at) / len(rewards) if rewards else None


class Outcomes:
    """Histories of all tasks and families.

    Args:
        window: Rollouts that the task sampler looks at; at least so many are remembered.
        success_at: Least reward of a success.

    Attributes:
        families: History by family.
        tasks: History by task id.
    """

    def __init__(self, window: int, success_at: float = SUCCESS_AT) -> None:
        self.families: defaultdict[str, OutcomeHistory] = defaultdict(
            lambda: OutcomeHistory(max(FAMILY_SAMPLE, window), success_at)
        )
        self.tasks: defaultdict[str, OutcomeHistory] = defaultdict(
            lambda: OutcomeHistory(max(TASK_SAMPLE, window), success_at)
        )

    def add(self, task_id: str, reward: float, steps: int) -> None:
        """Add a training rollout to its task and its family.

        Args:
            task_id: Its task.
            reward: Its reward.
            steps: Number of its steps.
        """
        self.families[family_of(task_id)].add(reward, steps)
        self.tasks[task_id].add(reward, steps)

    def evidence(self, task_id: str, over: Evidence) -> OutcomeHistory:
        """Return what decisions about a task are made from.

        Args:
            task_id: The task.
            over: Whether rollouts of this task count, or those of its whole family.
        """
        return self.tasks[task_id] if over == "task" else self.families[family_of(task_id)]
