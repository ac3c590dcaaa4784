"""Who a desktop says it is: the machine id, at every place where programs look for it; and what makes its randomness its own.

Rule: every boot and every copy of a snapshot has an id of its own; the host name is `desktop` for all. Non-goals: what a program that is
already running has read (the session bus keeps the id and address with which it started).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207
"""Requests of linux/random.h."""

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


def stir_randomness(entropy: bytes, *, own_kernel: bool) -> None:
    """Make what the kernel draws from now on differ from what other copies of the same snapshot draw.

    A machine's kernel came back with the state of its generator and would go on as every other copy does, up to a minute long, if it were
    only given something to stir in. A container's kernel is the host's, which needs nothing.
    """
    with contextlib.suppress(OSError):
        pool = os.open("/dev/urandom", os.O_RDWR)
        try:
            os.write(pool, entropy)
            if own_kernel:
                fcntl.ioctl(pool, RNDADDENTROPY, struct.pack("ii", len(entropy) * 8, len(entropy)) + entropy)
                fcntl.ioctl(pool, RNDRESEEDCRNG)
        finally:
            os.close(pool)
