"""File systems of desktops: a private mount tree, one size-capped writable layer per desktop, frozen layers below it.

A desktop's root is an overlay: [its own writable layer, frozen layers newest first, image]. Taking a snapshot copies
the writable layer (the processes are frozen meanwhile) into a new frozen layer; every restore stacks a fresh writable
layer on it. All mounts live in the helper's own mount namespace: when the helper ends, the kernel removes them.
"""

from __future__ import annotations

import logging
import os
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

from dart_server.hostd.errors import HostdDesktopUnsavable, HostdHostFault
from dart_server.hostd.layout import Layout, ownership_problem
from dart_server.hostd.linux import syscalls, trees, user_ids
from dart_server.hostd.users import store as user_store

OVERLAY_OPTIONS = "index=on,nfs_export=on"
"""File handles on the overlay: without them CRIU cannot save inotify watches."""

MAX_LAYERS = 40
"""Depth of a chain of snapshots; the kernel takes one page of mount options."""

INODES_PER_MIB = 64
"""Files that a desktop may make for each MiB of its disk: one per 16 KiB, as ext4 has."""

MAX_DEPTH = 1000
"""Directories inside one another that a desktop may make; one that made more cannot be saved."""

MAX_PATH_NBYTES = 3800
"""Longest path in a desktop's writable layer that can be copied: the kernel takes 4096 bytes, the place of the layer included."""

SHARED_MOUNT_POINT = Path("/run/dart-desktops")
_MIN_LAYER_MIB = 16
_COPY_TIMEOUT_S = 120.0
_log = logging.getLogger(__name__)


class Storage:
    """Owns the directory `live`: `d/` desktops, `l/` frozen layers, `s/` snapshot images, `runc/` runc's own state, `null/` a device."""

    def __init__(self, layout: Layout, *, on_disk: bool, size_mib: int) -> None:
        self._layout = layout
        self._on_disk = on_disk
        self._size_mib = size_mib
        self._live = layout.live
        self.user_ids: user_ids.UserIds | None = None
        """Ranges of user ids for desktops; None where this host cannot give them any."""
        self.shares_ids_because = ""
        """Why it cannot."""
        self._layers: dict[str, trees.TreeUsage] = {}
        """What each frozen layer costs, by its id; nothing yet for one that is being made."""

    @property
    def enforces_disk(self) -> bool:
        """Whether a desktop's writable layer has a hard size cap."""
        return not self._on_disk

    def open(self, programs: Iterable[Path] = ()) -> None:
        """Enter a mount namespace of our own and lay out the tree. Call once, before any thread starts.

        `programs`: what the helper runs, wherever it lies.
        """
        ids, self.shares_ids_because = _reserve_ids()
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", Path("/"), None, syscalls.MS_REC | syscalls.MS_SLAVE)
        if self._on_disk:
            self._make_disk()
        _mount_private_tmp(self._layout, programs)
        _mount_criu_cache(self._layout)
        live = self._layout.live
        live.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = f"mode=0711,size={self._size_mib}m"
        syscalls.mount(self._layout.prefix, live, "tmpfs", syscalls.MS_NOSUID, options)
        syscalls.mount("none", live, None, syscalls.MS_PRIVATE)
        for part in ("d", "runc"):
            (live / part).mkdir(mode=0o711)
        for part in ("l", "s"):
            (live / part).mkdir(mode=0o711)
            if self._on_disk:
                backing = self._layout.disk / part
                discard(backing)
                backing.mkdir(mode=0o700, parents=True)
                syscalls.mount(str(backing), live / part, None, syscalls.MS_BIND)
        _mount_null_device(live / "null")
        self._live = _reachable(live)
        self.shares_ids_because = self.shares_ids_because or self._try_ids()
        if self.shares_ids_because:
            self._refuse_shared_ids()
            _log.warning("The desktops share the user ids of the host: %s", self.shares_ids_because)
        else:
            self.user_ids = ids

    def _try_ids(self) -> str:
        """Why desktops cannot have ranges of user ids; empty where they can.

        What an ordinary user named decides nothing here: images that cannot be translated are refused when a desktop is made.
        """
        if self._live != SHARED_MOUNT_POINT:
            return f"{SHARED_MOUNT_POINT} cannot be made"
        scratch, images = (self._layout.disk if self._on_disk else self._live) / "try", self._layout.images_dir
        if self._layout.user is not None:
            images = Path("/usr")
        while not images.is_dir():
            images = images.parent
        scratch.mkdir()
        try:
            return user_ids.refusal(scratch, images)
        finally:
            discard(scratch)

    def _refuse_shared_ids(self) -> None:
        """Refuse to serve an ordinary user with shared ids where the kernel can do without. Raises OSError.

        Root of a desktop would be root of the host for a user who controls both, and that user can make the trial fail: by a directory, by
        the limits of his control group, by the load of the host.
        """
        if self._layout.user is not None and user_ids.kernel_can():
            raise OSError(
                f"desktops would share the user ids of the host ({self.shares_ids_because}), which an ordinary user's may not: "
                "set DART_SNAPSHOT_DIR to another file system, or run the farm as root"
            )

    def _make_disk(self) -> None:
        """Make the directory for what is kept on disk. Raises OSError when others could shape it.

        Of an ordinary user's directory the store itself is opened with that user's rights and checked there.
        """
        if self._layout.user is None:
            problem = ownership_problem(self._layout.store_dir, self._layout.owner_uid)
            if problem is not None:
                raise OSError(f"{problem}; set DART_SNAPSHOT_DIR to a directory of your own")
        user_store.mount(self._layout)
        disk = self._layout.disk
        disk.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = disk.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, self._layout.owner_uid):
            raise OSError(f"{disk} is not this helper's; remove it")

    def close(self) -> None:
        """Remove what `open` and the desktops left; every desktop must have been torn down."""
        for top in (self._live, self._layout.live):
            for mounted in sorted(_mounts_below(top), reverse=True):
                syscalls.umount(mounted, syscalls.MNT_DETACH)
        if self._on_disk:
            discard(self._layout.disk)
            user_store.unmount(self._layout)

    def desktop_dir(self, name: str) -> Path:
        """Where a desktop's mounts and bundle are."""
        return self._live / "d" / name

    def layer_dir(self, layer_id: str) -> Path:
        """A frozen layer's files."""
        return self._live / "l" / layer_id

    def snapshot_dir(self, snapshot_id: str) -> Path:
        """A snapshot's process images."""
        return self._live / "s" / snapshot_id

    @property
    def runc_root(self) -> Path:
        """Where runc and CRIU keep what is theirs."""
        return self._live / "runc"

    def mount_root(self, name: str, base: Path, layers: tuple[str, ...], disk_mib: int, first_id: int = 0) -> Path:
        """Make a desktop's directory and mount its root over [layers..., base]; returns the root.

        `first_id`: where the desktop's range of user ids begins; 0: files belong to the host's ids.
        """
        place = self.desktop_dir(name)
        place.mkdir(mode=0o711)
        top, root = place / "t", place / "m"
        top.mkdir()
        root.mkdir()
        if not self._on_disk:
            below = [self._layers[layer] for layer in layers]
            room_mib = max(_MIN_LAYER_MIB, disk_mib - (sum(layer.nbytes for layer in below) >> 20))
            inodes = disk_mib * INODES_PER_MIB - sum(layer.inodes for layer in below)
            inodes = max(_MIN_LAYER_MIB * INODES_PER_MIB, inodes)
            options = f"mode=0755,size={room_mib}m,nr_inodes={inodes}"
            syscalls.mount("layer", top, "tmpfs", syscalls.MS_NODEV, options)
        else:
            backing = self._layout.disk / "d" / name
            backing.mkdir(mode=0o700, parents=True)
            syscalls.mount(str(backing), top, None, syscalls.MS_BIND)
        (top / "u").mkdir(mode=0o755)
        (top / "w").mkdir(mode=0o700)
        namespace = self.user_ids.namespace(first_id) if self.user_ids is not None and first_id else None
        syscalls.run_in_thread(lambda: _mount_overlay(place, base, layers, first_id, namespace))
        return root

    def commit_layer(self, name: str, layer_id: str) -> None:
        """Copy a paused desktop's writable layer, with every attribute, into a new frozen layer.

        Raises `HostdDesktopUnsavable` for a layer that cannot be copied because of what the desktop made.
        """
        source, target = self.desktop_dir(name) / "t" / "u", self.layer_dir(layer_id)
        self._layers[layer_id] = trees.TreeUsage()
        target.mkdir(mode=0o755)
        argv = ["cp", "-a", "--reflink=auto", f"{source}/.", str(target)]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_COPY_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            self.remove_layer(layer_id)
            _refuse_deep(trees.usage(source))
            raise HostdHostFault(
                f"copying the desktop's files failed: {done.stderr.strip()[-300:]}",
                hint="free memory or disk for snapshots",
            )

    def look_up_names(self, name: str) -> None:
        """Look up every name in a paused desktop's root, so that the kernel has them in its cache.

        An inode of an overlay has a file handle only as long as one of its names is there (`ovl_encode_fh`), and a watch keeps the inode
        alone.
        """
        trees.usage(self.desktop_dir(name) / "m")

    def measure_layer(self, layer_id: str) -> trees.TreeUsage:
        """Count a layer that was just made. Raises `HostdDesktopUnsavable` for one that is too deep."""
        found = self._layers[layer_id] = trees.usage(self.layer_dir(layer_id))
        _refuse_deep(found)
        return found

    def remove_layer(self, layer_id: str) -> None:
        """Remove a frozen layer that nothing stands on, or what there is of it."""
        discard(self.layer_dir(layer_id))
        self._layers.pop(layer_id, None)

    def usage(self, name: str) -> tuple[int, int]:
        """(bytes used, bytes free) of a desktop's writable layer; one that can hold no further file is full."""
        room = os.statvfs(self.desktop_dir(name) / "t")
        used, free = (room.f_blocks - room.f_bfree) * room.f_frsize, room.f_bavail * room.f_frsize
        if not self._on_disk:
            inode_nbytes = trees.INODE_NBYTES + trees.NAME_NBYTES
            used += (room.f_files - room.f_ffree) * inode_nbytes
            free = min(free, room.f_favail * inode_nbytes)
        return used, free

    def unmount_root(self, name: str) -> None:
        """Undo `mount_root`, also when it was only half done."""
        place = self.desktop_dir(name)
        for mounted in sorted(_mounts_below(place), reverse=True):
            syscalls.umount(mounted, syscalls.MNT_DETACH)
        discard(place)
        if self._on_disk:
            discard(self._layout.disk / "d" / name)


def _mount_overlay(place: Path, base: Path, layers: tuple[str, ...], first_id: int, namespace: int | None) -> None:
    """Mount `place/m`, naming every directory relative to `place`: a desktop reads these names in its own list of mounts.

    `namespace`: translates the owners of all files to the desktop's range.
    """
    parts = {"b": base, "f": place / ".." / ".." / "l", "h": place / "t"}
    mounted = []
    try:
        for name, source in parts.items():
            (place / name).mkdir()
            if namespace is None:
                syscalls.mount(str(source), place / name, None, syscalls.MS_BIND)
            else:
                user_ids.mount_shifted(source, place / name, namespace)
            mounted.append(place / name)
        syscalls.unshare(syscalls.CLONE_FS)
        os.chdir(place)
        if namespace is not None:
            user_ids.act_as_root_of(first_id)
        lower = ":".join([*(f"f/{layer}" for layer in layers), "b"])
        syscalls.mount(
            "overlay",
            Path("m"),
            "overlay",
            syscalls.MS_NODEV,
            f"lowerdir={lower},upperdir=h/u,workdir=h/w,{OVERLAY_OPTIONS}",
        )
    finally:
        for part in reversed(mounted):
            syscalls.umount(part, syscalls.MNT_DETACH)


def discard(top: Path) -> None:
    """Remove a tree, however it was shaped; what cannot be removed is logged."""
    try:
        trees.remove(top)
    except OSError as error:
        _log.error("%s was not removed: %s", top, error)


def _refuse_deep(files: trees.TreeUsage) -> None:
    if files.depth > MAX_DEPTH or files.longest_path_nbytes > MAX_PATH_NBYTES:
        raise HostdDesktopUnsavable(
            f"the desktop's files lie {files.depth} directories deep, on paths of up to {files.longest_path_nbytes} bytes",
            hint=f"remove what lies deeper than {MAX_DEPTH} directories or has a path of more than {MAX_PATH_NBYTES} bytes",
        )


def file_sizes(directory: Path) -> dict[str, int]:
    """Bytes of each file in a directory, by name."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}


def is_memory_backed(place: Path) -> bool:
    """Whether a directory, or the nearest one above it that exists, is on a tmpfs."""
    while not place.exists():
        place = place.parent
    kinds = {}
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        for line in table:
            fields, _, source = line.partition(" - ")
            kinds[Path(fields.split()[4])] = source.split()[0]
    place = place.resolve()
    return next(kinds[path] for path in (place, *place.parents) if path in kinds) == "tmpfs"


def _mounts_below(top: Path) -> list[Path]:
    """Mount points at or under `top`, in mount order, one entry per mount."""
    found = []
    with open("/proc/thread-self/mountinfo", encoding="utf-8") as table:
        for line in table:
            place = Path(line.split()[4].encode().decode("unicode_escape"))
            if place == top or place.is_relative_to(top):
                found.append(place)
    return found


def _mount_null_device(place: Path) -> None:
    """Files of /proc that a desktop must not see are covered with /dev/null, in a restored one with the helper's.

    Root inside may change the attributes of a file that covers another: this one is on a file system that nobody can change.
    """
    place.mkdir(mode=0o755)
    syscalls.mount("null", place, "tmpfs", syscalls.MS_NOSUID, "mode=0755,size=4k")
    device = place / "null"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    device.chmod(0o666)
    syscalls.mount("null", place, "tmpfs", syscalls.MS_REMOUNT | syscalls.MS_RDONLY | syscalls.MS_NOSUID)
    syscalls.mount(str(device), Path("/dev/null"), None, syscalls.MS_BIND)


def _reserve_ids() -> tuple[user_ids.UserIds | None, str]:
    """Ranges of user ids, or why there are none. Before the helper has a /run of its own: all helpers of the host lock one file."""
    try:
        return user_ids.UserIds(), ""
    except OSError as error:
        return None, str(error)


def _reachable(live: Path) -> Path:
    """Mount the tree a second time, where every user may pass the directories above it: a desktop's root, who is nobody on the host, must
    reach his. Other helpers use the same directory, each in its own mount namespace, so nobody removes it."""
    try:
        SHARED_MOUNT_POINT.mkdir(mode=0o755, exist_ok=True)
        syscalls.mount(str(live), SHARED_MOUNT_POINT, None, syscalls.MS_BIND | syscalls.MS_REC)
    except OSError as error:
        _log.warning("%s cannot be mounted: %s", SHARED_MOUNT_POINT, error)
        return live
    return SHARED_MOUNT_POINT


def _mount_criu_cache(layout: Layout) -> None:
    """CRIU caches what it learnt about the kernel in /run, but only on a tmpfs; give it one that nobody else sees."""
    run = Path("/run")
    if os.path.ismount(run):
        return
    _mount_private(run, (layout.state_dir, layout.runtime_dir), "mode=0755,size=4m")


def _mount_private_tmp(layout: Layout, programs: Iterable[Path]) -> None:
    """CRIU makes directories in /tmp, as the desktop's root, and one that is killed leaves them there; give it a /tmp that ends with
    this helper.

    What the helper needs below /tmp keeps its place. Nothing is done when it could not remove its own directories any more.
    """
    tmp = Path("/tmp")
    if tmp in (layout.state_dir.parent, layout.disk.parent):
        return
    needed = [layout.state_dir, layout.runtime_dir, layout.images_dir, layout.disk, *programs]
    if layout.user_store is not None:
        needed.append(layout.user_store)
    _mount_private(tmp, needed, "mode=1777,size=4m")


def _mount_private(place: Path, needed: Iterable[Path], options: str) -> None:
    """Cover a directory with a tmpfs of the helper's own, on which the entries that lead to `needed` keep their place."""
    tops = {place / path.relative_to(place).parts[0] for path in needed if path.is_relative_to(place)}
    held = {top: os.open(top, os.O_PATH | os.O_DIRECTORY) for top in tops if top.is_dir()}
    syscalls.mount(f"dart-{place.name}", place, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    for top, descriptor in held.items():
        top.mkdir()
        syscalls.mount(f"/proc/self/fd/{descriptor}", top, None, syscalls.MS_BIND | syscalls.MS_REC)
        os.close(descriptor)
