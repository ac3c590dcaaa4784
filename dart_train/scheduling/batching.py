"""When a training batch is formed, and of which groups.

Role: batch readiness, selection by staleness, and what a train step changes. Rule: the ready groups with the oldest tokens that are still
fresh go first, because theirs are the first that become stale; a group without a fresh token is dropped; a batch that was issued and not
finished is issued again unchanged; each group is used at most once. Groups under way are looked at once per batch. Non-goals: which tokens
are withheld, and the experience pool (`dart_train.data_manager.batches`, which may refuse a group).
"""

from __future__ import annotations

from heapq import nsmallest
from operator import itemgetter

from dart_train.scheduling.commands import Command, IssueBatch, RepeatBatch, UseGroups
from dart_train.scheduling.entities import Group
from dart_train.scheduling.events import BatchAsked, BatchDone, BatchRefused, PolicyPublished
from dart_train.scheduling.groups import close_before_stale, discard_stale_partials, drop_ready, stop
from dart_train.scheduling.settings import SchedulingMode
from dart_train.scheduling.staleness_budget import largest_reserve
from dart_train.scheduling.state import SchedulerState


def on_batch_asked(state: SchedulerState, event: BatchAsked, commands: list[Command]) -> None:
    """Issue a batch where enough groups are ready, or repeat the unfinished one.

    Args:
        state: The state.
        event: The request of the trainer.
        commands: What is to be done; extended.
    """
    if state.issued is not None:
        commands.append(RepeatBatch(tuple(group.group_id for group in state.issued)))
        return
    batch = state.settings.batch
    if len(state.ready) < batch.min_groups:
        return
    if state.settings.scheduling.mode is not SchedulingMode.BATCH:
        close_before_stale(state, event.trainer_version, event.now_s, commands)
    oldest_fresh = event.trainer_version - batch.max_staleness
    order: list[tuple[int, int, int, Group]] = []
    nstale = 0
    for group in list(state.ready.values()):
        oldest = group.oldest_trainable(oldest_fresh)
        if oldest is None and group.spans and not group.rescued:
            state.take_ready(group)
            nstale += len(group.spans)
            drop_ready(state, group, "stale", commands)
        else:
            first = oldest_fresh if oldest is None else oldest
            order.append((first, -group.members_at(first), group.seq, group))
    if len(order) < batch.min_groups:
        return
    taken = [group for *_, group in nsmallest(batch.max_groups, order, key=itemgetter(0, 1, 2))]
    stale = sum(group.stale_share(oldest_fresh) for group in taken) + nstale
    members = sum(len(group.spans) for group in taken) + nstale
    most = largest_reserve(batch.max_staleness, state.measures.version_lag)
    state.measures.add_batch(stale / members if members else 0.0, most)
    for group in taken:
        state.take_ready(group)
    for group in taken:
        group.state = "issued"
    state.issued = tuple(taken)
    commands.append(IssueBatch(tuple(group.group_id for group in taken), event.trainer_version))
    if state.settings.scheduling.mode is SchedulingMode.BATCH:
        _stop_training(state, commands)


def on_batch_refused(state: SchedulerState, event: BatchRefused, commands: list[Command]) -> None:
    """Take the issued batch back: groups that cannot train are dropped, the others are ready again.

    Args:
        state: The state.
        event: The groups that cannot train.
        commands: What is to be done; extended.
    """
    for group in state.issued or ():
        reason = event.reasons.get(group.group_id)
        if reason is None:
            group.state = "ready"
            state.add_ready(group)
        else:
            drop_ready(state, group, reason, commands)
    state.issued = None


def on_batch_done(state: SchedulerState, event: BatchDone, commands: list[Command]) -> None:
    """The issued batch was trained on.

    Args:
        state: The state.
        event: The version that it became.
        commands: What is to be done; extended.
    """
    if state.issued is None:
        return
    for group in state.issued:
        group.state = "used"
        state.groups.pop(group.group_id, None)
    commands.append(UseGroups(tuple(group.group_id for group in state.issued), event.version))
    state.issued = None
    state.trainer_version = max(state.trainer_version, event.version)
    state.measures.add_update(event.now_s)
    discard_stale_partials(state, commands)


def on_published(state: SchedulerState, event: PolicyPublished, commands: list[Command]) -> None:
    """Note the newest published version."""
    state.version = max(state.version, event.version)


def _stop_training(state: SchedulerState, commands: list[Command]) -> None:
    """Stop all training rollouts at their next step, because the batch is complete."""
    for worker in state.workers.values():
        for rollout in worker.running.values():
            if rollout.group.phase.trains:
                stop(state, rollout, commands)
