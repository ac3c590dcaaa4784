"""What a farm or a run could leave behind on a host, found by its ownership marks.

Role: `leftovers(runtime_dir)` lists processes, mounts, sockets and secret directories; cgroups and network namespaces are compared
with those before. Rule: looks, never removes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def leftovers(runtime_dir: Path, run_dir: Path | None = None) -> list[str]:
    """One line per thing that is still there."""
    needles = [str(runtime_dir)] + ([str(run_dir)] if run_dir is not None else [])
    return [
        *_processes(needles),
        *(f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(runtime_dir) in line),
        *(f"socket {path}" for path in sorted(runtime_dir.glob("*.sock"))),
        *(f"directory {path}" for path in sorted(runtime_dir.glob("policy-*"))),
    ]


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
