"""The system-call filter that a desktop runs under, as CRIU asks the kernel for it.

The kernel shows the filters of others only to a process that has none itself. Where CRIU must run under one (`rlimits`), its
questions are answered here instead: `read` takes the filter once from a running desktop, `answer` repeats it for every process that has
this one filter and no other. A process that added a filter of its own is left to the kernel, which refuses, and the checkpoint fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from dart_server.hostd.linux import syscalls

SETOPTIONS, GET_FILTER, GET_METADATA = 0x4200, 0x420C, 0x420D
SUSPEND = 1 << 21
"""Option of SETOPTIONS: no filtering while the tracer works. It is granted without being given: nothing that CRIU does inside a
process is among what the filter refuses."""
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WAIT_ALL = 0x40000000
_INSTRUCTION_BYTES = 8
_METADATA = struct.Struct("=QQ")


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as the kernel keeps it: its program, 8 bytes per instruction, and its flags."""

    program: bytes
    flags: int


def count(pid: int) -> int:
    """Filters of a process or thread; zero when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Seccomp_filters:")), 0)


def read(pid: int) -> Filter:
    """The one filter of a running child, which is stopped for a moment. Raises OSError."""
    return syscalls.run_in_thread(lambda: _read(pid))


def _read(pid: int) -> Filter:
    syscalls.ptrace(_SEIZE, pid, 0, 0)
    try:
        syscalls.ptrace(_INTERRUPT, pid, 0, 0)
        os.waitpid(pid, _WAIT_ALL)
        program = ctypes.create_string_buffer(syscalls.ptrace(GET_FILTER, pid, 0, 0) * _INSTRUCTION_BYTES)
        syscalls.ptrace(GET_FILTER, pid, 0, ctypes.addressof(program))
        metadata = ctypes.create_string_buffer(_METADATA.size)
        syscalls.ptrace(GET_METADATA, pid, _METADATA.size, ctypes.addressof(metadata))
    finally:
        syscalls.ptrace(_DETACH, pid, 0, 0)
    return Filter(program.raw, _METADATA.unpack(metadata.raw)[1])


def answer(caller: int, request: int, target: int, address: int, data: int, desktop_filter: Filter) -> int | None:
    """What the ptrace call of `caller` returns (negative: an error number), written where it asked; None: let the kernel answer."""
    if count(target) != 1:
        return None
    if request == SETOPTIONS:
        return 0
    try:
        with open(f"/proc/{caller}/mem", "r+b", buffering=0) as memory:
            if request == GET_FILTER:
                if address > 0:
                    return -errno.ENOENT
                if data:
                    memory.seek(data)
                    memory.write(desktop_filter.program)
                return len(desktop_filter.program) // _INSTRUCTION_BYTES
            memory.seek(data)
            (wanted,) = struct.unpack("=Q", memory.read(8))
            if wanted > 0:
                return -errno.ENOENT
            memory.seek(data)
            memory.write(_METADATA.pack(0, desktop_filter.flags))
            return _METADATA.size
    except OSError:
        return None
