"""Ending a worker's process group without leaks.

Role: who is in a group, killing them, and how a worker's own children end with it. Rule: Python's resource tracker frees the group's
shared memory once all others are gone, so it is killed last or not at all. Linux only. Non-goals: polite stops
(`dart_agent.inference.worker_process`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

LEADER_PID_VARIABLE = "DART_WORKER_PID"
"""Set by a worker for its children: its process id."""
_PR_SET_PDEATHSIG = 1


def mark_group_leader() -> None:
    """Called by a worker before it starts processes: they are told whom to end with."""
    os.environ[LEADER_PID_VARIABLE] = str(os.getpid())


def exit_with_leader() -> None:
    """Called in every process of a worker: a child is killed when its parent ends, and ends at once when the worker is gone already.

    So one that was started while its group was being killed does not stay. Does nothing in the worker itself, and outside a worker.
    """
    leader = os.environ.get(LEADER_PID_VARIABLE)
    if leader is None or int(leader) == os.getpid():
        return
    set_parent_death_signal(signal.SIGKILL)
    try:
        os.kill(int(leader), 0)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)


def set_parent_death_signal(number: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when its parent ends (`PR_SET_PDEATHSIG`).

    Args:
        number: The signal.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def group_members(group: int) -> list[tuple[int, bool]]:
    """Processes of a process group that are not zombies, and whether each is Python's resource tracker."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, group_id = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group_id) != group or state == "Z":
                continue
            command = (entry / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        members.append((int(entry.name), b"resource_tracker" in command))
    return members


def kill_members(group: int, *, spare_trackers: bool, spare: Collection[int] = ()) -> None:
    """SIGKILL to every member of a group but `spare`, and but the resource trackers where they are spared."""
    for pid, is_tracker in group_members(group):
        if pid not in spare and not (spare_trackers and is_tracker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
