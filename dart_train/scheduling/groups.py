"""Opening and closing groups.

Role: admission of training groups by the staleness budget, what a new group consists of, and what follows when nothing more is awaited in
one. Rule: a group closes when its target number of rollouts has a reward, or when all its rollouts have ended; its other rollouts are
stopped, and kept where partial rollouts are on. A group in which every rollout failed is ready only where the experience pool has a success
for it: otherwise hopeless groups would fill what may be under way, and desktops would stop. Non-goals: who gets a rollout (`assignment`),
which groups make a batch (`batching`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from random import Random

from dart_agent.types import PolicyVersion
from dart_train.curation.backpressure import may_open_group
from dart_train.curation.group_filter import uninformative_reason
from dart_train.curation.length_budget import length_budget
from dart_train.curation.rollout_budget import evidence_size, rollout_budget
from dart_train.curation.task_sampler import TaskSampler
from dart_train.scheduling.commands import (
    ClosedState,
    CloseGroup,
    ClosePhase,
    Command,
    OpenGroup,
    SearchPool,
    StopRollout,
    UnassignRollout,
)
from dart_train.scheduling.entities import Group, Phase, Rollout
from dart_train.scheduling.events import PoolSearched
from dart_train.scheduling.settings import SchedulingMode
from dart_train.scheduling.staleness_budget import (
    groups_under_way_limit,
    most_parallel_groups,
    useful_parallel_groups,
)
from dart_train.scheduling.state import SchedulerState


def parallel_groups(state: SchedulerState, phase: Phase) -> int:
    """Decide how many groups of a phase are filled at the same time.

    Args:
        state: The state.
        phase: An endless phase.

    Returns:
        P of `staleness_budget`: as many as keep desktops from waiting for another one's setup, bounded by the staleness budget; 1 while
        nothing was measured.
    """
    settings = state.settings
    if settings.scheduling.parallel_groups is not None:
        return settings.scheduling.parallel_groups
    measures = state.measures
    size = phase.plan.rollouts_per_task
    episode_s, longest_s = measures.episode_s, measures.longest_episode_s(size)
    if not episode_s or longest_s is None or measures.prepare_s is None:
        return 1
    desktops = max(1, state.desktops, state.running_training)
    useful = useful_parallel_groups(prepare_s=measures.prepare_s, desktops=desktops, episode_s=episode_s)
    if useful == 1 or measures.update_s is None:
        return useful
    most = most_parallel_groups(
        group_size=size,
        desktops=desktops,
        episode_s=episode_s,
        longest_episode_s=longest_s,
        update_s=measures.update_s,
        max_staleness=settings.batch.max_staleness,
        version_lag=measures.version_lag,
    )
    return min(useful, most)


def may_open(state: SchedulerState, phase: Phase) -> bool:
    """Decide whether a phase may open another training group.

    Args:
        state: The state.
        phase: An endless phase.

    Returns:
        True where one may be opened.
    """
    batch, scheduling = state.settings.batch, state.settings.scheduling
    if not may_open_group(phase.ready_groups, batch.max_ready_groups):
        return False
    issued = len(state.issued or ())
    under_way = state.open_training_groups + len(state.ready) + issued
    if scheduling.mode is SchedulingMode.BATCH:
        return not issued and under_way < ceil(batch.max_groups * scheduling.over_provision)
    measures = state.measures
    limit = groups_under_way_limit(
        batch_groups=batch.max_groups,
        max_staleness=batch.max_staleness,
        version_lag=measures.version_lag,
        reserve=measures.reserve,
    )
    return (state.open_training_groups + 1) * measures.useful_fraction + len(state.ready) + issued <= limit


def open_next_group(state: SchedulerState, phase: Phase, now_s: float, commands: list[Command]) -> Group:
    """Open a training group on the task that the curation chooses; tasks with partial trajectories that can still be trained on go first.

    A group that is opened for what is left of another is not over-provisioned: it leaves nothing, so that the next task is chosen again.

    Args:
        state: The state.
        phase: An endless phase.
        now_s: Time.
        commands: What is to be done; extended.

    Returns:
        The group; its rollouts are queued, and parked rollouts of earlier groups of its task are members.
    """
    curation, plan, sampler = state.settings.curation, phase.plan, phase.sampler
    assert sampler is not None, "an endless phase has a sampler"
    number = f"{state.settings.seed}/{plan.name}/{phase.groups_opened}"
    begun = _task_with_leftovers(state, phase) if plan.continue_first else None
    task_id = sampler.choose(_success_rates(state, sampler), Random(number)) if begun is None else begun
    history = state.outcomes.evidence(task_id, curation.evidence)
    full = plan.rollouts_per_task
    evidence = history.latest(evidence_size(full, curation.rollout_budget))
    target = rollout_budget(full, evidence, curation.rollout_budget, curation.success_at)
    max_steps = length_budget(
        plan.max_steps,
        history.success_lengths,
        curation.length_budget,
        recent_rewards=history.latest(full),
        chance=Random(f"{number}/length").random(),
        success_at=curation.success_at,
    )
    state.count_group(phase, task_id, chosen=begun is None)
    scheduling = state.settings.scheduling
    as_many = scheduling.mode is SchedulingMode.BATCH or begun is not None
    size = target if as_many else ceil(target * scheduling.over_provision)
    return open_group(state, phase, task_id, target, size, max_steps, now_s, commands)


def _success_rates(state: SchedulerState, sampler: TaskSampler) -> dict[str, float]:
    """Success rate of each family that has one, where the task sampler looks at it."""
    settings = state.settings.curation.task_sampler
    if settings.rule != "family-difficulty":
        return {}
    rates = {family: state.outcomes.families[family].success_rate(settings.window) for family in sampler.families}
    return {family: rate for family, rate in rates.items() if rate is not None}


def _task_with_leftovers(state: SchedulerState, phase: Phase) -> str | None:
    """The task whose partial trajectories are the first that become stale; None where nothing that is fresh is left."""
    oldest: tuple[PolicyVersion, str] | None = None
    for task_id, left in phase.leftovers.items():
        versions = [
            state.trainer_version if rollout.partial_version is None else rollout.partial_version
            for rollout in left
            if rollout.state == "parked" and _is_fresh(state, rollout)
        ]
        if versions and (oldest is None or min(versions) < oldest[0]):
            oldest = min(versions), task_id
    return None if oldest is None else oldest[1]


def _is_fresh(state: SchedulerState, rollout: Rollout) -> bool:
    """Whether the partial trajectory of a rollout can still be trained on."""
    version = rollout.partial_version
    return version is None or state.trainer_version - version <= state.settings.batch.max_staleness


def open_group(
    state: SchedulerState,
    phase: Phase,
    task_id: str,
    target: int,
    size: int,
    max_steps: int,
    now_s: float,
    commands: list[Command],
    stragglers: Sequence[Rollout] = (),
) -> Group:
    """Open a group and queue its rollouts.

    Args:
        state: The state.
        phase: Its phase.
        task_id: Its task.
        target: Rollouts with a reward at which it closes.
        size: Rollouts that it has.
        max_steps: Step limit of its episodes.
        now_s: Time.
        commands: What is to be done; extended.
        stragglers: Assigned rollouts of a closed group of the same task, which become its first members.

    Returns:
        The group.
    """
    state.group_seq += 1
    group = Group(state.new_id("grp"), state.group_seq, phase, task_id, target, max_steps, now_s)
    state.groups[group.group_id] = group
    phase.open_groups += 1
    if phase.trains:
        state.open_training_groups += 1
    for rollout in stragglers:
        _move(rollout, group)
    adopted = [rollout.rollout_id for rollout in stragglers] + _adopt(state, group, size - len(stragglers))
    fresh = []
    for repeat in range(len(adopted), size):
        rollout = Rollout(state.new_id("roll"), group, repeat)
        state.add_rollout(rollout)
        state.enter_queue(rollout)
        fresh.append((rollout.rollout_id, repeat))
    commands.append(
        OpenGroup(
            group.group_id,
            phase.plan.name,
            task_id,
            phase.plan.purpose,
            target,
            max_steps,
            tuple(fresh),
            tuple(adopted),
        )
    )
    return group


def _adopt(state: SchedulerState, group: Group, size: int) -> list[str]:
    """Make parked rollouts of closed groups of the same task members of a new group."""
    left = group.phase.leftovers.pop(group.task_id, None)
    adopted: list[str] = []
    while left and len(adopted) < size:
        rollout = left.popleft()
        if rollout.state != "parked":
            continue
        state.leave(rollout)
        _move(rollout, group)
        state.enter_parked(rollout)
        adopted.append(rollout.rollout_id)
    if left:
        group.phase.leftovers[group.task_id] = left
    return adopted


def _move(rollout: Rollout, group: Group) -> None:
    """Make a rollout of a closed group a member of an open one."""
    del rollout.group.unfinished[rollout.rollout_id]
    rollout.group, rollout.repeat = group, len(group.unfinished)
    group.unfinished[rollout.rollout_id] = rollout


def close_before_stale(
    state: SchedulerState, trainer_version: PolicyVersion, now_s: float, commands: list[Command]
) -> None:
    """Close the open groups whose oldest tokens can be trained on in this batch and in no later one.

    A group closes with the members that have ended, where they are at least half of its target and have different rewards. Its running
    members become the first members of another group of the same task, so that no work is lost; what has not begun is cancelled.

    Args:
        state: The state.
        trainer_version: Version of the trainer, for which a batch is about to be formed.
        now_s: Time.
        commands: What is to be done; extended.
    """
    last_chance = trainer_version - state.settings.batch.max_staleness
    for group in list(state.groups.values()):
        if (
            group.state == "open"
            and group.phase.plan.endless
            and group.members_at(last_chance)
            and 2 * len(group.rewards) >= group.target
            and why_uninformative(state, group) is None
        ):
            _close_early(state, group, now_s, commands)


def why_uninformative(state: SchedulerState, group: Group) -> str | None:
    """Say why a group cannot be trained on as it is.

    Args:
        state: The state.
        group: The group.

    Returns:
        The reason of `dart_train.curation.group_filter`, None where it can be trained on.
    """
    settings = state.settings
    return uninformative_reason(group.rewards, settings.batch.min_members, settings.curation.success_at)


def _close_early(state: SchedulerState, group: Group, now_s: float, commands: list[Command]) -> None:
    phase = group.phase
    stragglers = [rollout for rollout in group.unfinished.values() if rollout.state == "assigned"]
    if phase.state == "active" and stragglers:
        state.count_group(phase, group.task_id)
        successor = open_group(
            state, phase, group.task_id, group.target, group.target, group.max_steps, now_s, commands, stragglers
        )
        successor.led = True
    _close(state, group, commands)


def close_if_finished(state: SchedulerState, group: Group, commands: list[Command]) -> None:
    """Close a group, and its phase, where nothing more is awaited.

    Args:
        state: The state.
        group: A group that just changed.
        commands: What is to be done; extended.
    """
    phase = group.phase
    if group.state == "open" and (not group.unfinished or (phase.plan.endless and len(group.rewards) >= group.target)):
        _close(state, group, commands)
    if phase.state == "active" and not phase.plan.endless and not phase.unfinished:
        end_phase(state, phase, "done", commands)


def end_phase(state: SchedulerState, phase: Phase, how: str, commands: list[Command]) -> None:
    """End a phase; what is queued or parked in it is cancelled.

    Args:
        state: The state.
        phase: An active phase.
        how: `stopped` or `done`.
        commands: What is to be done; extended.
    """
    phase.state = how
    state.active.remove(phase)
    commands.append(ClosePhase(phase.plan.name, "done" if how == "done" else "stopped"))
    if not phase.unfinished:
        return
    waiting = [
        rollout for rollout in state.rollouts.values() if rollout.group.phase is phase and rollout.state != "assigned"
    ]
    groups = dict.fromkeys(rollout.group for rollout in waiting)
    for rollout in waiting:
        cancel(state, rollout, f"phase {how}", commands)
    for group in groups:
        close_if_finished(state, group, commands)


def cancel(state: SchedulerState, rollout: Rollout, cause: str, commands: list[Command]) -> None:
    """Cancel a rollout that is queued or parked.

    Args:
        state: The state.
        rollout: The rollout.
        cause: Why.
        commands: What is to be done; extended.
    """
    state.remove(rollout, "cancelled")
    commands.append(UnassignRollout(rollout.rollout_id, "cancelled", rollout.attempt, cause))


def stop(state: SchedulerState, rollout: Rollout, commands: list[Command]) -> None:
    """Tell the worker of an assigned rollout to stop it.

    Args:
        state: The state.
        rollout: The rollout.
        commands: What is to be done; extended.
    """
    worker = rollout.worker
    assert worker is not None, "an assigned rollout has a worker"
    if rollout.rollout_id not in worker.stopping:
        worker.stopping[rollout.rollout_id] = rollout
        commands.append(StopRollout(rollout.rollout_id, worker.worker_id, state.settings.scheduling.partial_rollouts))


def release_desktops(state: SchedulerState, group: Group) -> None:
    """Let the desktops that wait for a group take other rollouts.

    Args:
        state: The state.
        group: The group.
    """
    for worker_id, count in group.held.items():
        worker = state.workers.get(worker_id)
        if worker is not None:
            worker.held -= count
    group.held.clear()


def drop_ready(state: SchedulerState, group: Group, reason: str, commands: list[Command]) -> None:
    """Drop a group that is ready but cannot train after all.

    Args:
        state: The state.
        group: The group; it is not among the ready ones any more.
        reason: Why.
        commands: What is to be done; extended.
    """
    _leave_open(state, group, "dropped", reason, commands)


def discard_stale_partials(state: SchedulerState, commands: list[Command]) -> None:
    """Cancel the leftovers that have become too stale to train on.

    Args:
        state: The state.
        commands: What is to be done; extended.
    """
    for phase in state.active:
        for task_id, left in list(phase.leftovers.items()):
            kept: deque[Rollout] = deque()
            for rollout in left:
                if rollout.state != "parked":
                    continue
                if _is_fresh(state, rollout):
                    kept.append(rollout)
                else:
                    cancel(state, rollout, "its partial trajectory is stale", commands)
            if kept:
                phase.leftovers[task_id] = kept
            else:
                del phase.leftovers[task_id]


def on_pool_searched(state: SchedulerState, event: PoolSearched, commands: list[Command]) -> None:
    """Make a failed group ready where a stored success may complete it, and drop it where none may.

    Args:
        state: The state.
        event: The answer.
        commands: What is to be done; extended.
    """
    group = state.groups.get(event.group_id)
    if group is not None and group.state == "failed":
        group.rescued = event.found
        _settle(state, group, None if event.found else "all_failed", commands)


def _close(state: SchedulerState, group: Group, commands: list[Command]) -> None:
    phase = group.phase
    release_desktops(state, group)
    reason = why_uninformative(state, group) if phase.trains else None
    if not phase.trains:
        phase.open_groups -= 1
        _leave_open(state, group, "done", None, commands)
    elif reason == "all_failed" and state.settings.curation.experience_pool.enabled:
        group.state = "failed"
        commands.append(SearchPool(group.group_id, group.task_id))
    else:
        _settle(state, group, reason, commands)
    for rollout in list(group.unfinished.values()):
        _release_leftover(state, rollout, commands)


def _settle(state: SchedulerState, group: Group, reason: str | None, commands: list[Command]) -> None:
    """Make a training group ready, or drop it for a reason; it counts as open until then."""
    group.phase.open_groups -= 1
    state.open_training_groups -= 1
    state.measures.add_closed_group(useful=reason is None)
    if reason is None:
        group.state = "ready"
        state.add_ready(group)
        commands.append(CloseGroup(group.group_id, "ready"))
    else:
        _leave_open(state, group, "dropped", reason, commands)


def _release_leftover(state: SchedulerState, rollout: Rollout, commands: list[Command]) -> None:
    """What a closed group leaves unfinished: what has begun is kept for the next group of its task, the rest is cancelled."""
    if rollout.state == "assigned":
        stop(state, rollout, commands)
    elif rollout.state == "parked" and rollout.partial is not None and rollout.group.phase.state == "active":
        state.leave(rollout)
        state.enter_parked(rollout)
    else:
        cancel(state, rollout, "its group is complete", commands)


def _leave_open(
    state: SchedulerState, group: Group, how: ClosedState, reason: str | None, commands: list[Command]
) -> None:
    group.state = how
    del state.groups[group.group_id]
    commands.append(CloseGroup(group.group_id, how, reason))
