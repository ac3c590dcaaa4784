"""A desktop stands still while it is saved, from a moment at which CRIU can stop each of its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dart_server.hostd.errors import HostdHostFault
from dart_server.hostd.linux import cgroups, vfork

Seen = TypeVar("Seen")
FREEZE_TIMEOUT_S = 10.0
"""How long its processes may take to stop: on a busy host each must first get a processor."""
STARTING_WAIT_S = 0.01
"""How long it runs on when one of its processes is starting another; see `linux.vfork`."""


@contextmanager
def stopped(name: str, group: str, look: Callable[[set[int]], Seen]) -> Iterator[tuple[float, Seen]]:
    """Stop every process of a desktop for the time of a context. `runc pause` gives up too soon for a busy host.

    Args:
        name: Of the desktop, for errors.
        group: Its control group, `/<prefix>/<name>`.
        look: Reads from its processes what cannot be read once they stand still; just before they are stopped.

    Yields:
        When they began to stop, in seconds of the monotonic clock, and what was read.

    Raises:
        HostdHostFault: If they cannot be stopped, or do not go on afterwards.
    """
    deadline_s = time.monotonic() + FREEZE_TIMEOUT_S
    while True:
        seen = look(cgroups.group_members(group))
        began_s = time.monotonic()
        if not cgroups.freeze(group, FREEZE_TIMEOUT_S):
            raise HostdHostFault(f"the desktop {name} could not be frozen, so it was not saved")
        if not (starting := vfork.waiting(cgroups.group_members(group))):
            break
        _thaw(name, group)
        if began_s > deadline_s:
            detail = f"the process {starting[0]} of the desktop {name} is starting another without end"
            raise HostdHostFault(f"{detail}, so it was not saved")
        time.sleep(STARTING_WAIT_S)
    try:
        yield began_s, seen
    finally:
        _thaw(name, group)


def _thaw(name: str, group: str) -> None:
    if not cgroups.thaw(group):
        raise HostdHostFault(f"the desktop {name} could not be thawed after it was saved")
