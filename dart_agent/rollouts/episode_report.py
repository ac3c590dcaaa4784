"""What is told of a finished episode: a line for people, and a line of the metrics.

Role: `PlayedEpisode` with what the worker knows beside the episode, `format_episode`, `record_episode`. Non-goals: storing trajectories.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from dart_agent.metrics_file import append_metrics
from dart_agent.rollouts.episode_loop import Episode
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
        "env_s": round(sum(step.env_s for step in steps), 4),
        "idle_s": round(played.idle_s, 4),
        "slot": played.slot,
    }
    append_metrics(metrics, line)
