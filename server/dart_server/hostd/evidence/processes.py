"""Processes of a desktop as the host's kernel has them.

Rule: what a process is follows from the file that it executes, never from its name or its words: those are its own to choose. The states
are taken before the desktop is frozen, because a frozen process shows none. What is read is bounded by the budget of the request, whatever
the processes hold: two of them may share ten thousand descriptors of an inotify instance, and the kernel tells nobody that they are one.
Non-goals: which processes are meant (`control groups`).
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from dart_server.hostd.evidence.budget import Budget
from dart_server.hostd.evidence.files import DesktopFiles, readable

MAX_PROCESSES = 4096
ARGV_LIMIT_NBYTES = 32 << 10
MAX_OPEN_FILES = 64
"""Of one process, in the answer."""
MAX_WATCHES = 256
"""Of one process, in the answer."""
MAX_DESCRIPTORS = 4096
"""Of one process, looked at."""
_LISTENING = "0A"
_WATCH = re.compile(r"inotify wd:\S+ ino:([0-9a-f]+) sdev:([0-9a-f]+)")
_MINOR_BITS = 20
"""Of the kernel's own number of a device; stat(2) has another form."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_KERNEL_NAMES = ("/dev/", "/proc/", "/sys/", "/memfd:")


def states(process_ids: Iterable[int]) -> dict[int, str]:
    """One letter by process id, as ps(1) has them; without those that are gone."""
    found = {}
    for pid in process_ids:
        fields = _stat_fields(pid)
        if fields:
            found[pid] = fields[0]
    return found


def facts(
    process_ids: Iterable[int], before: dict[int, str], files: DesktopFiles, *, network_of: int, code: bool
) -> list[dict[str, Any]]:
    """Every process, the oldest first.

    `before`: their states as they ran. `network_of`: a process in the desktop's network. Raises Refused when there is more to look at than
    the budget of `files` allows.
    """
    pids = sorted(process_ids)[:MAX_PROCESSES]
    sockets = _listening(network_of, files.budget)
    found = []
    for pid in pids:
        files.budget.check_time()
        try:
            one = _one(pid, before.get(pid, "R"), files, sockets, code=code)
        except (OSError, ValueError, StopIteration):
            continue
        found.append(files.budget.take_answer(one))
    return sorted(found, key=lambda process: (process["started_s"], process["pid"]))


def _one(
    pid: int, state: str, files: DesktopFiles, sockets: dict[str, tuple[str, int]], *, code: bool
) -> dict[str, Any]:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    words = {line.split(":", 1)[0]: line.split()[1:] for line in status.splitlines()}
    fields = _stat_fields(pid)
    executable, unchanged = _executable(pid, files)
    paths, listening, watched = _descriptors(pid, sockets, files.budget)
    one: dict[str, Any] = {
        "pid": int(words["NSpid"][-1]),
        "uid": files.user(int(words["Uid"][1])),
        "gid": files.group(int(words["Gid"][0])) if len(set(words["Gid"])) == 1 else None,
        "state": state if fields[:1] != ["Z"] else "Z",
        "started_s": int(fields[19]) / _CLOCK_TICKS,
        "argv": _argv(pid),
        "executable": readable(executable),
        "from_image": unchanged,
        "open_files": sorted(paths)[:MAX_OPEN_FILES],
        "listening": [{"address": address, "port": port} for address, port in sorted(listening)],
        "watched": sorted(watched)[:MAX_WATCHES],
    }
    if code:
        one["code_from_image"] = unchanged and _runs_image_code(pid, files)
    return one


def _stat_fields(pid: int) -> list[str]:
    """The words of /proc/PID/stat behind the name, which may hold anything; empty for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return text.rpartition(b")")[2].decode("ascii", "replace").split()


def _argv(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(ARGV_LIMIT_NBYTES).rstrip(b"\0")
    return [word.decode("utf-8", "replace") for word in words.split(b"\0")] if words else []


def _executable(pid: int, files: DesktopFiles) -> tuple[str, bool]:
    """The path of the file that a process executes, and whether that file is the image's: the same one as at the path now, unchanged."""
    try:
        path = os.readlink(f"/proc/{pid}/exe")
        held = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return "", False
    return path, files.from_image(path) and files.identity(path) == (held.st_dev, held.st_ino)


def _runs_image_code(pid: int, files: DesktopFiles) -> bool:
    """Whether all files that a process has mapped as program code are the image's; what the kernel maps itself has none."""
    paths = set()
    for line in files.budget.read_table(f"/proc/{pid}/maps").split("\n"):
        words = line.split(maxsplit=5)
        if len(words) == 6 and "x" in words[1] and words[5].startswith("/"):
            paths.add(words[5])
    for path in paths:
        files.budget.check_time()
        if not files.from_image(path):
            return False
    return True


def _descriptors(
    pid: int, sockets: dict[str, tuple[str, int]], budget: Budget
) -> tuple[set[str], set[tuple[str, int]], set[str]]:
    """Paths of the plain files that a process holds open, where it listens, and identities of the files and folders that it watches."""
    paths: set[str] = set()
    listening: set[tuple[str, int]] = set()
    watched: set[str] = set()
    for name in _numbers(f"/proc/{pid}/fd"):
        budget.take_descriptor()
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if "inotify" in target and not target.startswith("/"):
                watched |= _watches(budget.read_table(f"/proc/{pid}/fdinfo/{name}"))
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(_KERNEL_NAMES):
            paths.add(readable(target))
        elif sockets and (match := _SOCKET.fullmatch(target)) and match[1] in sockets:
            listening.add(sockets[match[1]])
    return paths, listening, watched


def _numbers(folder: str) -> list[str]:
    """Names of the first descriptors of a process."""
    with os.scandir(folder) as found:
        return [item.name for item in islice(found, MAX_DESCRIPTORS)]


def _watches(text: str) -> set[str]:
    """What an inotify instance watches, in the form of a file's `identity`."""
    found = set()
    for inode, device in _WATCH.findall(text):
        number = int(device, 16)
        device_number = os.makedev(number >> _MINOR_BITS, number & ((1 << _MINOR_BITS) - 1))
        found.add(f"{device_number}:{int(inode, 16)}")
    return found


def _listening(pid: int, budget: Budget) -> dict[str, tuple[str, int]]:
    """(address, port) of every listening TCP socket of a process's network, by the socket's inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = budget.read_table(f"/proc/{pid}/net/{table}").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTENING:
                address, _, port = words[1].partition(":")
                found[words[9]] = (_address(address), int(port, 16))
    return found


def _address(text: str) -> str:
    """An address of /proc/net/tcp, which has its words in the byte order of the machine."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
