"""The few system calls that Python 3.11 lacks: mount, umount, unshare, setns, prctl, ptrace. Errors are OSError with the path.

What changes a thread (its namespaces, its directory, whom it traces) runs through `run_in_thread`, so that no other work and no child
process can ever inherit it.
"""

from __future__ import annotations

import ctypes
import os
import signal
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
        return kill_pending(int(_field(f"/proc/self/fdinfo/{pidfd}", "Pid:")))
    except (OSError, StopIteration):
        return False


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
