"""Ending a worker's process group without leaks.

Role: who is in a group, and killing them. Rule: Python's resource tracker frees the group's shared memory once all others are gone, so it
is killed last or not at all. Linux only. Non-goals: polite stops (`dart_agent.inference.launch`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path


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
