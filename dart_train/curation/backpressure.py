"""Pace: stop opening groups while enough finished ones wait for the trainer.

Role: bound the queue between rollouts and trainer, so that what is trained on is young. Rule: a group is opened only while fewer than
`max_ready_groups` groups are ready to train; what runs goes on. Source: pacing admission keeps accuracy and wastes no rollouts where
discarding stale groups does (tinker-cookbook, pull request 822). Non-goals: discarding (`staleness`).
"""

from __future__ import annotations


def may_open_group(ready_groups: int, max_ready_groups: int | None) -> bool:
    """Whether another training group may start. None: no bound."""
    return max_ready_groups is None or ready_groups < max_ready_groups
