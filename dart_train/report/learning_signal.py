"""Why training made no update, from the rewards of its episodes, and what to change.

Role: one text for the console and the report. Rule: it names the rewards that were seen and settings that a recipe has. Non-goals: which
groups are dropped (`dart_train.curation.group_filter`).
"""

from __future__ import annotations

from dart_agent.data_client.wire import PhaseStatus

_RULE = "A group of episodes trains the policy only if their rewards differ."


def describe_learning_signal(phase: PhaseStatus) -> str:
    """Describe the rewards of a training phase that made no update yet.

    Args:
        phase: Progress of the phase.

    Returns:
        Sentences: the rewards so far, and the settings to change.
    """
    mean = phase.mean_reward
    if mean is None:
        return (
            f"no episode has a reward ({phase.masked} are masked by faults of desktops or evaluators). The table of masked episodes and "
            "the logs have the cause."
        )
    if mean == 0.0:
        return (
            f"all {phase.done} rewards are 0. {_RULE} Give more demonstrations (demos.per_family, warmup.images), easier tasks "
            "(tasks.families) or larger groups (rollout.group_size)."
        )
    if mean == 1.0:
        return f"all {phase.done} rewards are 1. {_RULE} Give harder tasks (tasks.families)."
    return (
        f"the mean of {phase.done} rewards is {mean:.2f}. {_RULE} An update needs train.groups_per_batch such groups: lower it, raise "
        "rollout.group_size, or give training more time (train.max_minutes)."
    )
