"""Evidence about one desktop of the helper: its control group, root and layers. Rule: the caller orders calls for one desktop."""

from __future__ import annotations

import os
import threading
from typing import BinaryIO

from dart_server.hostd.errors import HostdDesktopGone
from dart_server.hostd.evidence.collect import collect
from dart_server.hostd.evidence.layers import ImageLayers
from dart_server.hostd.evidence.queries import HostdQuery
from dart_server.hostd.linux import cgroups, syscalls
from dart_server.hostd.process_records import DesktopProcess
from dart_server.hostd.storage import Storage

PARALLEL = 4
_slots = threading.Semaphore(PARALLEL)
"""Bounds the memory that contents take before they are handed over."""


def look(desktop: DesktopProcess, storage: Storage, group: str, queries: tuple[HostdQuery, ...]) -> BinaryIO:
    """The message of `collect`, in a file in memory; the caller closes it. Raises HostdDesktopGone.

    The desktop is frozen meanwhile and goes on afterwards, whatever happens; one that was frozen stays so. What cannot be frozen is
    read as it runs, and the answer says so: no desktop can escape a look by being busy.
    """
    above = [storage.desktop_dir(desktop.name) / "t" / "u", *map(storage.layer_dir, desktop.layers)]
    with _slots:
        try:
            message = collect(
                queries,
                syscalls.process_of(desktop.pidfd),
                lambda: cgroups.group_members(group),
                ImageLayers(above, [desktop.image.rootfs]),
                lambda: cgroups.standing_still(group),
            )
        except (FileNotFoundError, ProcessLookupError) as error:
            raise HostdDesktopGone(f"the desktop {desktop.desktop_id} has ended") from error
        return _memory_file(message)


def _memory_file(content: bytes) -> BinaryIO:
    """A file without a name that holds `content`."""
    file = os.fdopen(os.memfd_create("evidence", os.MFD_CLOEXEC), "w+b")
    try:
        file.write(content)
        file.flush()
    except BaseException:  # no memory, too, no descriptor may stay; raised again
        file.close()
        raise
    return file
