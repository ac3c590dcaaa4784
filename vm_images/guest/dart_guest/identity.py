"""Who a desktop says it is: the machine id, at every place where programs look for it.

Rule: every boot and every copy of a snapshot has an id of its own; the host name is `desktop` for all. Non-goals: what a program that is
already running has read (the session bus keeps the id and address with which it started).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


def write_machine_id(machine_id: str, files: tuple[Path, ...] = MACHINE_ID_FILES) -> None:
    """Put 32 hex digits into every file that holds the id; a full disk must fail neither a start nor a restore.

    A link that leads elsewhere is replaced: what is written as root must not follow one that the user laid.
    """
    for file in files:
        fresh = file.with_name(f".{file.name}.dart-new")
        try:
            fresh.unlink(missing_ok=True)
            with fresh.open("x", encoding="ascii") as stream:
                stream.write(machine_id + "\n")
            fresh.chmod(0o444)
            fresh.replace(file)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
