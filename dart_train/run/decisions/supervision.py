"""What follows the end of a component's process.

Role: `decide(state, event)` for one supervised component. Rule: no I/O and no clock; every end that nobody asked for, also one with exit
code 0 of a component that should run until it is stopped, leads to a restart, a limited number of times, then to a failure with its cause;
a process that ran for `STEADY_S` gives its component all of its restarts back, because faults that are hours apart are not one fault; an
end while the disk is full leads to a restart when there is space; what was stopped is never started again. Non-goals: processes
(`dart_train.run.launcher`).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

EXIT_REFUSED = 2
"""Exit code of a component that refuses its configuration or its files: it would refuse them again."""

STEADY_S = 1800.0
"""A process that has run for so long has not failed to start."""

AfterEnd = Literal["done", "restart", "fail"]


@dataclass(slots=True)
class SupervisionState:
    """A supervised component.

    Attributes:
        name: Its name.
        max_restarts: How often it may be started again without a steady process.
        endless: Whether it runs until it is stopped.
        restarts: How often it was started again since it had one.
        stopping: Whether it was asked to stop.
        over: Whether its last process has ended.
    """

    name: str
    max_restarts: int
    endless: bool
    restarts: int = 0
    stopping: bool = False
    over: bool = False


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The component is to be stopped."""


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A process of the component runs."""


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The process of the component ended.

    Attributes:
        code: Its exit code, negative for a signal.
        disk_full: Whether the run pauses because its disk is nearly full.
        lived_s: Seconds from its start to its end.
    """

    code: int
    disk_full: bool = False
    lived_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AwaitSpace:
    """Wait until the disk has space again, or until the component is to be stopped, in which case nothing follows."""


@dataclass(frozen=True, slots=True)
class KillGroup:
    """End whatever is left of the process group."""


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start another process, because of the end that is told.

    Attributes:
        code: The exit code.
    """

    code: int


@dataclass(frozen=True, slots=True)
class ComponentDone:
    """It did what it was started for, or was stopped."""


@dataclass(frozen=True, slots=True)
class ComponentLost:
    """It failed for good.

    Attributes:
        cause: One sentence without an end: how it ended, and how often it was started again.
        refused: Whether it refused its configuration: then the last line of its log says why.
    """

    cause: str
    refused: bool


SupervisionEvent = ProcessStarted | ProcessEnded | StopAsked
SupervisionCommand = KillGroup | AwaitSpace | StartAgain | ComponentDone | ComponentLost


def after_end(code: int, *, endless: bool, restarts: int, max_restarts: int) -> AfterEnd:
    """Decide what follows the end of a component that nobody stopped.

    Args:
        code: Its exit code, negative for a signal.
        endless: Whether it should have run until it was stopped.
        restarts: How often it was started again before.
        max_restarts: How often it may be.

    Returns:
        `done`: it did what it was started for; `restart`; or `fail`: its end ends the run.
    """
    if code == 0 and not endless:
        return "done"
    return "fail" if code == EXIT_REFUSED or restarts >= max_restarts else "restart"


def describe_end(code: int, *, endless: bool = False) -> str:
    """Say how a process ended.

    Args:
        code: Its exit code, negative for a signal.
        endless: Whether it should have run until it was stopped.

    Returns:
        For instance `ended with exit code 3` or `was ended by SIGKILL`.
    """
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}" + (
        ", although it should run until it is stopped" if endless and not code else ""
    )


def decide(state: SupervisionState, event: SupervisionEvent) -> list[SupervisionCommand]:
    """Decide what follows an event.

    Args:
        state: The component; changed.
        event: What happened.

    Returns:
        What is to be done, in order.
    """
    if isinstance(event, StopAsked):
        state.stopping = True
        return []
    if isinstance(event, ProcessStarted):
        return [KillGroup()] if state.stopping else []  # the stop met the process before, so it could not end this one
    if state.stopping:
        state.over = True
        return [ComponentDone()]
    if event.disk_full and event.code != EXIT_REFUSED and (event.code or state.endless):
        return [
            KillGroup(),
            AwaitSpace(),
            StartAgain(event.code),
        ]  # the disk is to blame: none of its restarts is used up
    if event.lived_s >= STEADY_S:
        state.restarts = 0
    then = after_end(event.code, endless=state.endless, restarts=state.restarts, max_restarts=state.max_restarts)
    if then == "restart":
        state.restarts += 1
        return [KillGroup(), StartAgain(event.code)]
    state.over = True
    if then == "done":
        return [KillGroup(), ComponentDone()]
    told = f"{state.name} {describe_end(event.code, endless=state.endless)}"
    if state.restarts:
        told += f", and was started again {state.restarts} times in a row before"
    return [KillGroup(), ComponentLost(told, refused=event.code == EXIT_REFUSED)]
