"""Backpressure: open no new groups while enough finished ones wait for the trainer.

Role: bound the queue between rollouts and trainer, so that the training data is fresh. Rule: a group is opened only while fewer than
`max_ready_groups` groups are ready to train; running rollouts continue. Source: limiting admission keeps accuracy and wastes no rollouts
where discarding stale groups does (tinker-cookbook, pull request 822). Non-goals: discarding (`staleness`).
"""

from __future__ import annotations


def may_open_group(ready_groups: int, max_ready_groups: int | None) -> bool:
    """Decide whether another training group may start.

    Args:
        ready_groups: Finished groups that wait for the trainer.
        max_ready_groups: Their limit; None: no limit.

    Returns:
        True where a group may start.
    """
    return max_ready_groups is None or ready_groups < max_ready_groups
