"""Whose rights a piece of work has: files opened with the rights of an ordinary user, a root process freed of what its caller set.

Rule: a path that came from a user is opened with that user's rights, so that it leads nowhere he cannot go himself; what is opened is used
by its descriptor, so that nobody exchanges it afterwards.
Non-goals: deciding who may ask (`server`, `starter`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import pwd
import resource
import signal
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dart_server.hostd.linux import syscalls

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""The system call itself: libc's function changes every thread."""
_GROUP_OR_OTHERS_WRITE = 0o022
_STICKY = 0o1000
_STACK_BYTES = 8 << 20

NEEDLESS_CAPABILITIES = (9, 11, 13, 16, 17, 20, 22, 26, 30, 32, 34, 35, 36, 37, 38, 39)
"""What neither runc nor CRIU uses: LINUX_IMMUTABLE, NET_BROADCAST, NET_RAW, SYS_MODULE, SYS_RAWIO, SYS_PACCT, SYS_BOOT, SYS_TTY_CONFIG,
AUDIT_CONTROL, MAC_OVERRIDE, SYSLOG, WAKE_ALARM, BLOCK_SUSPEND, AUDIT_READ, PERFMON, BPF. Not SYS_TIME: CRIU sets the monotonic clock of a
restored desktop with it."""
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
_PR_CAPBSET_DROP = 24

T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class HostUser:
    """An ordinary user of the host with his groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, uid: int) -> HostUser:
        """Read a user's groups. Raises KeyError for a uid that the host does not know."""
        entry = pwd.getpwuid(uid)
        return cls(uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def as_user(user: HostUser, work: Callable[[], T]) -> T:
    """Return the result of `work`, done in a thread whose access to files is the user's. Raises what `work` raises."""

    def body() -> T:
        groups = (ctypes.c_uint32 * len(user.groups))(*user.groups)
        if _libc.syscall(_SETGROUPS[platform.machine()], len(user.groups), groups) != 0:
            raise OSError(ctypes.get_errno(), "setgroups")
        _libc.setfsgid(user.gid)
        _libc.setfsuid(user.uid)
        if _libc.setfsuid(-1) != user.uid or _libc.setfsgid(-1) != user.gid:
            raise PermissionError("the kernel refused to take on the user's rights")
        return work()

    return syscalls.run_in_thread(body)


def open_directory(user: HostUser, path: Path) -> int:
    """Open a directory with the user's rights; returns its descriptor. Raises OSError."""
    return as_user(user, lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def is_mounted_here(descriptor: int) -> bool:
    """Return whether an open file lies on a mount of this thread's own mount namespace.

    A path such as `/proc/PID/root/...` leads into another namespace, which a user can make and fill with mounts: root's own files under
    names that he chose.
    """
    told = Path(f"/proc/thread-self/fdinfo/{descriptor}").read_text(encoding="ascii").split()
    number = told[told.index("mnt_id:") + 1]
    with open("/proc/thread-self/mountinfo", "rb") as table:
        return any(line.split(maxsplit=1)[0].decode() == number for line in table)


def belongs_to_root(status: os.stat_result) -> bool:
    """Return whether only root may change what has this status."""
    return status.st_uid == 0 and not status.st_mode & _GROUP_OR_OTHERS_WRITE


def lies_with_root(path: Path) -> bool:
    """Return whether only root may change a file, or exchange it or a directory on its way. Raises OSError when there is none."""
    path = path.resolve(strict=True)
    above = (place.stat() for place in path.parents)
    return belongs_to_root(path.stat()) and all(
        belongs_to_root(status) or (status.st_uid == 0 and bool(status.st_mode & _STICKY)) for status in above
    )


def drop_capabilities(dropped: Iterable[int] = NEEDLESS_CAPABILITIES) -> None:
    """Give up capabilities for this thread and for all that it starts from now on. Raises OSError.

    A capability outside the bounding set does not come back when root starts a program.
    """
    gone = set(dropped)
    for number in gone:
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0 and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), f"capability {number} cannot be dropped")
    fields = Path("/proc/thread-self/status").read_text(encoding="ascii", errors="replace").splitlines()
    held = {line.split(":")[0]: int(line.split()[1], 16) for line in fields if line.startswith("Cap")}
    mask = ~sum(1 << number for number in gone)
    effective, permitted = held["CapEff"] & mask, held["CapPrm"] & mask
    words = [word for shift in (0, 32) for word in (effective >> shift, permitted >> shift, 0)]
    data = struct.pack("=6I", *(word & 0xFFFFFFFF for word in words))
    if _libc.syscall(_CAPSET[platform.machine()], struct.pack("=Ii", _CAPABILITY_VERSION, 0), data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def reset_process() -> None:
    """Free a process that was started for an ordinary user of what that user could set: environment, directory, limits, signals, files."""
    os.environ.clear()
    os.environ.update({"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root"})
    os.chdir("/")
    os.umask(0o022)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > 2:
                os.close(int(name))
    with suppress(OSError):
        os.setsid()
    for number in signal.valid_signals():
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with suppress(OSError, ValueError):
        signal.setitimer(signal.ITIMER_REAL, 0)
    unlimited = resource.RLIM_INFINITY
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU):
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, (unlimited, unlimited))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, unlimited))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
