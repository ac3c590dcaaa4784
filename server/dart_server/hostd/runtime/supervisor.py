"""Answers for CRIU what the kernel refuses it.

The checkpoint command is started (`launcher`) under a filter that hands some of its calls to this process:

- On hosts whose root lacks CAP_SYS_RESOURCE, prlimit: reading another process's limit is answered from /proc.
- For a desktop that was restored into its own user namespace, setns: CRIU tries as the desktop's root whether it can enter the desktop's
  namespaces. The memory of restored processes belongs to the host's user namespace, so where init lets nobody trace it the kernel refuses,
  although the namespaces are the right ones. The trial is told that it is the desktop's root while it stays the host's.
- A filtered process may not look at the filters of others, so what CRIU asks about the desktops' own filter is answered (`syscall_filter`).

Every other call is let through unchanged. Restores never run under it, so no desktop inherits it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dart_server.hostd.linux import rlimits
from dart_server.hostd.runtime import launcher, syscall_filter

_MACHINES = {"x86_64": (0xC000003E, 302, 317, 101, 308), "aarch64": (0xC00000B7, 261, 277, 117, 268)}
"""Machine -> (audit architecture, numbers of prlimit64, seccomp, ptrace and setns)."""
_CLONE_NEWUSER = 0x10000000
_RET_ALLOW, _RET_NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 24, 40
"""Where a filter finds what it looks at (of arguments the low words)."""
_IOCTL_RECEIVE, _IOCTL_SEND = 0xC0502100, 0xC0182101
_NOTICE = struct.Struct("=QIIiIQ6Q")
_REPLY = struct.Struct("=QqiI")
_CONTINUE = 1


def filter_program() -> bytes:
    """The filter that CRIU runs under: notifies of the calls that are answered here, allows all others."""
    architecture, prlimit, _, ptrace, setns = _MACHINES[platform.machine()]
    # Each jump names how many instructions it skips when it holds, and when it does not.
    steps = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 0, 13, architecture),
        (_LOAD_WORD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 10, 0, prlimit),
        (_JUMP_IF_EQUAL, 7, 0, setns),
        (_JUMP_IF_EQUAL, 0, 9, ptrace),
        (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF_EQUAL, 6, 0, syscall_filter.GET_FILTER),
        (_JUMP_IF_EQUAL, 5, 0, syscall_filter.GET_METADATA),
        (_JUMP_IF_EQUAL, 0, 5, syscall_filter.SETOPTIONS),
        (_LOAD_WORD, 0, 0, _FOURTH_ARGUMENT),
        (_JUMP_IF_SET, 2, 3, syscall_filter.SUSPEND),
        (_LOAD_WORD, 0, 0, _SECOND_ARGUMENT),
        (_JUMP_IF_EQUAL, 0, 1, _CLONE_NEWUSER),
        (_RETURN, 0, 0, _RET_NOTIFY),
        (_RETURN, 0, 0, _RET_ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


@contextmanager
def supervised(
    argv: list[str],
    desktop_filter: syscall_filter.Filter | None,
    further: Mapping[int, Sequence[syscall_filter.Filter]],
) -> Iterator[tuple[list[str], int]]:
    """Yield (argv to start instead, descriptor it must inherit); serves its calls until the block ends.

    `desktop_filter`: the filter that every desktop runs under. `further`: all filters of the processes that have more.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    server = threading.Thread(target=_serve, args=(ours, desktop_filter, further), name="supervisor", daemon=True)
    server.start()
    words = [str(theirs.fileno()), str(_MACHINES[platform.machine()][2]), filter_program().hex()]
    try:
        yield [sys.executable, "-I", "-S", str(Path(launcher.__file__)), *words, *argv], theirs.fileno()
    finally:
        theirs.close()
        server.join(timeout=5.0)
        ours.close()


def _serve(
    connection: socket.socket,
    desktop_filter: syscall_filter.Filter | None,
    further: Mapping[int, Sequence[syscall_filter.Filter]],
) -> None:
    """Receive the listener from the launcher, then answer until the last filtered process has ended."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        return
    listener = descriptors[0]
    limits: rlimits.LimitCache = {}
    _, prlimit, _, _, setns = _MACHINES[platform.machine()]
    try:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while poll.poll()[0][1] & select.POLLIN:
            notice = bytearray(_NOTICE.size)
            try:
                fcntl.ioctl(listener, _IOCTL_RECEIVE, notice)
                number, caller, _, call, _, _, first, second, third, fourth, _, _ = _NOTICE.unpack(notice)
                if call == prlimit:
                    result = rlimits.answer(caller, first, second, third, fourth, limits)
                elif call == setns:
                    result = _enters_user_namespace(caller)
                else:
                    result = (
                        syscall_filter.answer(caller, first, second, third, fourth, desktop_filter, further)
                        if desktop_filter
                        else None
                    )
                fcntl.ioctl(listener, _IOCTL_SEND, bytearray(_reply(number, result)))
            except FileNotFoundError:
                continue
    finally:
        os.close(listener)


def _enters_user_namespace(caller: int) -> int | None:
    """CRIU's trial has become another user than root before it enters; whatever else enters is let through."""
    try:
        lines = Path(f"/proc/{caller}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    user = next((line.split()[1] for line in lines if line.startswith("Uid:")), "0")
    return None if user == "0" else 0


def _reply(number: int, result: int | None) -> bytes:
    """A call's result, negative for an error number; None lets the kernel perform the call."""
    if result is None:
        return _REPLY.pack(number, 0, 0, _CONTINUE)
    return _REPLY.pack(number, max(result, 0), min(result, 0), 0)
