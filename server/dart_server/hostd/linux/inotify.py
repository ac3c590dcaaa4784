"""Inotify instances: the kernel counts them per user of the host, and all desktops' users are one.

Role: how many there may be, and more of them. An idle desktop holds six, a busy one a dozen, and Debian allows 128: sixteen desktops use
them up, and the next restore fails. Rule: the host's limit is raised and never lowered; that costs no memory until they are used, and
another farm may rely on it, so it stays. Non-goals: watches, of which there are enough; a desktop that uses up the host's on purpose.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)
INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
TARGET_INSTANCES = 8192
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
    """Raise the limit to `TARGET_INSTANCES`, as root. Where the host does not let us (a container's /proc/sys), the log says so with the
    fix."""
    try:
        have = instance_limit()
    except FileNotFoundError:
        return  # a kernel without inotify counts none
    if have >= TARGET_INSTANCES:
        return
    try:
        INSTANCES.write_text(f"{TARGET_INSTANCES}\n", encoding="ascii")
    except OSError as error:
        log.warning(
            "inotify instances stay at %d, enough for about %d desktops (%s): %s",
            have,
            desktop_capacity(),
            error,
            FIX_COMMAND,
        )
    else:
        log.info("raised fs.inotify.max_user_instances from %d to %d", have, TARGET_INSTANCES)


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
