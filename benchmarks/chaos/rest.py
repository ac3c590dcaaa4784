"""What a farm could leave on its host, and a disk of its own that can be filled.

Role: `leftovers` names processes, mounts, control groups, sockets and files of snapshots that are still there; `own_disk` is a small file
system in a file. Rule: found by the farm's own directory and ownership prefix, so that another farm on the host is not counted; looks,
removes nothing but the disk it made. Network namespaces have no name here: one without a process and without a mount does not exist.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups

DISK_MIB = 3072


def prefix_of(runtime_dir: Path) -> str:
    """The ownership prefix of the desktops of a farm's root helper."""
    nowhere = Path()
    return Layout(os.getuid(), runtime_dir / "hostd", runtime_dir, images_dir=nowhere, store_dir=nowhere).prefix


def leftovers(runtime_dir: Path, disk: Path | None) -> list[str]:
    """One line per thing that is still there after a farm has stopped."""
    own = {str(disk)} if disk is not None else set()
    found = [f"process {line}" for line in _processes(str(runtime_dir))]
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    found += [f"mount {place}" for place in mounts if str(runtime_dir) in place and place not in own]
    found += [f"control group {path}" for path in cgroups.existing_groups(prefix_of(runtime_dir))]
    found += [f"socket {path}" for path in runtime_dir.rglob("*") if path.is_socket()]
    for snapshots in (runtime_dir / "snapshots", *([disk / "snapshots"] if disk is not None else [])):
        found += [f"file {path}" for path in snapshots.rglob("*") if not path.is_dir()]
    return found


def _processes(needle: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), os.getppid()):
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if needle in command or f"DART_RUNTIME_DIR={needle}\0" in environment + "\0":
            found.append(f"{entry.name}: {command[:150]}")
    return found


@contextmanager
def own_disk(place: Path) -> Iterator[Path | None]:
    """A mounted ext4 file system of its own under `place`, unmounted after; None where this host has no loop devices or we are not root."""
    image, mount = place / "disk.img", place / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True, check=False).returncode == 0
    command = ["mount", "-o", "loop", str(image), str(mount)]
    if not made or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)
        image.unlink()
