"""The reward that the task's own evaluator gives on the desktop.

Role: `EvaluatorReward`, and `CheckpointReward` with partial credit. Rule: the environment has judged the desktop when the episode ended,
and named the owner of every fault; the verdict is taken over as it is. Non-goals: judging (`dart_envs.evaluators`).
"""

from __future__ import annotations

from dart_agent.rewards.source import EndedEpisode, Verdict, prepare_task
from dart_agent.types import RewardKind
from dart_envs.tasks import Task


class EvaluatorReward:
    """The task's evaluator. It has no state."""

    kind = RewardKind.EVALUATOR
    screenshots = 0

    def prepare(self, task: Task) -> Task:
        """Return the task as it is."""
        return prepare_task(self.kind, task)

    async def reward(self, ended: EndedEpisode) -> Verdict:
        """Return what the environment has decided."""
        reward = ended.trajectory.reward
        assert reward is not None, "a masked episode is not judged"
        return Verdict(reward)


class CheckpointReward(EvaluatorReward):
    """The task's evaluator, with partial credit for its checkpoints (`dart_envs.evaluators.checkpoints`). It has no state."""

    kind = RewardKind.CHECKPOINTS
