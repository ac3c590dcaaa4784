"""How the scheduler's state is rebuilt from what its commands stored.

Role: counts groups, and adds open and ready groups, unfinished rollouts and the trainer's batch, as they were. Rule: the order of opening
is kept; an assignment gets its full time again. Non-goals: reading the database (`dart_train.data_manager.recovery`), decisions (`decide`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dart_agent.types import PolicyVersion
from dart_train.scheduling.entities import Group, Phase, Rollout
from dart_train.scheduling.state import SchedulerState


def restore_opened_groups(state: SchedulerState, groups_by_task: Mapping[str, int]) -> None:
    """Count the groups that a training phase has opened, before any phase is added (`SchedulerState.add_phase`).

    Args:
        state: The state.
        groups_by_task: Number of groups by task.
    """
    state.groups_by_task.update(groups_by_task)


def restore_group(
    state: SchedulerState,
    phase: Phase,
    group_id: str,
    task_id: str,
    *,
    seq: int,
    target: int,
    max_steps: int,
    opened_s: float,
    rewards: Iterable[float] = (),
    spans: Iterable[tuple[PolicyVersion, PolicyVersion]] = (),
) -> Group:
    """Add an open group as it was stored; its unfinished rollouts follow (`restore_rollout`).

    Args:
        state: The state.
        phase: Its phase.
        group_id: Its id.
        task_id: Its task.
        seq: Number in the order of opening.
        target: Rollouts with a reward at which it closes.
        max_steps: Step limit of its episodes.
        opened_s: When it was opened.
        rewards: Rewards of the members that have one.
        spans: Oldest and newest version of each of these members that has tokens.

    Returns:
        The group.
    """
    group = Group(group_id, seq, phase, task_id, target, max_steps, opened_s)
    group.rewards.extend(rewards)
    group.spans.extend(spans)
    state.groups[group_id] = group
    state.group_seq = max(state.group_seq, seq)
    phase.open_groups += 1
    if phase.trains:
        state.open_training_groups += 1
    return group


def restore_ready(state: SchedulerState, group: Group, *, rescued: bool) -> None:
    """Mark a group that was added as ready to train.

    Args:
        state: The state.
        group: The group.
        rescued: Whether it may train only with a stored success.
    """
    group.rescued = rescued
    group.state = "ready"
    group.phase.open_groups -= 1
    state.open_training_groups -= 1
    state.add_ready(group)


def restore_issued(state: SchedulerState, groups: Iterable[Group]) -> None:
    """Mark groups that were added and are ready as the batch that the trainer has, in its order.

    Args:
        state: The state.
        groups: The groups.
    """
    taken = tuple(groups)
    for group in taken:
        state.take_ready(group)
        group.state = "issued"
    state.issued = taken


def restore_rollout(
    state: SchedulerState,
    group: Group,
    rollout_id: str,
    *,
    repeat: int,
    attempt: int,
    partial: str | None = None,
    partial_version: PolicyVersion | None = None,
    parked: bool = False,
    worker_id: str | None = None,
    request_id: str | None = None,
    now_s: float = 0.0,
) -> Rollout:
    """Add an unfinished rollout as it was stored: assigned where it has a worker, else parked or queued.

    An assignment gets its full time again, because a worker could give no sign of life meanwhile.

    Args:
        state: The state.
        group: Its group.
        rollout_id: Its id.
        repeat: Number of the item, or of the member.
        attempt: Number of its attempt.
        partial: Reference of its partial trajectory.
        partial_version: Oldest version in it.
        parked: Whether it is parked.
        worker_id: Who runs it.
        request_id: The request that it answered.
        now_s: Time.

    Returns:
        The rollout.
    """
    rollout = Rollout(rollout_id, group, repeat, attempt, partial=partial, partial_version=partial_version)
    state.add_rollout(rollout)
    if worker_id is not None:
        state.enter_assigned(rollout, state.see_worker(worker_id, now_s), request_id or "", now_s)
    elif parked:
        state.enter_parked(rollout)
    else:
        state.enter_queue(rollout)
    return rollout
