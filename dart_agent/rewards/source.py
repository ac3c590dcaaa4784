"""The interface of reward sources.

Role: `RewardSource`, the ended episode that it is given, the verdict that it answers, and `reward_episode`, which applies one. Rule: a
source that is at fault raises `RewardError`; the episode is then masked with that cause and is never a success or a failure. A failure
that the policy caused scores 0 with its cause (`control`). What is decided before stays decided: a masked episode stays masked, and a
desktop that the policy broke, or an answer that was no action and ended the episode, scores 0, whatever the source. Every trajectory
names its source. Non-goals: the sources themselves, which episodes a source judges (`settings`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from dart_agent.types import RewardKind, StopReason, Trajectory
from dart_envs.tasks import Scoring, Task
from dart_envs.types import EndReason, RgbImage
from dart_server.wire import Clock

log = logging.getLogger(__name__)


class RewardError(Exception):
    """A reward source gave no verdict; the message says why, and what to do about it."""


class EpisodeRefusedError(RewardError):
    """A reward source is there, and failed on this episode: the source may be at fault, or what the policy left.

    Attributes:
        details: What is stored with the verdict if the policy is at fault; JSON values.
    """

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = dict(details or {})


@dataclass(frozen=True, slots=True)
class EndedEpisode:
    """What a reward source judges by.

    Attributes:
        task: The task as it was played.
        trajectory: The episode; its reward is that of the environment.
        final_screen: What the desktop showed at the end, uint8 `[H, W, 3]`.
        images: Model-input images of earlier screens by sha256. Of the steps before an episode was continued, those are here that its
            source looks at (`RewardSource.screenshots`), and those that its prompts showed after that.
    """

    task: Task
    trajectory: Trajectory
    final_screen: RgbImage
    images: Mapping[str, RgbImage]

    def last_screens(self, count: int) -> list[RgbImage]:
        """Return the latest different screens.

        Args:
            count: How many at most.

        Returns:
            uint8 `[H, W, 3]` each, in the order in which they were shown; the final screen is the last one.
        """
        before: list[RgbImage] = []
        seen: set[str] = set()
        steps = list(self.trajectory.steps_S)
        if steps and steps[-1].action is not None and steps[-1].action.get("type") in _ENDS:
            steps.pop()  # it looked at the final screen
        for step in reversed(steps):
            if len(before) == count - 1:
                break
            sha256 = step.image_sha256[-1] if step.image_sha256 else ""
            if sha256 in self.images and sha256 not in seen:
                seen.add(sha256)
                if not np.array_equal(self.images[sha256], self.final_screen):
                    before.append(self.images[sha256])
        return [*reversed(before), self.final_screen]


_ENDS = frozenset({"done", "fail"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reward source answers.

    Attributes:
        reward: In [0, 1].
        details: What it judged by, as JSON values; stored with the trajectory.
        cause: Why the reward is 0 although the source judged nothing; None: it judged.
    """

    reward: float
    details: Mapping[str, Any] = field(default_factory=dict)
    cause: str | None = None


class RewardSource(Protocol):
    """Anything that gives episodes their rewards."""

    @property
    def kind(self) -> RewardKind:
        """What it is; stored with every trajectory."""
        ...

    @property
    def screenshots(self) -> int:
        """How many of the latest different screens it looks at; the final one is one of them."""
        ...

    def prepare(self, task: Task) -> Task:
        """Return the task as the environment is to judge it at the end of an episode.

        Args:
            task: The task.

        Returns:
            The same task.
        """
        ...

    async def reward(self, ended: EndedEpisode) -> Verdict:
        """Judge an episode that ended by itself.

        Args:
            ended: The episode.

        Returns:
            The verdict.

        Raises:
            RewardError: There is no verdict.
        """
        ...


def prepare_task(kind: RewardKind, task: Task) -> Task:
    """Return a task as the environment judges it for a kind of source.

    Args:
        kind: The kind.
        task: The task.

    Returns:
        The same task: judged with partial credit for `checkpoints`; not judged on its desktop for `judge`, nor for `program` where it
        has no evaluator.
    """
    if kind is RewardKind.CHECKPOINTS:
        return task.scored(Scoring.CHECKPOINTS)
    if kind is RewardKind.JUDGE or (kind is RewardKind.PROGRAM and not task.has_evaluator):
        return task.scored(Scoring.NONE)
    return task


async def reward_episode(source: RewardSource, ended: EndedEpisode, clock: Clock) -> Trajectory:
    """Give an episode its reward.

    Args:
        source: What judges it.
        ended: The episode.
        clock: What measures how long that takes.

    Returns:
        Its trajectory with the reward and its source; without a reward, and with the cause, where the source was at fault; with 0 and
        the cause where the policy made it fail.
    """
    trajectory = replace(ended.trajectory, reward_source=source.kind)
    decided = trajectory.end.masked or trajectory.end is EndReason.BROKE_DESKTOP
    if decided or trajectory.stop is StopReason.PARSE_ERROR:
        return trajectory
    began_s = clock.monotonic()
    try:
        verdict = await source.reward(ended)
    except RewardError as error:
        info = {**trajectory.info, "reward_s": clock.monotonic() - began_s}
        cause = f"{source.kind.value}: {error}"
        return replace(trajectory, reward=None, stop=StopReason.REWARD_ERROR, cause=cause, info=info)
    if verdict.cause is not None:
        trajectory = replace(trajectory, cause=f"{source.kind.value}: {verdict.cause}")
        log.warning("%s scores 0: %s", trajectory.rollout_id, trajectory.cause)
    if not verdict.details:
        return replace(trajectory, reward=verdict.reward)
    info = {**trajectory.info, "verdict": dict(verdict.details), "reward_s": clock.monotonic() - began_s}
    return replace(trajectory, reward=verdict.reward, info=info)
