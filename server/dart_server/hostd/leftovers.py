"""What a helper that was killed leaves on the host, and its removal.

Its mounts lived in its own mount namespace and went with it. What can stay are processes in control groups that carry
its prefix, those groups, its socket and its directories. Nothing outside the prefix and the state directory is touched.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups, trees


def remove(layout: Layout, *, keep_socket: bool = False) -> list[str]:
    """Remove everything of a helper that no longer runs (the caller holds its lock); one line per thing removed.

    `keep_socket`: the caller listens there for the next helper.
    """
    removed = []
    found = cgroups.existing_groups(layout.prefix)
    if found:
        names = sorted({path.name for top in found for path in top.iterdir() if path.is_dir()})
        count = len({pid for top in found for pid in cgroups.members(top)})
        for name in names:
            cgroups.kill(f"/{layout.prefix}/{name}")
        cgroups.kill(f"/{layout.prefix}")
        cgroups.remove(f"/{layout.prefix}")
        removed.append(f"control group {layout.prefix} with {len(names)} desktops and {count} processes")
    return removed + remove_files(layout, keep_socket=keep_socket)


def remove_files(layout: Layout, *, keep_socket: bool = False) -> list[str]:
    """Remove the helper's directories and socket; nothing may be mounted there any more."""
    removed = []
    for path in (layout.live, layout.disk):
        if path.is_dir() and not path.is_symlink() and not _holds_a_mount(path):
            removed.append(f"directory {path}")
            trees.remove(path)
    if layout.socket.is_socket() and not keep_socket:
        layout.socket.unlink()
        removed.append(f"socket {layout.socket}")
    return removed


def remove_state(layout: Layout) -> None:
    """Last act of a helper that ends well: its lock, and its directory unless a failure log is kept there."""
    layout.lock.unlink(missing_ok=True)
    with suppress(OSError):
        layout.state_dir.rmdir()


def _holds_a_mount(top: Path) -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        places = (Path(line.split()[4]) for line in table)
        return any(place == top or place.is_relative_to(top) for place in places)
