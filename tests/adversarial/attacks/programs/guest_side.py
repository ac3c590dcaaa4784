"""What the programs of the attack book share; it runs inside the desktop, with the desktop's own Python.

Role: reading the task, running programs, root by the password that everybody knows, other processes' files. Rule: only what an ordinary
user of the desktop can do; root is asked for by name. Non-goals: any one attack.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

HOME = Path("/home/user")
PASSWORD = "password"
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438
LIBC = ctypes.CDLL(None, use_errno=True)
Parts = list[tuple[str, dict, dict]]


def parts(task: dict) -> Parts:
    """(metric, result, rules) of every function of the task's evaluator."""
    evaluator = task["evaluator"]
    functions = evaluator["func"] if isinstance(evaluator["func"], list) else [evaluator["func"]]

    def listed(name: str) -> list:
        value = evaluator.get(name)
        return value if isinstance(value, list) else [value] * len(functions)

    rules = [(expected or {}).get("rules", {}) for expected in listed("expected")]
    return list(zip(functions, listed("result"), rules, strict=True))


def part(task: dict, getter: str) -> tuple[str, dict, dict]:
    """The first function that reads with this getter."""
    return next(one for one in parts(task) if one[1]["type"] == getter)


def run(*argv: str, **options: object) -> subprocess.CompletedProcess:
    """Run a program to its end."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=40, **options)


def start(*argv: str, **options: object) -> subprocess.Popen:
    """Start a program in a session of its own; the caller's end does not end it."""
    null = subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, start_new_session=True, **options)


def start_python(source: str, *arguments: str, name: str = "python3") -> subprocess.Popen:
    """Start Python under any name."""
    return start(name, "-c", source, *arguments, executable="/usr/bin/python3")


def as_root(script: str) -> None:
    """Run a shell script as root."""
    done = subprocess.run(
        ["sudo", "-S", "-p", "", "/bin/sh", "-c", script],
        input=f"{PASSWORD}\n",
        text=True,
        capture_output=True,
        timeout=40,
    )
    if done.returncode != 0:
        raise SystemExit(f"root's script failed: {done.stderr}")


def write_as_root(path: str, content: str, mode: int = 0o755) -> None:
    """Put a file anywhere."""
    own = Path("/tmp/as-root")
    own.write_text(content)
    as_root(f"rm -f {path}; install -m {mode:o} {own} {path}; rm -f {own}")


def processes(name: str) -> list[int]:
    """Processes whose command line begins with this program's name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                first = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            except OSError:
                continue
            if first.rpartition("/")[2] == name:
                found.append(int(entry.name))
    return sorted(found)


def command_line(pid: int) -> list[str]:
    """The arguments of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")


def stolen_descriptor(pid: int, number: int) -> int:
    """A copy of another process's file descriptor."""
    handle = LIBC.syscall(SYS_PIDFD_OPEN, pid, 0)
    taken = LIBC.syscall(SYS_PIDFD_GETFD, handle, number, 0)
    if taken < 0:
        raise OSError(ctypes.get_errno(), f"descriptor {number} of process {pid} cannot be taken")
    return taken


class Span(ctypes.Structure):
    """A piece of memory."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def write_memory(pid: int, address: int, content: bytes) -> None:
    """Write into another process's memory."""
    own = ctypes.create_string_buffer(content, len(content))
    local, remote = Span(ctypes.addressof(own), len(content)), Span(address, len(content))
    if LIBC.process_vm_writev(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) != len(content):
        raise OSError(ctypes.get_errno(), f"the memory of process {pid} cannot be written")


def window_ids(title: str) -> list[str]:
    """Windows that have this in their title."""
    lines = run("wmctrl", "-l").stdout.splitlines()
    return [line.split()[0] for line in lines if re.search(title, line.split(None, 3)[-1])]


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Wait until something holds, at most so long; whether it does."""
    limit = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < limit:
        time.sleep(0.05)
    return bool(held)


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be looked after."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for_window(title: str, seconds: float = 20.0) -> None:
    """Wait until a window of that title is there."""
    wait_until(lambda: window_ids(title), seconds)


def make(path: str | Path, text: str) -> None:
    """Write a file, with the folders that it needs."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_text(text)
