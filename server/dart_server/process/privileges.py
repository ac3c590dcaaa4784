"""The serving process gives up what it could still become: no program that it starts gains rights, whatever that program's file says.

Rule: for good, and for every thread. It is called once the provider has started, which is the last time that a farm runs sudo.
Non-goals: root's own farm, which has nothing to give up this way; the rights that the process has.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct
from pathlib import Path

log = logging.getLogger(__name__)
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_ALLOW_EVERYTHING = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
"""One instruction of a system-call filter: return "allow"."""


def give_up_new_privileges() -> None:
    """Set `no_new_privs` on every thread of this process; its children inherit it.

    The kernel sets it for one thread only. A system-call filter that is laid on all threads takes it to the others; ours allows every call.

    Raises:
        OSError: The kernel refuses it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    code = ctypes.create_string_buffer(_ALLOW_EVERYTHING, len(_ALLOW_EVERYTHING))
    program = ctypes.create_string_buffer(struct.pack("@HP", 1, ctypes.addressof(code)))
    result = libc.syscall(_SECCOMP[platform.machine()], _SET_MODE_FILTER, _ALL_THREADS, program)
    if result != 0:
        raise OSError(ctypes.get_errno(), "a filter for all threads")


def have_new_privileges() -> list[int]:
    """Return the threads of this process whose programs may still gain rights."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            status = (task / "status").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue  # it has just ended
        if "NoNewPrivs:\t1" not in status:
            found.append(int(task.name))
    return found


def confine() -> None:
    """Give up new privileges where this process is an ordinary user's. Where the kernel refuses, the log says so."""
    if os.geteuid() == 0:
        return
    try:
        give_up_new_privileges()
    except OSError as error:
        log.warning("the server keeps the right to start programs with more rights (%s)", error)
    else:
        log.info("no program that this server starts gains rights from now on")
