"""`decide(state, event) -> commands`: the one entrance to all decisions of the data manager.

Role: dispatch. Rule: no I/O, no clock, no randomness but that of the seed and `new_id`; the same events in the same order give the same
commands. The state is changed in place: if the commands cannot be executed, the state is thrown away and rebuilt from what was stored.
Non-goals: the decisions themselves (`assignment`, `groups`, `batching`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dart_train.scheduling import assignment, batching
from dart_train.scheduling.commands import Command
from dart_train.scheduling.events import (
    AskWithdrawn,
    BatchAsked,
    BatchDone,
    BatchRefused,
    Event,
    HeartbeatReceived,
    PhaseStarted,
    PhaseStopped,
    PolicyPublished,
    PoolSearched,
    RolloutAbandoned,
    RolloutEnded,
    RolloutParked,
    RolloutRestarted,
    TimePassed,
    WorkAsked,
    WorkerReleased,
)
from dart_train.scheduling.groups import end_phase, on_pool_searched, open_group
from dart_train.scheduling.state import SchedulerState


def decide(state: SchedulerState, event: Event) -> list[Command]:
    """Decide what follows from an event.

    Args:
        state: The state; it is changed.
        event: What happened; its time is not before that of the last event.

    Returns:
        What is to be done, in order; empty where nothing follows.

    Raises:
        KeyError: The event names a phase that does not exist.
        ValueError: A phase starts that exists already.
    """
    commands: list[Command] = []
    if isinstance(event, (WorkAsked, HeartbeatReceived)):
        state.see_worker(event.worker_id, event.now_s, event.desktops, event.kv_cache_usage)
    if state.expiries and state.expiries[0][0] < event.now_s:
        assignment.expire(state, event.now_s, commands)
    _HANDLERS[type(event)](state, event, commands)
    if state.waiting_workers:
        assignment.serve_waiting(state, event.now_s, commands)
    return commands


def _on_started(state: SchedulerState, event: PhaseStarted, commands: list[Command]) -> None:
    plan = event.plan
    if plan.name in state.phases:
        raise ValueError(f"phase {plan.name!r} exists already")
    phase = state.add_phase(plan)
    if not plan.endless:
        for task_id in plan.task_ids:
            size = plan.rollouts_per_task
            state.count_group(phase, task_id)
            open_group(state, phase, task_id, size, size, plan.max_steps, event.now_s, commands)


def _on_stopped(state: SchedulerState, event: PhaseStopped, commands: list[Command]) -> None:
    phase = state.phases[event.name]
    if phase.state == "active":
        end_phase(state, phase, "stopped", commands)


def _on_time(state: SchedulerState, event: TimePassed, commands: list[Command]) -> None:
    """Signs of life and expiry are looked at before every event."""


_HANDLERS: dict[type, Callable[[SchedulerState, Any, list[Command]], None]] = {
    PhaseStarted: _on_started,
    PhaseStopped: _on_stopped,
    WorkAsked: assignment.on_ask,
    AskWithdrawn: assignment.on_withdrawn,
    HeartbeatReceived: _on_time,
    WorkerReleased: assignment.on_released,
    RolloutAbandoned: assignment.on_abandoned,
    RolloutParked: assignment.on_parked,
    RolloutRestarted: assignment.on_restarted,
    RolloutEnded: assignment.on_ended,
    PoolSearched: on_pool_searched,
    BatchAsked: batching.on_batch_asked,
    BatchRefused: batching.on_batch_refused,
    BatchDone: batching.on_batch_done,
    PolicyPublished: batching.on_published,
    TimePassed: _on_time,
}
