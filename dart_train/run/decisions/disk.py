"""When a run pauses because its disk is nearly full, and when it goes on.

Role: `decide(state, event)` for the disk of a run folder. Rule: no I/O, and the time comes with the event; a run that paused goes on only
with clearly more space than it paused at, so that it does not pause again at once. Non-goals: measuring, and holding work
(`dart_train.run.disk`).
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
RESUME_FACTOR = 1.25
"""A run goes on with this many times the space below which it pauses."""


@dataclass(slots=True)
class DiskState:
    """The disk of a run folder.

    Attributes:
        folder: The folder.
        min_free_gib: Free space below which the run pauses, in GiB; 0: it never pauses.
        full_since_s: When it paused for lack of space; None: there is enough.
        refused_since_s: When a file could not be written although there is enough; None: they can be written.
    """

    folder: str
    min_free_gib: float
    full_since_s: float | None = None
    refused_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class DiskSeen:
    """A look at the disk.

    Attributes:
        now_s: Present time.
        free_bytes: Free space.
    """

    now_s: float
    free_bytes: int


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """A file could not be written for lack of space.

    Attributes:
        now_s: Present time.
        free_bytes: Free space.
        cause: What the system said.
    """

    now_s: float
    free_bytes: int
    cause: str


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The file was written.

    Attributes:
        now_s: Present time.
    """

    now_s: float


@dataclass(frozen=True, slots=True)
class HoldWork:
    """Begin no rollout and no train step."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseWork:
    """Go on."""


@dataclass(frozen=True, slots=True)
class TellDisk:
    """Tell a person."""

    line: str


DiskEvent = DiskSeen | WriteRefused | WriteDone
DiskCommand = HoldWork | ReleaseWork | TellDisk


def decide(state: DiskState, event: DiskEvent) -> list[DiskCommand]:
    """Decide what follows a look at the disk, or a write.

    Args:
        state: The disk; changed.
        event: What was seen.

    Returns:
        What is to be done, in order. While the run pauses, every look holds work again: a data manager that was started anew forgot it.
    """
    if isinstance(event, WriteDone):
        return _write_done(state, event)
    if isinstance(event, WriteRefused):
        return _write_refused(state, event)
    free_gib = event.free_bytes / GIB
    resume_gib = RESUME_FACTOR * state.min_free_gib
    if state.full_since_s is None:
        if free_gib >= state.min_free_gib:
            return []
        state.full_since_s = event.now_s
        reason = _reason(state, free_gib)
        return [TellDisk(reason), HoldWork(reason)]
    if free_gib < resume_gib:
        return [HoldWork(_reason(state, free_gib))]
    minutes = (event.now_s - state.full_since_s) / 60
    state.full_since_s = state.refused_since_s = None
    return [
        ReleaseWork(),
        TellDisk(f"{state.folder} has {free_gib:.2f} GiB free: the run goes on after {minutes:.0f} minutes"),
    ]


def _write_refused(state: DiskState, event: WriteRefused) -> list[DiskCommand]:
    """A disk that is seen to be full pauses the run as ever; one with space (a quota, or no limit) pauses it until it can be written."""
    commands = decide(state, DiskSeen(event.now_s, event.free_bytes))
    if state.full_since_s is not None or state.refused_since_s is not None:
        return commands
    state.refused_since_s = event.now_s
    reason = (
        f"paused: {state.folder} cannot be written ({event.cause}) although it has {event.free_bytes / GIB:.2f} GiB free: free some "
        "space or raise its quota; the run goes on by itself as soon as it can be written"
    )
    return [*commands, TellDisk(reason), HoldWork(reason)]


def _write_done(state: DiskState, event: WriteDone) -> list[DiskCommand]:
    if state.refused_since_s is None:
        return []
    minutes = (event.now_s - state.refused_since_s) / 60
    state.refused_since_s = None
    if state.full_since_s is not None:
        return []
    return [ReleaseWork(), TellDisk(f"{state.folder} can be written: the run goes on after {minutes:.0f} minutes")]


def _reason(state: DiskState, free_gib: float) -> str:
    return (
        f"paused: {state.folder} has {free_gib:.2f} GiB free, and below limits.pause_disk_gib = {state.min_free_gib:g} no rollout and no "
        f"train step begins: free some space; with {RESUME_FACTOR * state.min_free_gib:.2f} GiB the run goes on by itself"
    )
