"""Makes a booted desktop's /proc read-only.

The permissions of what lies directly in /proc belong to the whole host: root in one desktop could take /proc/cpuinfo from all that start
later. While the session starts its processes say there how dispensable they are, so it is closed afterwards; snapshots keep it closed.
"""

from __future__ import annotations

from pathlib import Path

from dart_server.hostd import kernel

_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def close_proc(pidfd: int) -> None:
    """Remount /proc in the mount namespace of a process. Raises OSError."""

    def work() -> None:
        kernel.unshare(kernel.CLONE_FS)
        kernel.setns(pidfd, kernel.CLONE_NEWNS)
        kernel.mount("none", Path("/proc"), None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _FLAGS)

    kernel.in_own_thread(work)
