"""What a farm or a run could leave behind on a host, found by its ownership marks.

Role: `leaked_resources(runtime_dir)` lists processes, mounts, and files of the runtime directory, `cgroups_of_desktops` its farm's. Network
namespaces carry no mark: those of its desktops are noted while they live; shared memory is compared with what was there before.
Rule: looks, never removes.
"""

from __future__ import annotations

import contextlib
import os
import re
from fnmatch import fnmatch
from pathlib import Path

from dart_server.hostd.layout import Layout

KEPT = (
    "farm.db*",
    "farm.key",
    "farm.secret",
    "farm.lock",
    "farm.start.lock",
    "farm.log",
    "hostd.log",
    "hostd",
    "criu-failure.log",
)
"""What may stay in the runtime directory: the database, its keys, empty locks, and logs; no socket and no secret of a run."""


def leaked_resources(runtime_dir: Path, run_dir: Path | None = None) -> list[str]:
    """One line per thing that is still there."""
    needles = [str(runtime_dir)] + ([str(run_dir)] if run_dir is not None else [])
    return [
        *_processes(needles),
        *(f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(runtime_dir) in line),
        *(
            f"file {path}"
            for path in sorted(runtime_dir.rglob("*"))
            if not any(fnmatch(path.name, kept) for kept in KEPT)
        ),
    ]


def orphaned_shared_memory() -> set[str]:
    """Entries of /dev/shm that no living process maps or has open, nor a living resource tracker of another run may still free."""
    if any(b"resource_tracker" in _command(entry) for entry in Path("/proc").glob("[0-9]*")):
        return set()
    used: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended
            used |= set(re.findall(r"/dev/shm/([^/\s]+)", maps.read_text(errors="replace")))
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # the file was closed
            used |= set(re.findall(r"^/dev/shm/([^/\s]+)", os.readlink(link)))
    return {entry.name for entry in Path("/dev/shm").iterdir()} - used


def cgroups_of_desktops(runtime_dir: Path) -> set[str]:
    """Cgroup directories of the desktops of the farm of this runtime directory."""
    return _desktops(f"{_prefix(runtime_dir)}/*")


def other_farms(runtime_dir: Path) -> bool:
    """Whether another farm has desktops on this host just now."""
    return bool(_desktops("dart-*/*") - cgroups_of_desktops(runtime_dir))


def _prefix(runtime_dir: Path) -> str:
    nowhere = Path()
    return Layout(os.getuid(), runtime_dir / "hostd", runtime_dir, images_dir=nowhere, store_dir=nowhere).prefix


def _desktops(pattern: str) -> set[str]:
    root = Path("/sys/fs/cgroup")
    return {str(path) for where in (pattern, f"*/{pattern}") for path in root.glob(where) if path.is_dir()}


def networks_of_desktops(runtime_dir: Path) -> set[str]:
    """Network namespaces that processes of the farm's desktops are in now."""
    pids = {
        pid
        for cgroup in cgroups_of_desktops(runtime_dir)
        for path in [Path(cgroup) / "cgroup.procs"]
        for pid in _words(path)
    }
    host = os.readlink("/proc/self/ns/net")
    return {network for pid in pids for network in _network(pid)} - {host}


def network_namespaces() -> set[str]:
    """Network namespaces of the host that a process is in or that are mounted somewhere: without either there is none."""
    held = {line.split()[3] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " nsfs " in line}
    for entry in Path("/proc").glob("[0-9]*"):
        held |= _network(entry.name)
    return {name for name in held if name.startswith("net:")}


def _network(pid: str) -> set[str]:
    try:
        return {os.readlink(f"/proc/{pid}/ns/net")}
    except OSError:  # the process has ended
        return set()


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:  # the process has ended
        return b""


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # the desktop has ended
        return []


def _processes(needles: list[str]) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        ours = "dart_" in command or "vllm" in command.lower()
        if any(needle in command for needle in needles) or (ours and any(needle in environment for needle in needles)):
            found.append(f"process {entry.name}: {command[:150]}")
    return found
