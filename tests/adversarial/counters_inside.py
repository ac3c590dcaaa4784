"""Runs inside a desktop: uses up what the kernel counts per user, or uses a little of it as any program would.

Role: the program that `test_shared_counters_live` uploads; standard library only. `attack NAME` takes as much as it gets, leaves a process
that holds it, and prints how much that is and what ended it. `use` prints for every counter whether a modest use works, as JSON.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import itertools
import json
import os
import platform
import pty
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

libc = ctypes.CDLL(None, use_errno=True)
CALLS = {
    "x86_64": {"mq_open": 240, "add_key": 248, "fanotify_init": 300, "timer_create": 222, "rt_sigqueueinfo": 129},
    "aarch64": {"mq_open": 180, "add_key": 217, "fanotify_init": 262, "timer_create": 107, "rt_sigqueueinfo": 138},
}[platform.machine()]
"""Numbers of the calls that libc hides or that the filter refuses."""
SIGNAL = signal.SIGRTMIN + 3
HOME = os.environ.get("HOME", "/root")
WORDS = itertools.count()


def check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def queued_files() -> Iterator[None]:
    """Descriptors on their way through sockets, each step hundreds of them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    while True:
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 200))])
        yield
        held.append(theirs)


def signals() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL])
    told = struct.pack("=iiiiiiq", SIGNAL, 0, -1, 0, os.getpid(), os.getuid(), 0).ljust(128, b"\0")
    while True:
        check(libc.syscall(CALLS["rt_sigqueueinfo"], os.getpid(), SIGNAL, told), "sigqueue")
        yield


def timers() -> Iterator[None]:
    monotonic = 1
    while True:
        made = ctypes.c_int()
        check(libc.syscall(CALLS["timer_create"], monotonic, None, ctypes.byref(made)), "timer_create")
        yield


def inotify_instances() -> Iterator[None]:
    while True:
        held.append(check(libc.inotify_init1(0), "inotify_init1"))
        yield


def inotify_watches() -> Iterator[None]:
    """Every instance may watch the same files again."""
    paths = [os.path.join(top, name).encode() for top, _, names in os.walk("/usr/lib") for name in names][:4000]
    while True:
        instance = check(libc.inotify_init1(0), "inotify_init1")
        held.append(instance)
        for path in paths:
            check(libc.inotify_add_watch(instance, path, 2), "inotify_add_watch")
            yield


def epoll_watches() -> Iterator[None]:
    sources = [os.eventfd(0) for _ in range(2000)]
    while True:
        poll = select.epoll()
        held.append(poll)
        for source in sources:
            poll.register(source)
            yield


def message_queues() -> Iterator[None]:
    while True:
        made = libc.syscall(CALLS["mq_open"], f"q{os.getpid()}-{next(WORDS)}".encode(), 0o102, 0o600, None)
        held.append(check(made, "mq_open"))
        yield


def inodes() -> Iterator[None]:
    place = os.path.join(HOME, f"inodes-{os.getpid()}")
    os.mkdir(place)
    while True:
        os.close(os.open(os.path.join(place, str(next(WORDS))), os.O_WRONLY | os.O_CREAT))
        yield


def keys() -> Iterator[None]:
    session = -3
    while True:
        check(libc.syscall(CALLS["add_key"], b"user", f"k{next(WORDS)}".encode(), b"x" * 100, 100, session), "add_key")
        yield


def pipes() -> Iterator[None]:
    """Pages of pipes. Past the limit a new pipe is short, which is no error: it is one here."""
    while True:
        reader, writer = os.pipe()
        held.extend((reader, writer))
        if fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) < 65536:
            raise OSError(errno.ENOBUFS, "a short pipe")
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
        yield


def fanotify() -> Iterator[None]:
    while True:
        held.append(check(libc.syscall(CALLS["fanotify_init"], 0x200, 0), "fanotify_init"))
        yield


def locked_memory() -> Iterator[None]:
    """Shared memory that stays in RAM is counted per user, other memory per process."""
    private, lock, nbytes = 0, 11, 1 << 16
    while True:
        segment = check(libc.shmget(private, nbytes, 0o600), "shmget")
        try:
            check(libc.shmctl(segment, lock, None), "shmctl")
        finally:
            libc.shmctl(segment, 0, None)
        yield


def file_locks() -> Iterator[None]:
    with open(os.path.join(HOME, f"locks-{os.getpid()}"), "wb") as file:
        for number in itertools.count():
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * number)
            yield


def terminals() -> Iterator[None]:
    while True:
        held.append(pty.openpty())
        yield


ATTACKS: dict[str, tuple[Callable[[], Iterator[None]], int]] = {
    "queued files": (queued_files, 1000),
    "signals": (signals, 200_000),
    "timers": (timers, 200_000),
    "inotify instances": (inotify_instances, 60_000),
    "inotify watches": (inotify_watches, 200_000),
    "epoll watches": (epoll_watches, 100_000),
    "message queues": (message_queues, 10_000),
    "inodes": (inodes, 300_000),
    "keys": (keys, 10_000),
    "pipes": (pipes, 4000),
    "fanotify": (fanotify, 10_000),
    "locked memory": (locked_memory, 10_000),
    "file locks": (file_locks, 5_000),
    "terminals": (terminals, 8000),
}
"""By name: what takes one more with each step, and how many steps are enough where nothing ends it."""
held: list[object] = []
"""What must stay open."""


def attack(name: str) -> None:
    """Take until it is refused; a child goes on holding it."""
    step, most = ATTACKS[name]
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as told:
            print(told.readline(), end="")
        return
    os.setsid()
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    taken, ended = 0, "enough"
    try:
        for _ in itertools.islice(step(), most):
            taken += 1
    except OSError as error:
        ended = errno.errorcode.get(error.errno or 0, str(error))
    os.write(writer, f"{json.dumps([taken, ended])}\n".encode())
    time.sleep(600)


def use() -> None:
    """Five steps of each, in a process of its own."""
    found = {}
    for name, (step, _) in ATTACKS.items():
        reader, writer = os.pipe()
        if os.fork() == 0:
            said = "works"
            try:
                for _ in itertools.islice(step(), 5):
                    pass
            except OSError as error:
                said = errno.errorcode.get(error.errno or 0, str(error))
            os.write(writer, said.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as told:
            found[name] = told.read()
        os.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    attack(sys.argv[2]) if sys.argv[1] == "attack" else use()
