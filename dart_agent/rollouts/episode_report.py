"""What is told of an episode: a line for people, and a line of the metrics.

Role: `PlayedItem`, `PlayedEpisode` and `AbandonedEpisode` with what the worker knows beside an episode, `format_episode`, `record_episode`,
`record_abandoned`. Rule: a rollout that is parked has no line until it ends: that line has all of its steps. Non-goals: storing
trajectories.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from dart_agent.metrics_file import append_metrics
from dart_agent.rollouts.episode import Episode
from dart_agent.rollouts.episode_state import EpisodeProgress, EpisodeState
from dart_agent.rollouts.journal import StepJournal
from dart_agent.types import WorkItem
from dart_server.wire import Clock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """A finished episode, with what its slot did around it.

    Attributes:
        episode: The episode.
        slot: Name of the slot.
        idle_s: Seconds that the slot waited for work before it.
    """

    episode: Episode
    slot: str
    idle_s: float


@dataclass(frozen=True, slots=True)
class AbandonedEpisode:
    """An episode that was given back: its steps were performed, and nobody trains on them.

    Attributes:
        item: The rollout.
        progress: What was done in it.
        cause: Why it was given back.
        duration_s: Seconds since this worker began or continued it.
        slot: Name of the slot.
        idle_s: Seconds that the slot waited for work before it.
    """

    item: WorkItem
    progress: EpisodeProgress
    cause: str
    duration_s: float
    slot: str
    idle_s: float


@dataclass(slots=True)
class PlayedItem:
    """A claimed rollout while it is played.

    Attributes:
        item: The rollout.
        progress: What is done in it.
        journal: Stores its steps as they happen; None: they are not stored so.
        playing: Its episode; None: it has not begun.
        untouched: The state in which it can be left to others while it is taken up; None: as it is stored.
        cause: Why it was given back; None: it was not.
    """

    item: WorkItem
    progress: EpisodeProgress = field(default_factory=EpisodeProgress)
    journal: StepJournal | None = None
    playing: asyncio.Task[Episode] | None = None
    untouched: EpisodeState | None = None
    cause: str | None = None

    def give_back(self, cause: str) -> None:
        """It begins anew, or is over: no mark of it stays.

        Args:
            cause: Why.
        """
        self.cause = cause
        if self.journal is not None:
            self.journal.forget()


def format_episode(episode: Episode) -> str:
    """One episode in one line, for people."""
    trajectory = episode.trajectory
    verdict = "  -  " if trajectory.reward is None else f"{trajectory.reward:5.2f}"
    actions = [step.action["type"] if step.action else "?" for step in trajectory.steps_S]
    cause = f" ({trajectory.cause})" if trajectory.cause else ""
    return (
        f"{verdict} {trajectory.task_id} {trajectory.stop}{cause}, {len(actions)} steps in "
        f"{trajectory.duration_s:.1f} s: {', '.join(actions)}"
    )


def record_episode(metrics: Path | None, clock: Clock, played: PlayedEpisode) -> None:
    """Log a line per episode, and append one to the metrics."""
    trajectory = played.episode.trajectory
    logger.info("%s", format_episode(played.episode))
    if metrics is None:
        return
    steps = trajectory.steps_S
    versions = [span.version for step in steps for span in step.version_spans]
    line = {
        "kind": "episode",
        "time_s": clock.time(),
        "phase": trajectory.phase,
        "task": trajectory.task_id,
        "reward": trajectory.reward,
        "reward_source": trajectory.reward_source.value,
        "end": trajectory.end.value,
        "stop": trajectory.stop.value,
        "steps": len(steps),
        "tokens": sum(len(step.token_ids_T) for step in steps),
        "prompt_tokens": sum(len(step.prompt_ids_P) for step in steps),
        "versions": [min(versions), max(versions)] if versions else None,
        "parse_errors": sum(step.parse_error is not None for step in steps),
        "duration_s": round(trajectory.duration_s, 4),
        "reset_s": round(float(trajectory.info["reset_s"]), 4),
        "model_s": round(sum(step.model_s for step in steps), 4),
        "queue_s": round(float(trajectory.info["queue_s"]), 4),
        "env_s": round(sum(step.env_s for step in steps), 4),
        "evaluate_s": round(float(trajectory.info["evaluate_s"]), 4),
        "idle_s": round(played.idle_s, 4),
        "slot": played.slot,
    }
    append_metrics(metrics, line)


def record_abandoned(metrics: Path | None, clock: Clock, given_back: AbandonedEpisode) -> None:
    """Append a line for an episode that was given back."""
    if metrics is None:
        return
    item, progress = given_back.item, given_back.progress
    reset_s = given_back.duration_s if progress.reset_s is None else progress.reset_s
    line = {
        "kind": "abandoned",
        "time_s": clock.time(),
        "phase": item.phase,
        "task": item.task_id,
        "cause": given_back.cause,
        "steps": progress.steps,
        "tokens": progress.tokens,
        "duration_s": round(given_back.duration_s, 4),
        "reset_s": round(reset_s, 4),
        "model_s": round(progress.model_s, 4),
        "queue_s": round(progress.queue_s, 4),
        "env_s": round(progress.env_s, 4),
        "idle_s": round(given_back.idle_s, 4),
        "slot": given_back.slot,
    }
    append_metrics(metrics, line)
