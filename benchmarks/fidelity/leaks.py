"""What a farm holds of its host, counted from outside, so that two counts tell what leaked between them.

Role: `Census.take` while the farm runs, `remains` after it has ended. Rule: only what carries the farm's marks is counted, because
other things happen on the host meanwhile; needs root, to look into the helper.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups

_NAMESPACES = ("mnt", "net", "pid", "ipc", "uts", "cgroup", "user")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") >> 10


def layout_of(runtime_dir: Path, snapshot_dir: Path) -> Layout:
    """Where the helper of a farm keeps its things."""
    return Layout(os.getuid(), runtime_dir / "hostd", runtime_dir, Path(), snapshot_dir)


def _processes() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process has ended
                yield int(entry.name), (entry / "cmdline").read_bytes()


def helper_pid(layout: Layout) -> int:
    """The root helper that works on this state directory."""
    mark = b"--state-dir\0" + os.fsencode(layout.state_dir) + b"\0"
    return next(pid for pid, words in _processes() if b"/dart-hostd\0" in words and mark in words)


def farm_pid(layout: Layout) -> int:
    """The farm that started that helper."""
    parent = helper_pid(layout)
    while True:
        status = Path(f"/proc/{parent}/status").read_text(encoding="utf-8")
        parent = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
        if b"dart_server.cli" in Path(f"/proc/{parent}/cmdline").read_bytes():
            return parent


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def _memory_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_KIB


@dataclass(frozen=True, slots=True)
class Census:
    """Counts of what one farm, its helper and its desktops hold."""

    farm_fds: int
    farm_threads: int
    helper_fds: int
    helper_threads: int
    helper_mounts: int
    cgroups: int
    processes: int
    namespaces: int
    files: int
    """Files of snapshots and layers, and directories of desktops, in the helper's own file system, and in the runtime directory."""
    memory_kib: int
    """Resident memory of farm and helper, and what the helper's file system takes."""

    @classmethod
    def take(cls, layout: Layout) -> Census:
        """Count now."""
        helper = helper_pid(layout)
        farm = farm_pid(layout)
        groups = [Path(path) for top in cgroups.existing_groups(layout.prefix) for path, _, _ in os.walk(top)]
        members = {pid for top in cgroups.existing_groups(layout.prefix) for pid in cgroups.members(top)}
        namespaces = set()
        for pid in members | {helper}:
            for kind in _NAMESPACES:
                with contextlib.suppress(OSError):  # the process has ended
                    namespaces.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        live = Path(f"/proc/{helper}/root") / layout.live.relative_to("/")
        files = sum(len(names) + len(below) for top in ("s", "l") for _, below, names in os.walk(live / top))
        files += len(os.listdir(live / "d")) + sum(1 for _ in (live / "runc").rglob("*"))
        files += sum(1 for _ in layout.runtime_dir.rglob("*"))
        room = os.statvfs(live)
        return cls(
            farm_fds=_descriptors(farm),
            farm_threads=_threads(farm),
            helper_fds=_descriptors(helper),
            helper_threads=_threads(helper),
            helper_mounts=len(Path(f"/proc/{helper}/mountinfo").read_text(encoding="utf-8").splitlines()),
            cgroups=len(groups),
            processes=len(members),
            namespaces=len(namespaces),
            files=files,
            memory_kib=_memory_kib(farm) + _memory_kib(helper) + ((room.f_blocks - room.f_bfree) * room.f_frsize >> 10),
        )

    @classmethod
    def least(cls, looks: Sequence[Census]) -> Census:
        """Each count at its least."""
        counts = [asdict(look) for look in looks]
        return cls(**{name: min(look[name] for look in counts) for name in counts[0]})

    def grown(self, before: Census) -> dict[str, int]:
        """By count: how much more there is than before; what shrank is zero. Memory is not a count."""
        mine, theirs = asdict(self), asdict(before)
        return {name: max(0, mine[name] - theirs[name]) for name in mine if name != "memory_kib"}


def remains(layout: Layout) -> list[str]:
    """What an ended farm left on the host: one line each."""
    found = [f"cgroup {path}" for path in cgroups.existing_groups(layout.prefix)]
    marks = (str(layout.state_dir), layout.prefix)
    found += [
        f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if any(mark in line for mark in marks)
    ]
    found += [f"process {pid}" for pid, words in _processes() if os.fsencode(layout.state_dir) in words]
    return found + [f"file {path}" for path in (layout.live, layout.disk, layout.socket) if path.exists()]
