"""Lets CRIU read other users' resource limits on hosts whose root lacks CAP_SYS_RESOURCE (some VMs and containers).

There the kernel refuses prlimit(2) on a process of another user, although /proc/PID/limits shows the same numbers. The
checkpoint command is started under a seccomp filter that hands every prlimit call to this process: reading another
process's limit is answered from /proc, every other call is let through unchanged. On hosts with the capability nothing
of this is used. Restores never run under the filter, so no desktop inherits it. A filtered CRIU may not look behind the
filters of others, so on such hosts desktops run without their own system-call filter; the doctor says so.

Run as a script, this file is the launcher: `rlimits.py SOCKET_FD PROGRAM ARGUMENTS...`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CAP_SYS_RESOURCE = 24
_MACHINES = {"x86_64": (0xC000003E, 302, 317), "aarch64": (0xC00000B7, 261, 277)}
"""Machine -> (audit architecture, number of prlimit64, number of seccomp)."""
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_RET_ALLOW, _RET_NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_IOCTL_RECEIVE, _IOCTL_SEND = 0xC0502100, 0xC0182101
_NOTICE = struct.Struct("=QIIiIQ6Q")
_REPLY = struct.Struct("=QqiI")
_CONTINUE = 1
_INFINITY = (1 << 64) - 1


def has_capability(number: int) -> bool:
    """Whether this process has a capability in effect."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def is_needed() -> bool:
    """Whether this (root) process lacks CAP_SYS_RESOURCE."""
    return not has_capability(_CAP_SYS_RESOURCE)


def read_limits(text: str) -> list[tuple[int, int]]:
    """(soft, hard) by resource number, from the text of /proc/PID/limits."""
    limits = []
    for line in text.splitlines()[1:]:
        soft, hard = line[26:].split()[:2]
        limits.append((_limit(soft), _limit(hard)))
    return limits


def _limit(word: str) -> int:
    return _INFINITY if word == "unlimited" else int(word)


@contextmanager
def supervised(argv: list[str]) -> Iterator[tuple[list[str], int]]:
    """Yield (argv to start instead, descriptor it must inherit); serves its prlimit calls until the block ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    server = threading.Thread(target=_serve, args=(ours,), name="rlimits", daemon=True)
    server.start()
    try:
        yield [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), *argv], theirs.fileno()
    finally:
        theirs.close()
        server.join(timeout=5.0)
        ours.close()


def _serve(connection: socket.socket) -> None:
    """Receive the listener from the launcher, then answer until the last filtered process has ended."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        return
    listener = descriptors[0]
    known: dict[int, list[tuple[int, int]]] = {}
    try:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while poll.poll()[0][1] & select.POLLIN:
            notice = bytearray(_NOTICE.size)
            try:
                fcntl.ioctl(listener, _IOCTL_RECEIVE, notice)
                number, caller, _, _, _, _, target, resource, new, old, _, _ = _NOTICE.unpack(notice)
                answered = not new and target and old and _answer(caller, target, resource, old, known)
                reply = _REPLY.pack(number, 0, 0, 0 if answered else _CONTINUE)
                fcntl.ioctl(listener, _IOCTL_SEND, bytearray(reply))
            except FileNotFoundError:
                continue
    finally:
        os.close(listener)


def _answer(caller: int, target: int, resource: int, address: int, known: dict[int, list[tuple[int, int]]]) -> bool:
    """Write the target's limit into the caller's memory; False when the kernel had better answer."""
    try:
        if target not in known:
            known[target] = read_limits(Path(f"/proc/{target}/limits").read_text(encoding="ascii"))
        soft, hard = known[target][resource]
        with open(f"/proc/{caller}/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            memory.write(struct.pack("=QQ", soft, hard))
    except (OSError, IndexError):
        return False
    return True


def _launch(channel: int, argv: list[str]) -> None:
    """Install the filter, send its listener to the helper, become the program."""
    architecture, prlimit, seccomp = _MACHINES[platform.machine()]
    instructions = [
        (_LOAD_WORD, 0, 0, 4),
        (_JUMP_IF_EQUAL, 0, 3, architecture),
        (_LOAD_WORD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, prlimit),
        (_RETURN, 0, 0, _RET_NOTIFY),
        (_RETURN, 0, 0, _RET_ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in instructions))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(code)))
    listener = ctypes.CDLL(None, use_errno=True).syscall(seccomp, _SET_MODE_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    connection = socket.socket(fileno=channel)
    socket.send_fds(connection, [b"\n"], [listener])
    os.close(listener)
    connection.close()
    os.execv(argv[0], argv)


if __name__ == "__main__":
    _launch(int(sys.argv[1]), sys.argv[2:])
