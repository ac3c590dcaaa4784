"""The few system calls that Python 3.11 lacks: mount, umount, unshare, setns, prctl, ptrace, openat2, statfs.

Errors are OSError with the path.

What changes a thread (its namespaces, its directory, whom it traces) runs through `run_in_thread`, so that no other work and no child
process can ever inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2
CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
PR_SET_CHILD_SUBREAPER = 36
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10
_NR_OPENAT2 = 437
_OPENAT2_TRIES = 16
_STATFS_NBYTES = 256

T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    """mount(2). `kind` None for bind, remount and propagation changes."""
    result = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def umount(target: Path, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def unshare(flags: int) -> None:
    """unshare(2) for the calling thread."""
    _check(_libc.unshare(flags), "unshare")


def setns(namespace_fd: int, kind: int) -> None:
    """setns(2) for the calling thread."""
    _check(_libc.setns(namespace_fd, kind), "setns")


def become_subreaper() -> None:
    """Orphaned descendants (desktop inits) become children of this process, so that it learns how they ended."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl subreaper")


def open_in_root(root_fd: int, path: bytes, flags: int) -> int:
    """openat2(2): open `path` as a process would whose root directory is `root_fd`.

    Symbolic links and `..` stay inside that root; links of /proc that lead to open files are refused.
    """
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    for _ in range(_OPENAT2_TRIES):
        result = int(
            _libc.syscall(
                ctypes.c_long(_NR_OPENAT2),
                ctypes.c_int(root_fd),
                ctypes.c_char_p(path),
                ctypes.c_char_p(how),
                ctypes.c_size_t(len(how)),
            )
        )
        # The kernel answers EAGAIN when a rename anywhere on the host met the lookup of "..".
        if result >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
    _check(min(result, 0), f"openat2 {os.fsdecode(path)}")
    return result


def file_system_type(descriptor: int) -> int:
    """`f_type` of fstatfs(2): the magic number of the file system that an open file is on."""
    buffer = ctypes.create_string_buffer(_STATFS_NBYTES)
    _check(_libc.fstatfs(descriptor, buffer), "fstatfs")
    return int(ctypes.c_long.from_buffer(buffer).value)


def ptrace(request: int, pid: int, address: int, data: int) -> int:
    """ptrace(2), its own result for the requests that have one."""
    call = _libc.ptrace
    call.restype = ctypes.c_long
    result = int(call(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), ctypes.c_void_p(data)))
    _check(min(result, 0), f"ptrace {request:#x}")
    return result


def run_in_thread(work: Callable[[], T]) -> T:
    """The result of `work`, done in a thread that ends afterwards; raises what it raises."""
    result: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=body, name="own")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def has_pending_kill(pidfd: int) -> bool:
    """Whether a SIGKILL waits for a process: one that is frozen ends only once it is thawed."""
    try:
        return kill_pending(process_of(pidfd))
    except (OSError, StopIteration):
        return False


def has_ended(pidfd: int, wait_s: float = 0.0) -> bool:
    """Whether the process of a pidfd has ended, or ends within so many seconds. `select` refuses descriptors from 1024 on."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def process_of(pidfd: int) -> int:
    """The process id behind a pidfd; -1 once the process is gone."""
    return int(_field(f"/proc/self/fdinfo/{pidfd}", "Pid:"))


def kill_pending(pid: int) -> bool:
    """The same by process id; False for a process that is gone."""
    try:
        pending = [_field(f"/proc/{pid}/status", name) for name in ("SigPnd:", "ShdPnd:")]
    except (OSError, StopIteration):
        return False
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)


def _field(path: str, name: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return next(line.split()[1] for line in file if line.startswith(name))
