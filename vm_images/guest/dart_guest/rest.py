"""Whether a program is at rest: its main thread sleeps and has used no processor for a while.

Role: for programs that put off what they have read, on timers of their own, so that no answer of theirs tells that they are done. Rule: a
program that waits for a processor is not at rest, however long it waits; one that is gone is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LOOK_EVERY_S = 0.004
SLEEPING = "SI"
"""Waiting for a disk is not rest."""


def await_rest(
    pid: int,
    still_s: float,
    limit_s: float,
    sleep: Callable[[float], None],
    monotonic: Callable[[], float],
    proc: Path = Path("/proc"),
) -> bool:
    """Wait until a program was at rest for `still_s`, at most `limit_s`; False when the limit came first."""
    begun_s = still_since_s = monotonic()
    before = looked(pid, proc)
    while (now_s := monotonic()) - begun_s < limit_s:
        if before is None or now_s - still_since_s >= still_s:
            return True
        sleep(LOOK_EVERY_S)
        after = looked(pid, proc)
        if after != before or (after is not None and after[0] not in SLEEPING):
            still_since_s = monotonic()
        before = after
    return False


def looked(pid: int, proc: Path) -> tuple[str, str] | None:
    """The main thread's state and the count of its time on processors; None when there is no such program."""
    try:
        state = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        return state, (proc / str(pid) / "schedstat").read_text(encoding="ascii")
    except (OSError, IndexError):
        return None
