"""Which rollout a free desktop gets, and what becomes of rollouts that their worker does not finish.

Role: assignment, expiry, requeueing, parking. Rule: phases go by priority, up to their limits; within an endless phase parked rollouts go
first, then groups that are being filled take turns, and a new group is opened only while the staleness budget allows it; a rollout that
comes back goes before those that were never assigned. What only the next process of a worker can continue waits for it for `RESERVED_S`,
and goes to it before anything else of its phase. A rollout has one worker at most, and the first complete report of it counts.
Non-goals: when a group closes (`groups`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Set

from dart_train.scheduling.commands import AssignRollout, Command, FinishRollout, RetryRollout, UnassignRollout
from dart_train.scheduling.entities import Group, Phase, Reservation, Rollout, Worker
from dart_train.scheduling.events import (
    AskWithdrawn,
    RolloutAbandoned,
    RolloutEnded,
    RolloutParked,
    RolloutRestarted,
    WorkAsked,
    WorkerReleased,
)
from dart_train.scheduling.groups import (
    cancel,
    close_if_finished,
    may_open,
    open_next_group,
    parallel_groups,
    release_desktops,
)
from dart_train.scheduling.settings import SchedulingMode
from dart_train.scheduling.state import SchedulerState

RESERVED_S = 10.0
"""So long rollouts wait for the next process of their worker, which asks for work right after it has said that the former one is gone."""


def on_ask(state: SchedulerState, event: WorkAsked, commands: list[Command]) -> None:
    """Answer a request for work, or keep it until there is some.

    Args:
        state: The state.
        event: The request.
        commands: What is to be done; extended.
    """
    worker = state.workers[event.worker_id]
    again = state.requests.get(event.request_id)
    if again is not None and again.worker is worker:
        commands.append(_assignment(again, worker))
        return
    if event.request_id in state.asks:
        return
    rollout = None if worker.waiting else next_rollout(state, worker, event.now_s, commands)
    if rollout is not None:
        assign(state, rollout, worker, event.request_id, event.now_s, commands)
    elif event.wait:
        state.asks[event.request_id] = worker.worker_id
        worker.waiting.append(event.request_id)
        state.waiting_workers[worker.worker_id] = worker


def on_withdrawn(state: SchedulerState, event: AskWithdrawn, commands: list[Command]) -> None:
    """Forget a request that waits."""
    worker_id = state.asks.pop(event.request_id, None)
    if worker_id is not None:
        worker = state.workers[worker_id]
        worker.waiting.remove(event.request_id)
        if not worker.waiting:
            state.waiting_workers.pop(worker_id, None)


def serve_waiting(state: SchedulerState, now_s: float, commands: list[Command]) -> None:
    """Give what there is to do to the requests that wait; workers take turns.

    Args:
        state: The state.
        now_s: Time.
        commands: What is to be done; extended.
    """
    for worker in list(state.waiting_workers.values()):
        while worker.waiting:
            rollout = next_rollout(state, worker, now_s, commands)
            if rollout is None:
                break
            request_id = worker.waiting.popleft()
            del state.asks[request_id]
            assign(state, rollout, worker, request_id, now_s, commands)
        if not worker.waiting:
            state.waiting_workers.pop(worker.worker_id, None)
        elif not _is_held_back(state, worker) and not state.reserved:
            return


def assign(
    state: SchedulerState, rollout: Rollout, worker: Worker, request_id: str, now_s: float, commands: list[Command]
) -> None:
    """Assign a rollout that is queued or parked."""
    state.leave(rollout)
    state.enter_assigned(rollout, worker, request_id, now_s)
    commands.append(_assignment(rollout, worker))


def next_rollout(state: SchedulerState, worker: Worker, now_s: float, commands: list[Command]) -> Rollout | None:
    """Choose the next rollout of a worker; a group is opened where that is needed.

    Args:
        state: The state.
        worker: Who has a free desktop.
        now_s: Time.
        commands: What is to be done; extended where a group is opened.

    Returns:
        The rollout, still queued or parked; None where there is nothing to do now.
    """
    if _is_short_of_kv_cache(state, worker):
        return None
    if state.reserved:
        state.reserved = {name: kept for name, kept in state.reserved.items() if kept.until_s > now_s}
    others = _reserved_for_others(state, worker)
    for phase in state.active:
        limit = phase.plan.max_in_flight
        if limit is not None and phase.counts["assigned"] >= limit:
            continue
        rollout = (
            _next_of_groups(state, phase, worker, others, now_s, commands)
            if phase.plan.endless
            else _take_reserved(state, phase, worker)
            or _pop(phase.parked, "parked", others)
            or _pop(phase.queue, "queued", others)
        )
        if rollout is not None:
            return rollout
    return None


def on_ended(state: SchedulerState, event: RolloutEnded, commands: list[Command]) -> None:
    """Complete a rollout; a masked item of a fixed list is tried again as a new rollout.

    Args:
        state: The state.
        event: Its result.
        commands: What is to be done; extended.
    """
    masked = event.reward is None
    rollout = state.rollouts.get(event.rollout_id)
    if rollout is None:
        commands.append(FinishRollout(event.rollout_id, "masked" if masked else "done"))
        return
    group, phase, worker = rollout.group, rollout.group.phase, rollout.worker
    _measure(state, rollout, event)
    state.remove(rollout, "masked" if masked else "done")
    if event.reward is not None:
        group.rewards.append(event.reward)
        if event.version_min is not None and event.version_max is not None:
            group.spans.append((event.version_min, event.version_max))
    if masked and not phase.plan.endless and phase.state == "active":
        _retry(state, rollout, commands)
    else:
        commands.append(FinishRollout(rollout.rollout_id, "masked" if masked else "done"))
    if phase.trains and worker is not None and group.state == "open" and not group.queued and _is_task_wise(state):
        worker.held += 1
        group.held[worker.worker_id] += 1
    close_if_finished(state, group, commands)


def on_abandoned(state: SchedulerState, event: RolloutAbandoned, commands: list[Command]) -> None:
    """Requeue an assigned rollout that its worker gives up; without a partial trajectory it starts from the beginning."""
    rollout = state.rollouts.get(event.rollout_id)
    if rollout is not None and rollout.state == "assigned":
        uses_attempt = event.uses_attempt and not _is_stopping(rollout)
        rollout.partial, rollout.partial_version = event.partial, event.version_min
        requeue(state, rollout, event.cause, commands, uses_attempt=uses_attempt)


def on_parked(state: SchedulerState, event: RolloutParked, commands: list[Command]) -> None:
    """Keep a rollout that its worker stopped, or could not continue now, for whoever continues it."""
    rollout = state.rollouts.get(event.rollout_id)
    if rollout is None or rollout.state != "assigned":
        return
    if rollout.group.phase.state != "active":
        cancel(state, rollout, "its phase has ended", commands)
        close_if_finished(state, rollout.group, commands)
        return
    rollout.partial, rollout.partial_version = event.partial, event.version_min
    if event.failed_start is not None:
        requeue(state, rollout, event.failed_start, commands, uses_attempt=not _is_stopping(rollout))
        return
    state.leave(rollout)
    state.enter_parked(rollout)
    commands.append(UnassignRollout(rollout.rollout_id, "parked", rollout.attempt, "stopped at a step", event.partial))


def on_restarted(state: SchedulerState, event: RolloutRestarted, commands: list[Command]) -> None:
    """Forget the partial trajectory of a rollout that its worker begins anew; where its assignment has expired, it stays parked."""
    rollout = state.rollouts.get(event.rollout_id)
    if rollout is not None:
        rollout.partial_version = None
        if rollout.state == "assigned":
            rollout.partial = None


def on_released(state: SchedulerState, event: WorkerReleased, commands: list[Command]) -> None:
    """Requeue everything that a worker holds, because it is gone."""
    names = list(state.workers) if event.worker_id is None else [event.worker_id]
    for name in names:
        worker = state.workers.get(name)
        if worker is not None:
            waiting = {key: rollout for key, rollout in worker.running.items() if key in event.resumable}
            _give_back(state, worker, "worker is gone", commands, uses_attempt=False)
            state.forget_worker(worker)
            if waiting:
                state.reserved[name] = Reservation(event.now_s + RESERVED_S, waiting)


def expire(state: SchedulerState, now_s: float, commands: list[Command]) -> None:
    """Requeue what workers hold that gave no sign of life for too long.

    Args:
        state: The state.
        now_s: Time.
        commands: What is to be done; extended.
    """
    expiries = state.expiries
    while expiries and expiries[0][0] < now_s:
        _, name = heapq.heappop(expiries)
        worker = state.workers.get(name)
        if worker is None:
            continue
        if worker.expires_s >= now_s:
            heapq.heappush(expiries, (worker.expires_s, name))
            continue
        _give_back(state, worker, "assignment expired", commands, uses_attempt=True)
        state.forget_worker(worker)


def requeue(
    state: SchedulerState, rollout: Rollout, cause: str, commands: list[Command], *, uses_attempt: bool
) -> None:
    """Requeue an assigned rollout; without attempts left it fails, and in a phase that has ended it is cancelled.

    Args:
        state: The state.
        rollout: The rollout.
        cause: Why.
        commands: What is to be done; extended.
        uses_attempt: Whether it used up an attempt.
    """
    group, phase = rollout.group, rollout.group.phase
    if phase.state != "active" or (group.state != "open" and rollout.partial is None):
        cancel(state, rollout, cause, commands)
    elif uses_attempt and rollout.attempt >= phase.plan.max_attempts:
        state.remove(rollout, "failed")
        commands.append(UnassignRollout(rollout.rollout_id, "failed", rollout.attempt, cause))
    else:
        state.leave(rollout)
        rollout.attempt += uses_attempt
        release_desktops(state, group)  # in mode `task` all that could run it may wait for it
        if rollout.partial is None:
            state.enter_queue(rollout, first=True)
            commands.append(UnassignRollout(rollout.rollout_id, "queued", rollout.attempt, cause))
        else:
            state.enter_parked(rollout)
            commands.append(UnassignRollout(rollout.rollout_id, "parked", rollout.attempt, cause, rollout.partial))
        return
    close_if_finished(state, group, commands)


def _is_stopping(rollout: Rollout) -> bool:
    """Whether its worker was told to stop it."""
    return rollout.worker is not None and rollout.rollout_id in rollout.worker.stopping


def _next_of_groups(
    state: SchedulerState,
    phase: Phase,
    worker: Worker,
    others: Set[str],
    now_s: float,
    commands: list[Command],
) -> Rollout | None:
    if state.settings.scheduling.mode is SchedulingMode.BATCH and state.issued is not None:
        return None
    if _waits_for_groups(state, worker):
        return None
    rollout = _take_reserved(state, phase, worker)
    if rollout is None and phase.plan.continue_first:
        rollout = _pop_parked(phase, others)
    if rollout is not None:
        return rollout
    if phase.nfilling < parallel_groups(state, phase) and may_open(state, phase):
        group = open_next_group(state, phase, now_s, commands)
        if group.queued:
            phase.filling.rotate(1)  # the new group's first rollout goes now; its next turn comes after all the others'
        return _pop_turn(phase, others) if group.queued else _pop_parked(phase, others)
    return _pop_turn(phase, others) or _pop_parked(phase, others)


def _reserved_for_others(state: SchedulerState, worker: Worker) -> Set[str]:
    """Ids of the rollouts that wait for other workers."""
    return {
        rollout_id for name, kept in state.reserved.items() if name != worker.worker_id for rollout_id in kept.rollouts
    }


def _take_reserved(state: SchedulerState, phase: Phase, worker: Worker) -> Rollout | None:
    """A rollout of a phase that waits for this worker."""
    kept = state.reserved.get(worker.worker_id)
    if kept is None:
        return None
    for rollout in kept.rollouts.values():
        if rollout.group.phase is phase and rollout.group.state == "open" and rollout.state in ("queued", "parked"):
            return rollout
    return None


def _pop_turn(phase: Phase, others: Set[str]) -> Rollout | None:
    """The next rollout of the groups that are being filled, which take turns."""
    waiting: list[Group] = []
    found: Rollout | None = None
    while phase.filling and found is None:
        group = phase.filling.popleft()
        found = _pop(group.queue, "queued", others)
        group.in_filling = group.queued > (found is not None)
        if group.in_filling:
            (waiting if found is None else phase.filling).append(group)
    phase.filling.extendleft(reversed(waiting))
    return found


def _pop_parked(phase: Phase, others: Set[str]) -> Rollout | None:
    """The parked rollout that waits longest; one whose group has closed meanwhile waits among the leftovers instead."""
    waiting: list[Rollout] = []
    found: Rollout | None = None
    while phase.parked and found is None:
        rollout = phase.parked.popleft()
        if rollout.state == "parked" and rollout.group.state == "open":
            if rollout.rollout_id in others:
                waiting.append(rollout)
            else:
                found = rollout
    phase.parked.extendleft(reversed(waiting))
    return found


def _pop(queue: deque[Rollout], state: str, others: Set[str]) -> Rollout | None:
    """The first rollout that is in a state and waits for no other worker."""
    waiting: list[Rollout] = []
    found: Rollout | None = None
    while queue and found is None:
        rollout = queue.popleft()
        if rollout.state == state:
            if rollout.rollout_id in others:
                waiting.append(rollout)
            else:
                found = rollout
    queue.extendleft(reversed(waiting))
    return found


def _is_task_wise(state: SchedulerState) -> bool:
    return state.settings.scheduling.mode is SchedulingMode.TASK


def _waits_for_groups(state: SchedulerState, worker: Worker) -> bool:
    """Whether all free desktops of a worker wait for the other rollouts of their groups."""
    return _is_task_wise(state) and worker.desktops is not None and len(worker.running) + worker.held >= worker.desktops


def _is_short_of_kv_cache(state: SchedulerState, worker: Worker) -> bool:
    """Whether the rollouts that it holds need the cache, by what a rollout needs now, or needed on average where that was more."""
    if worker.kv_cache_usage is None or not worker.running:
        return False
    per_rollout = max(worker.kv_cache_usage / max(1, worker.kv_rollouts), worker.kv_per_rollout)
    return per_rollout * len(worker.running) > state.settings.scheduling.max_kv_cache_usage


def _is_held_back(state: SchedulerState, worker: Worker) -> bool:
    """Whether a worker gets no work for a reason that need not hold for the others."""
    return _is_short_of_kv_cache(state, worker) or _waits_for_groups(state, worker)


def _give_back(
    state: SchedulerState, worker: Worker, cause: str, commands: list[Command], *, uses_attempt: bool
) -> None:
    for rollout in reversed(list(worker.running.values())):
        requeue(state, rollout, cause, commands, uses_attempt=uses_attempt)


def _retry(state: SchedulerState, rollout: Rollout, commands: list[Command]) -> None:
    """Try a masked item of a fixed list again, or let it fail."""
    phase = rollout.group.phase
    if rollout.attempt >= phase.plan.max_attempts:
        phase.counts["masked"] -= 1
        phase.counts["failed"] += 1
        commands.append(FinishRollout(rollout.rollout_id, "failed"))
        return
    commands.append(FinishRollout(rollout.rollout_id, "masked"))
    again = Rollout(state.new_id("roll"), rollout.group, rollout.repeat, rollout.attempt + 1)
    state.add_rollout(again)
    state.enter_queue(again)
    commands.append(
        RetryRollout(again.rollout_id, rollout.group.group_id, again.repeat, again.attempt, rollout.rollout_id)
    )


def _measure(state: SchedulerState, rollout: Rollout, event: RolloutEnded) -> None:
    phase, measures = rollout.group.phase, state.measures
    if not phase.trains:
        return
    if event.reward is not None:
        state.outcomes.add(rollout.group.task_id, event.reward, event.steps)
        state.tell_samplers(rollout.group.task_id)
    if rollout.state != "assigned":
        return
    measures.add_episodes((event.now_s - rollout.assigned_s if event.duration_s is None else event.duration_s,))
    if rollout.leads and event.prepare_s is not None:
        measures.add_prepared(event.prepare_s)
    if event.version_min is not None and rollout.partial is None:
        measures.add_version_lag(rollout.assigned_version - event.version_min)


def _assignment(rollout: Rollout, worker: Worker) -> AssignRollout:
    group = rollout.group
    return AssignRollout(
        rollout.rollout_id,
        group.group_id,
        group.task_id,
        group.phase.plan.name,
        group.max_steps,
        worker.worker_id,
        rollout.request_id or "",
        worker.expires_s,
        rollout.partial,
    )
