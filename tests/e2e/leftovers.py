"""What a farm or a run could leave behind on a host, found by its ownership marks.

Role: `leftovers(runtime_dir)` lists processes, mounts, and files of the runtime directory; cgroups, network namespaces and shared memory
are compared with those before. Rule: looks, never removes.
"""

from __future__ import annotations

import contextlib
import os
import re
from fnmatch import fnmatch
from pathlib import Path

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
"""What may stay in the runtime directory: the ledger, its keys, empty locks, and logs; no socket and no secret of a run."""


def leftovers(runtime_dir: Path, run_dir: Path | None = None) -> list[str]:
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
    """Entries of /dev/shm that no living process maps or has open."""
    used: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended
            used |= set(re.findall(r"/dev/shm/([^/\s]+)", maps.read_text(errors="replace")))
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # the file was closed
            used |= set(re.findall(r"^/dev/shm/([^/\s]+)", os.readlink(link)))
    return {entry.name for entry in Path("/dev/shm").iterdir()} - used


def cgroups_of_desktops() -> set[str]:
    """Cgroup directories of live desktops, of all farms on this host."""
    root = Path("/sys/fs/cgroup")
    return {str(path) for pattern in ("dart-*/*", "*/dart-*/*") for path in root.glob(pattern) if path.is_dir()}


def network_namespaces() -> set[str]:
    """Network namespaces of the host that a process is in or that are mounted somewhere: without either there is none."""
    held = {line.split()[3] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " nsfs " in line}
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):  # the process has ended
            held.add(os.readlink(link))
    return {name for name in held if name.startswith("net:")}


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
