"""The start of one life of a desktop: its root, its network, its ids, and its processes, new ones or those of a snapshot.

Rule: everything is made below the desktop's own directory, and noted in `desktop` as soon as it exists, so that whoever tears a life down
finds all of it. Non-goals: which lives there are, and their end (`containers`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from dart_server.hostd.errors import HostdSnapshotBroken
from dart_server.hostd.linux import netns
from dart_server.hostd.process_records import DesktopProcess, SnapshotFiles
from dart_server.hostd.runtime import oci, process_images, restored_network
from dart_server.hostd.runtime.runc import CRIU_SETTINGS, Runc, criu_config
from dart_server.hostd.storage import Storage, discard, file_sizes


def start(storage: Storage, runc: Runc, desktop: DesktopProcess, snapshot: SnapshotFiles | None, cgroup: str) -> None:
    """Boot a desktop, or bring a snapshot's processes to life in it. Raises OSError and `HostdError`."""
    place = storage.desktop_dir(desktop.name)
    desktop.restored = snapshot is not None
    if storage.user_ids is not None:
        desktop.first_id = storage.user_ids.take()
    root = storage.mount_root(
        desktop.name, desktop.image.rootfs, desktop.layers, desktop.limits.disk_mib, desktop.first_id
    )
    network = place / "net"
    if not desktop.first_id:
        netns.create(network)
    criu_config(place).write_text(CRIU_SETTINGS, encoding="ascii")
    config = oci.runtime_config(
        rootfs=root,
        argv=desktop.image.init,
        env=desktop.env,
        cgroup=cgroup,
        netns=None if desktop.first_id else network,
        criu_config=criu_config(place),
        limits=desktop.limits,
        first_id=desktop.first_id,
        hooks=restored_network.hooks(place) if desktop.restored and desktop.first_id else None,
        apparmor_profile=runc.profile_for_start(),
    )
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    pid = runc.run(desktop.name, place) if snapshot is None else _restore(storage, runc, desktop, snapshot, cgroup)
    desktop.pidfd = os.pidfd_open(pid)
    if desktop.first_id:
        netns.hold(pid, network)


def _restore(storage: Storage, runc: Runc, desktop: DesktopProcess, snapshot: SnapshotFiles, cgroup: str) -> int:
    """Restore saved processes, with the desktop's own range of user ids; returns the host pid of init."""
    place, kept = storage.desktop_dir(desktop.name), storage.snapshot_dir(snapshot.snapshot_id)
    processes = kept / "images"
    if file_sizes(processes) != snapshot.sizes:
        raise HostdSnapshotBroken(f"files of the snapshot {snapshot.snapshot_id} are missing or cut short")
    if not desktop.first_id:
        return runc.restore(desktop.name, place, processes, place, cgroup)
    copy: Path = kept / f"for-{desktop.name}"
    try:
        process_images.for_range(processes, snapshot.sizes, copy, desktop.first_id)
        with restored_network.ready_when_asked(place):
            pid = runc.restore(desktop.name, place, copy, place, cgroup)
        process_images.keep(copy)
        return pid
    finally:
        discard(copy)
