"""Inotify instances and watches: the kernel counts them for the user who made a user namespace, and that is root for every desktop.

Role: how many there may be, and more of them. An idle desktop holds six, a busy one a dozen, and Debian allows 128: sixteen desktops use
them up, and the next restore fails. Rule: the host's limits are raised and never lowered; that costs no memory until they are used, and
another farm may rely on it, so it stays. They are raised so far that a desktop which makes as many as it can reaches its own limit of
memory first, which these count against. Non-goals: limits of one user inside a desktop.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)
INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
WATCHES = Path("/proc/sys/fs/inotify/max_user_watches")
TARGET_INSTANCES = 1 << 27
"""More than fit into the memory of a desktop, at a kilobyte each."""
INSTANCES_PER_DESKTOP = 12
FIX_COMMAND = f"sudo sysctl fs.inotify.max_user_instances={TARGET_INSTANCES}"
_REFUSED = re.compile(
    r"Error \(criu/fsnotify\.c:\d+\): fsnotify: Can't create inotify for 0x[0-9a-f]+: Too many open files$"
)
"""The whole of CRIU's line: a tenant's file names stand in other ones."""


def instance_limit() -> int:
    """Instances that one user may have."""
    return int(INSTANCES.read_text(encoding="ascii"))


def raise_limit() -> None:
    """Raise both limits to `TARGET_INSTANCES`, as root. Where the host does not let us (a container's /proc/sys), the log says so with
    the fix."""
    for limit in (WATCHES, INSTANCES):
        try:
            have = int(limit.read_text(encoding="ascii"))
        except FileNotFoundError:
            continue  # a kernel without inotify counts none
        if have >= TARGET_INSTANCES:
            continue
        try:
            limit.write_text(f"{TARGET_INSTANCES}\n", encoding="ascii")
        except OSError as error:
            have, enough = instance_limit(), desktop_capacity()
            log.warning(
                "inotify instances stay at %d, enough for about %d desktops (%s): %s", have, enough, error, FIX_COMMAND
            )
            return
        log.info("raised fs.inotify.%s from %d to %d", limit.name, have, TARGET_INSTANCES)


def desktop_capacity() -> int:
    """Desktops for which the instances are enough, about."""
    return instance_limit() // INSTANCES_PER_DESKTOP


def ran_out(criu_log: Path) -> bool:
    """Whether a restore failed because there was none left, by CRIU's log of it."""
    try:
        with criu_log.open(encoding="utf-8", errors="replace") as lines:
            return any(_REFUSED.search(line) for line in lines)
    except FileNotFoundError:
        return False
