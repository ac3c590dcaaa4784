"""Makes a booted desktop's /proc read-only.

The permissions of what lies directly in /proc belong to the whole host: root in one desktop could take /proc/cpuinfo from all that start
later. While the session starts its processes say there how dispensable they are, so it is closed afterwards; snapshots keep it closed.
"""

from __future__ import annotations

from pathlib import Path

from dart_server.hostd.linux import syscalls

_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


def make_proc_read_only(pidfd: int) -> None:
    """Remount /proc in the mount namespace of a process. Raises OSError."""

    def work() -> None:
        syscalls.unshare(syscalls.CLONE_FS)
        syscalls.setns(pidfd, syscalls.CLONE_NEWNS)
        syscalls.mount(
            "none", Path("/proc"), None, syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | _FLAGS
        )

    syscalls.run_in_thread(work)
