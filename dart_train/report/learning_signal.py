"""Why training made no update, from the rewards of its episodes, or may make none after a short warm start, and what to change.

Role: one text for the console and the report. Rule: it names the rewards that were seen and settings that a recipe has. Non-goals: which
groups are dropped (`dart_train.curation.group_filter`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dart_agent.data_client.wire import PhaseStatus
from dart_train.config.warmup import WarmupSection

_RULE = "A group of episodes trains the policy only if their rewards differ."


class LearningSignal(NamedTuple):
    """Why training made no update.

    Attributes:
        seen: The rewards so far; changes with every episode.
        advice: Sentences on what to change.
    """

    seen: str
    advice: str

    def __str__(self) -> str:
        return f"{self.seen}. {self.advice}"


def since_start(phase: PhaseStatus, start: PhaseStatus) -> PhaseStatus:
    """Count the episodes of a phase that ended after a moment.

    Args:
        phase: Progress of the phase.
        start: Its progress at that moment.

    Returns:
        The progress with the counts and the mean reward since then.
    """
    done = phase.done - start.done
    total = (phase.mean_reward or 0.0) * phase.done - (start.mean_reward or 0.0) * start.done
    return phase.model_copy(
        update={
            "done": done,
            "failed": phase.failed - start.failed,
            "masked": phase.masked - start.masked,
            "mean_reward": min(1.0, max(0.0, round(total / done, 9))) if done else None,
        }
    )


def describe_learning_signal(phase: PhaseStatus) -> LearningSignal:
    """Describe the rewards of a training phase that made no update yet.

    Args:
        phase: Progress of the phase.

    Returns:
        The rewards so far, and the settings to change.
    """
    mean = phase.mean_reward
    if mean is None:
        return LearningSignal(
            f"no episode has a reward ({phase.masked} are masked by faults of desktops or evaluators)",
            "The table of masked episodes and the logs have the cause.",
        )
    if mean == 0.0:
        return LearningSignal(
            f"all {phase.done} rewards are 0",
            f"{_RULE} Give more demonstrations (demos.per_family, warmup.images), easier tasks (tasks.families) or larger groups "
            "(rollout.group_size).",
        )
    if mean == 1.0:
        return LearningSignal(f"all {phase.done} rewards are 1", f"{_RULE} Give harder tasks (tasks.families).")
    return LearningSignal(
        f"the mean of {phase.done} rewards is {mean:.2f}",
        f"{_RULE} An update needs train.groups_per_batch such groups: lower it, raise rollout.group_size, or give training more time "
        "(train.max_minutes).",
    )


def describe_short_warm_start(section: WarmupSection, lines: Sequence[Mapping[str, Any]]) -> str | None:
    """Say so where time ran out before a warm start saw all images: such a policy may be too weak to train.

    Args:
        section: The settings of the warm start.
        lines: Lines of metrics.

    Returns:
        The text, None where the warm start saw all images.
    """
    last = next((line for line in reversed(lines) if line.get("kind") == "warmup"), None)
    if last is None or last["images"] >= section.images:
        return None
    return (
        f"warm-start: {last['images']} of {section.images} images in the {section.max_minutes:g} minutes of warmup.max_minutes; "
        f"raise it if the policy solves too few tasks (grounding accuracy {last['grounding_accuracy']:.2f})"
    )
