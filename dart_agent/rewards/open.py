"""The reward sources of a rollout worker.

Role: `open_rewards` makes the sources that the settings name. Rule: connections are open as long as the context lasts; a mistake is found
before an episode is played. Non-goals: judging.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from dart_agent.rewards.evaluator import CheckpointReward, EvaluatorReward
from dart_agent.rewards.judge import JudgeReward
from dart_agent.rewards.program import ProgramReward
from dart_agent.rewards.settings import RewardSettings
from dart_agent.rewards.source import RewardSource
from dart_agent.types import Purpose, RewardKind
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

RewardOf = Callable[[Purpose], RewardSource]
"""What rewards episodes of a purpose."""


def evaluator_reward(purpose: Purpose) -> RewardSource:
    """Reward every episode by its task's evaluator.

    Args:
        purpose: The purpose of the episode.

    Returns:
        The source.
    """
    return EvaluatorReward()


@asynccontextmanager
async def open_rewards(settings: RewardSettings, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[RewardOf]:
    """Open the sources that a worker needs.

    Args:
        settings: Which ones.
        clock: Clock of time limits.

    Yields:
        The source for each purpose.

    Raises:
        ConfigError: The key of the judge is not there.
    """
    async with AsyncExitStack() as stack:
        sources: dict[RewardKind, RewardSource] = {
            RewardKind.EVALUATOR: EvaluatorReward(),
            RewardKind.CHECKPOINTS: CheckpointReward(),
        }
        if settings.program is not None:
            sources[RewardKind.PROGRAM] = ProgramReward(settings.program, clock=clock)
        if settings.judge is not None:
            sources[RewardKind.JUDGE] = await stack.enter_async_context(JudgeReward(settings.judge, clock=clock))
        yield lambda purpose: sources[settings.kind_for(purpose)]
