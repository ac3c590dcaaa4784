"""What a desktop's file system holds, as one digest: the tool that runs inside, and what it leaves out.

Role: `INSIDE` is run as root in a desktop that was just reset. It lists every file of every mounted file system: type, permissions, owner,
size, time of the last change, target of a link, and the content's hash. Rule: contents of the image's own directories are read only when
asked (`full`), since reading 700 MB takes seconds; a change there shows in size, time or owner. Nothing is left out but `EXCLUDED`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

EXCLUDED = {
    "/proc": "the kernel's view of what runs now",
    "/sys": "the kernel's view of the host's devices",
    "/dev/pts": "terminals of the kernel",
    "/etc/machine-id": "new for every copy, on purpose",
    "/var/lib/dbus/machine-id": "new for every copy, on purpose",
    "/run/dart/boot_id": "new for every copy, on purpose",
    "/dev/dart-clock": "how far the copy's clock is corrected, by the moment of its restore",
}
"""By path: why it is not compared. Of directories the time of the last change is not compared either: a restore makes the sockets in them
anew, and gives files that were deleted while open a name for a moment."""

CHANGING = ("/home", "/etc", "/var", "/root", "/run", "/tmp", "/dev", "/usr/local", "/opt", "/srv")
"""Where contents are always read."""

INSIDE = r"""
import hashlib, json, os, stat, sys
excluded, changing, full = set(json.loads(sys.argv[1])), tuple(json.loads(sys.argv[2])), sys.argv[3] == "full"
lines = []

def visit(path, read):
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        lines.append(f"{path}\tunreadable {error.errno}")
        return
    for entry in entries:
        if entry.path in excluded:
            continue
        seen = entry.stat(follow_symlinks=False)
        mode = seen.st_mode
        facts = [entry.path, f"{mode:o}", seen.st_uid, seen.st_gid]
        if stat.S_ISDIR(mode):
            lines.append("\t".join(map(str, facts)))
            visit(entry.path, read or entry.path in changing)
            continue
        facts += [seen.st_size, seen.st_mtime_ns] if stat.S_ISREG(mode) else [seen.st_rdev]
        if stat.S_ISLNK(mode):
            facts.append(os.readlink(entry.path))
        elif stat.S_ISREG(mode) and (read or full):
            try:
                with open(entry.path, "rb") as file:
                    facts.append(hashlib.file_digest(file, "sha256").hexdigest())
            except OSError as error:
                facts.append(f"unreadable {error.errno}")
        lines.append("\t".join(map(str, facts)))

visit("/", False)
if sys.argv[4] == "lines":
    print("\n".join(lines))
else:
    print(hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest(), len(lines))
"""


@dataclass(frozen=True, slots=True)
class Listing:
    """Every line of one desktop's file system."""

    lines: tuple[str, ...]

    @property
    def digest(self) -> str:
        """What `INSIDE` prints for the same listing."""
        return hashlib.sha256("\n".join(self.lines).encode("utf-8", "surrogateescape")).hexdigest()

    def differences(self, other: Listing, most: int = 10) -> list[str]:
        """Paths that differ, at most so many."""
        mine, theirs = (({line.partition("\t")[0]: line for line in one.lines}) for one in (self, other))
        return sorted(path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path))[:most]
