"""Processes of which a thread waits until a child of `vfork` (also `posix_spawn`) has begun its program.

Such a thread can be frozen, but no tracer can stop it, and its child never begins while both are frozen. CRIU waits ten seconds for it and
fails (`Unseizable non-zombie ... state D`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
_WAITING_IN = frozenset({"kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done"})
"""The kernel's functions that wait for the child, of Linux 4 to 6; a process that is frozen elsewhere sleeps in the freezer's own."""


def waiting(pids: Iterable[int]) -> list[int]:
    """Which of these processes wait for a child's program; none where the kernel does not tell root where a process sleeps."""
    return [pid for pid in pids if any(_sleeps_in(thread) in _WAITING_IN for thread in _threads(pid))]


def _threads(pid: int) -> list[Path]:
    try:
        return list((PROC / str(pid) / "task").iterdir())
    except OSError:  # it has ended
        return []


def _sleeps_in(thread: Path) -> str:
    try:
        return (thread / "wchan").read_text(encoding="ascii").strip()
    except OSError:  # it has ended
        return ""
