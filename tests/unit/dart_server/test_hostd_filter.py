"""What is answered in the kernel's place: CRIU's questions about the desktops' system-call filter and about limits of others.

The caller is this process itself, asking about a child that runs under a real filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_server.hostd.linux import rlimits, vfork
from dart_server.hostd.runtime import supervisor, syscall_filter

KNOWN = syscall_filter.Filter(bytes(range(24)), 2)
CONFINED = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000), 8)
program = ctypes.create_string_buffer(struct.pack("@HP", 1, ctypes.addressof(code)))
libc.prctl(38, 1, 0, 0, 0)
for _ in range(int(sys.argv[1])):
    assert libc.prctl(22, 2, program) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def confined(filters: int) -> Iterator[int]:
    """A child under so many filters that allow everything."""
    command = [sys.executable, "-c", CONFINED, str(filters)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.kill()


@pytest.fixture
def once() -> Iterator[int]:
    yield from confined(1)


@pytest.fixture
def twice() -> Iterator[int]:
    yield from confined(2)


def test_the_one_filter_is_told_as_the_kernel_would(once: int) -> None:
    room = ctypes.create_string_buffer(len(KNOWN.program))
    ask = syscall_filter.answer
    assert ask(os.getpid(), syscall_filter.GET_FILTER, once, 0, 0, KNOWN, {}) == 3
    assert ask(os.getpid(), syscall_filter.GET_FILTER, once, 0, ctypes.addressof(room), KNOWN, {}) == 3
    assert room.raw == KNOWN.program
    assert ask(os.getpid(), syscall_filter.GET_FILTER, once, 1, 0, KNOWN, {}) == -errno.ENOENT
    assert ask(os.getpid(), syscall_filter.SETOPTIONS, once, 0, syscall_filter.SUSPEND, KNOWN, {}) == 0


def test_its_metadata_too(once: int) -> None:
    metadata = ctypes.create_string_buffer(struct.pack("=QQ", 0, 99), 16)
    address = ctypes.addressof(metadata)
    assert syscall_filter.answer(os.getpid(), syscall_filter.GET_METADATA, once, 16, address, KNOWN, {}) == 16
    assert struct.unpack("=QQ", metadata.raw) == (0, KNOWN.flags)


def test_a_filter_of_its_own_is_the_kernels_to_tell(twice: int) -> None:
    assert syscall_filter.count(twice) == 2
    refusing = [KNOWN, syscall_filter.Filter(struct.pack("=HBBI", 6, 0, 0, 0x50001), 0)]
    assert syscall_filter.answer(os.getpid(), syscall_filter.GET_FILTER, twice, 0, 0, KNOWN, {twice: refusing}) is None
    for request in (syscall_filter.GET_FILTER, syscall_filter.GET_METADATA, syscall_filter.SETOPTIONS):
        assert syscall_filter.answer(os.getpid(), request, twice, 0, 0, KNOWN, {}) is None


ALLOWING = struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at filters")
def test_several_filters_are_told_in_their_order(twice: int) -> None:
    found = syscall_filter.read_all([twice, os.getpid(), 2**22])
    assert found == {twice: [syscall_filter.Filter(ALLOWING, 0)] * 2}
    room = ctypes.create_string_buffer(24)

    def ask(request: int, number: int, data: int) -> int | None:
        further = {twice: [KNOWN, *found[twice][1:]]}
        return syscall_filter.answer(os.getpid(), request, twice, number, data, KNOWN, further)

    assert ask(syscall_filter.GET_FILTER, 0, ctypes.addressof(room)) == 3
    assert room.raw == KNOWN.program
    assert ask(syscall_filter.GET_FILTER, 1, ctypes.addressof(room)) == 1
    assert room.raw[:8] == ALLOWING
    assert ask(syscall_filter.GET_FILTER, 2, 0) == -errno.ENOENT
    metadata = ctypes.create_string_buffer(struct.pack("=QQ", 1, 99), 16)
    assert ask(syscall_filter.GET_METADATA, 16, ctypes.addressof(metadata)) == 16
    assert struct.unpack("=QQ", metadata.raw) == (1, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at filters")
def test_a_process_that_no_tracer_can_stop_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a child of `vfork` that stands at a pipe."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    spawn = (
        "\nimport os\nactions = [(os.POSIX_SPAWN_OPEN, 3, sys.argv[2], os.O_RDONLY, 0)]\n"
        "os.posix_spawn('/bin/true', ['true'], {}, file_actions=actions)\nprint('begun', flush=True)\ninput()\n"
    )
    command = [sys.executable, "-c", CONFINED.replace("sys.stdin.read()", spawn), "2", str(fifo)]
    monkeypatch.setattr(syscall_filter, "READ_LIMIT_S", 0.2)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        deadline_s = time.monotonic() + 30
        while vfork.waiting([child.pid]) != [child.pid]:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        began_s = time.monotonic()
        assert syscall_filter.read_all([child.pid] * 3) == {}
        assert time.monotonic() - began_s < 5
        os.close(os.open(fifo, os.O_WRONLY))
        assert child.stdout.readline() == b"begun\n", "it runs on, and nobody traces it"
        assert len(syscall_filter.read_all([child.pid])[child.pid]) == 2
        child.communicate(b"\n")


def test_a_running_filter_is_read(once: int) -> None:
    assert syscall_filter.read(once) == syscall_filter.Filter(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000), 0)


def test_limits_of_others_are_told_and_never_set() -> None:
    room = ctypes.create_string_buffer(16)
    parent = os.getppid()
    assert rlimits.answer(os.getpid(), parent, 7, 0, ctypes.addressof(room), {}) == 0
    soft, hard = struct.unpack("=QQ", room.raw)
    assert 0 < soft <= hard
    assert rlimits.answer(os.getpid(), parent, 7, 1, ctypes.addressof(room), {}) is None


ARCHITECTURE, PRLIMIT, _, PTRACE, SETNS = supervisor._MACHINES[platform.machine()]


@pytest.mark.parametrize(
    ("number", "first", "second", "fourth", "asked"),
    [
        (PRLIMIT, 1, 0, 0, True),
        (PTRACE, syscall_filter.GET_FILTER, 0, 0, True),
        (PTRACE, syscall_filter.GET_METADATA, 0, 0, True),
        (PTRACE, syscall_filter.SETOPTIONS, 0, syscall_filter.SUSPEND | 1, True),
        (PTRACE, syscall_filter.SETOPTIONS, 0, 1, False),
        (PTRACE, 0x4206, 0, syscall_filter.SUSPEND, False),
        (PTRACE + 1, syscall_filter.GET_FILTER, 0, 0, False),
        (SETNS, 3, 0x10000000, 0, True),
        (SETNS, 3, 0x40000000, 0, False),
    ],
)
def test_only_these_calls_are_taken_from_the_kernel(
    number: int, first: int, second: int, fourth: int, asked: bool
) -> None:
    data = struct.pack("=IIQ6Q", number, ARCHITECTURE, 0, first, second, 0, fourth, 0, 0)
    assert run(supervisor.filter_program(), data) == (0x7FC00000 if asked else 0x7FFF0000)


def test_calls_of_another_architecture_are_let_through() -> None:
    data = struct.pack("=IIQ6Q", PRLIMIT, ARCHITECTURE ^ 1, 0, *[0] * 6)
    assert run(supervisor.filter_program(), data) == 0x7FFF0000


def run(program: bytes, data: bytes) -> int:
    """What a filter of the few instructions used here answers."""
    steps = list(struct.iter_unpack("=HBBI", program))
    word, at = 0, 0
    while True:
        code, held, failed, value = steps[at]
        if code == 0x06:
            return int(value)
        if code == 0x20:
            word = struct.unpack_from("=I", data, value)[0]
            at += 1
        else:
            holds = word == value if code == 0x15 else bool(word & value)
            at += 1 + (held if holds else failed)
