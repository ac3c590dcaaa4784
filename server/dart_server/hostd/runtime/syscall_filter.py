"""The system-call filter that a desktop runs under, as CRIU asks the kernel for it.

The kernel shows the filters of others only to a process that has none itself. Where CRIU must run under one (`rlimits`), its
questions are answered here instead: `read` takes the filter once from a running desktop, `answer` repeats it for every process that has
this one filter. A process that has more of them, as one that a task sealed, has them read before CRIU comes (`read_all`); where one of
them could refuse what CRIU does inside the process, it is left to the kernel, which refuses, and the checkpoint fails.
"""

from __future__ import annotations

import ctypes
import errno
import operator
import os
import platform
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from dart_server.hostd.linux import syscalls

SETOPTIONS, GET_FILTER, GET_METADATA = 0x4200, 0x420C, 0x420D
SUSPEND = 1 << 21
"""Option of SETOPTIONS: no filtering while the tracer works. It is granted without being given: nothing that CRIU does inside a
process is among what the filters refuse."""
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WAIT_ALL = 0x40000000
_INSTRUCTION_BYTES = 8
_METADATA = struct.Struct("=QQ")
MAX_FILTERS = 4
READ_LIMIT_S = 2.0
"""How long the processes of a desktop may take, together, to be stopped for a reader. One that waits for a child of `vfork` never is."""
_STOP_POLL_S = 0.001
_CALLS = 512
"""More than there are on any machine."""
_NUMBERS = {"x86_64": (0xC000003E, 59, 322, 9), "aarch64": (0xC00000B7, 221, 281, 222)}
"""Machine -> (audit architecture, numbers of execve, execveat and mmap)."""
_ALLOW = 0x7FFF0000
_LOAD_WORD, _RETURN, _JUMP, _AND = 0x20, 0x06, 0x05, 0x54
_CONDITIONS: Mapping[int, Callable[[int, int], bool]] = {
    0x15: operator.eq,
    0x25: operator.gt,
    0x35: operator.ge,
    0x45: lambda held, bits: bool(held & bits),
}
"""Instructions of classic BPF (linux/bpf_common.h) that jump, and when."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as the kernel keeps it: its program, 8 bytes per instruction, and its flags."""

    program: bytes
    flags: int


def count(pid: int) -> int:
    """Filters of a process or thread; zero when it is gone."""
    return _status_number(pid, "Seccomp_filters")


def _status_number(pid: int, key: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{key}:")), 0)


def read(pid: int) -> Filter:
    """The one filter of a running child, which is stopped for a moment. Raises OSError."""
    return syscalls.run_in_thread(lambda: _read(pid, 1, time.monotonic() + READ_LIMIT_S))[0]


def read_all(pids: Iterable[int]) -> dict[int, Sequence[Filter]]:
    """Filters of the running processes that have more than one, the oldest first; each is stopped for a moment.

    Those that are not stopped within `READ_LIMIT_S` are left out, and the thread that asked them to stop lets them go as it ends.
    """
    found: dict[int, Sequence[Filter]] = {}
    deadline_s = time.monotonic() + READ_LIMIT_S
    for pid in pids:
        held = count(pid)
        if 1 < held <= MAX_FILTERS:
            with suppress(OSError):  # it ended meanwhile, does not stop, or somebody traces it: CRIU finds the same
                found[pid] = syscalls.run_in_thread(partial(_read, pid, held, deadline_s))
    return found


def _wait_until_stopped(pid: int, deadline_s: float) -> None:
    """Raises TimeoutError at a time of the monotonic clock."""
    while os.waitpid(pid, _WAIT_ALL | os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the process {pid} does not stop")
        time.sleep(_STOP_POLL_S)


def _read(pid: int, filters: int, deadline_s: float) -> Sequence[Filter]:
    syscalls.ptrace(_SEIZE, pid, 0, 0)
    found = []
    try:
        syscalls.ptrace(_INTERRUPT, pid, 0, 0)
        _wait_until_stopped(pid, deadline_s)
        for number in range(filters):
            program = ctypes.create_string_buffer(syscalls.ptrace(GET_FILTER, pid, number, 0) * _INSTRUCTION_BYTES)
            syscalls.ptrace(GET_FILTER, pid, number, ctypes.addressof(program))
            metadata = ctypes.create_string_buffer(_METADATA.pack(number, 0), _METADATA.size)
            syscalls.ptrace(GET_METADATA, pid, _METADATA.size, ctypes.addressof(metadata))
            found.append(Filter(program.raw, _METADATA.unpack(metadata.raw)[1]))
    finally:
        syscalls.ptrace(_DETACH, pid, 0, 0)
    return found


@lru_cache(maxsize=64)
def lets_criu_work(program: bytes, machine: str) -> bool:
    """Whether a filter allows what CRIU does inside a process: all calls but those that start programs, of `mmap` the forms it uses."""
    architecture, execve, execveat, mmap = _NUMBERS[machine]
    calls = [(number, (0,) * 6) for number in range(_CALLS) if number not in (execve, execveat, mmap)]
    shared, private, anonymous, fixed, everything = 0x01, 0x02, 0x20, 0x10, 7
    calls += [(mmap, (0, 4096, everything, flags, 9, 0)) for flags in (shared, shared | anonymous)]
    calls.append((mmap, (1 << 40, 4096, everything, private | anonymous | fixed, (1 << 64) - 1, 0)))
    return all(
        _decide(program, struct.pack("=iIQ6Q", number, architecture, 0, *words)) == _ALLOW for number, words in calls
    )


def _decide(program: bytes, call: bytes) -> int | None:
    """What a filter says of a call (struct seccomp_data); None where it uses instructions that are not known here."""
    steps = list(struct.iter_unpack("=HBBI", program))
    accumulator = at = 0
    while at < len(steps):
        code, holds, fails, value = steps[at]
        at += 1
        if code == _LOAD_WORD and value <= len(call) - 4:
            (accumulator,) = struct.unpack_from("=I", call, value)
        elif code == _RETURN:
            return int(value)
        elif code == _JUMP:
            at += value
        elif code in _CONDITIONS:
            at += holds if _CONDITIONS[code](accumulator, value) else fails
        elif code == _AND:
            accumulator &= value
        else:
            return None
    return None


def answer(
    caller: int,
    request: int,
    target: int,
    address: int,
    data: int,
    desktop_filter: Filter,
    further: Mapping[int, Sequence[Filter]],
) -> int | None:
    """What the ptrace call of `caller` returns (negative: an error number), written where it asked; None: let the kernel answer."""
    held = count(target)
    filters = [desktop_filter] if held == 1 else further.get(_status_number(target, "Tgid"), ())
    if held != len(filters) or not all(lets_criu_work(one.program, platform.machine()) for one in filters[1:]):
        return None
    if request == SETOPTIONS:
        return 0
    try:
        with open(f"/proc/{caller}/mem", "r+b", buffering=0) as memory:
            if request == GET_FILTER:
                if address >= held:
                    return -errno.ENOENT
                program = filters[address].program
                if data:
                    memory.seek(data)
                    memory.write(program)
                return len(program) // _INSTRUCTION_BYTES
            memory.seek(data)
            (wanted,) = struct.unpack("=Q", memory.read(8))
            if wanted >= held:
                return -errno.ENOENT
            memory.seek(data)
            memory.write(_METADATA.pack(wanted, filters[wanted].flags))
            return _METADATA.size
    except OSError:
        return None
