"""Partial credit: the weighted checkpoints of a task beside its evaluator.

    reward = 1                                     where the evaluator's score e is 1, whatever the checkpoints say
    reward = (e + Σ w_i s_i) / (1 + Σ w_i) < 1     otherwise, s_i the score of checkpoint i and w_i its weight

Role: `evaluate_checkpoints` judges a desktop by several evaluators. Rule: the task's own evaluator judges first and alone decides whether
the task is solved, so that partial credit never looks like success; the checkpoints then judge the desktop as that left it, in their
order. One that fails by itself is an `EvaluatorError` of the whole. Non-goals: one evaluator (`scoring`), which tasks have checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dart_envs.task_parts import EvaluatorLike
from dart_envs.types import Outcome


class CheckpointLike(Protocol):
    """A part of a task that earns credit; implemented by `dart_envs.tasks.model.Checkpoint`."""

    @property
    def evaluator(self) -> EvaluatorLike:
        """What judges it."""
        ...

    @property
    def weight(self) -> float:
        """Its weight relative to that of the task's own evaluator, which is 1."""
        ...

    @property
    def name(self) -> str:
        """What it is called in the details of the outcome."""
        ...


async def evaluate_checkpoints(
    judge: Callable[[EvaluatorLike], Awaitable[Outcome]],
    evaluator: EvaluatorLike,
    checkpoints: Sequence[CheckpointLike],
) -> Outcome:
    """Judge a desktop with partial credit.

    Args:
        judge: Judges the desktop by one evaluator.
        evaluator: The task's own evaluator.
        checkpoints: What earns partial credit.

    Returns:
        The outcome; its details are those of the evaluator, its score, and the score of each checkpoint that was judged.

    Raises:
        EvaluatorError: If an evaluator gives no verdict.
    """
    whole = await judge(evaluator)
    if whole.reward >= 1.0 or not checkpoints:
        return whole
    scores: list[float] = []
    for checkpoint in checkpoints:
        scores.append((await judge(checkpoint.evaluator)).reward)
    earned = sum(checkpoint.weight * score for checkpoint, score in zip(checkpoints, scores, strict=True))
    reward = (whole.reward + earned) / (1.0 + sum(checkpoint.weight for checkpoint in checkpoints))
    told = [
        {"name": checkpoint.name or str(number), "weight": checkpoint.weight, "score": score}
        for number, (checkpoint, score) in enumerate(zip(checkpoints, scores, strict=True), start=1)
    ]
    reward = min(reward, math.nextafter(1.0, 0.0))
    return Outcome(reward, {**whole.details, "evaluator_score": whole.reward, "checkpoints": told})
