"""Ranges of user ids: each desktop's users and groups are users of the host that nothing else has.

Rule: inside, ids are 0 to 65535 as ever; outside, they start at the `first_id` of the desktop. What the kernel counts or limits per user is
then the desktop's own, and root inside is nobody on the host. Files keep their inside ids on the disk: mounts translate them
(`mount_shifted`), so that layers and images belong to every range alike. A range is reserved on the whole host by a lock on one byte of a
file, which ends with the helper. Non-goals: which processes get a range (`containers`); the namespace of the processes (runc, CRIU).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import random
import re
import struct
import subprocess
import threading
from pathlib import Path

from dart_server.hostd.linux import syscalls

COUNT = 65536
"""Ids of one range."""
LOWEST = 0x70000000
"""Nothing else gives these away: above the ids of systemd's containers, below what is no longer a positive number of 32 bits."""
RANGES = 4095
LOCK_FILE = Path("/run/dart-desktops.ids")
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_IDMAP = 1, 4, 0x00100000
_CAPABILITY_VERSION = 0x20080522


class UserIds:
    """The ranges of one helper. Thread-safe."""

    def __init__(self, lock_file: Path = LOCK_FILE) -> None:
        """Raises OSError where the file cannot be made."""
        self._file = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._untried = list(range(RANGES))
        random.shuffle(self._untried)
        self._free: list[int] = []
        self._namespaces: dict[int, int] = {}
        self._lock = threading.Lock()

    def take(self) -> int:
        """The first id of a range that nobody uses. Raises OSError when the host has none left."""
        with self._lock:
            if self._free:
                return self._free.pop()
            while self._untried:
                number = self._untried.pop()
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                except OSError:
                    continue
                return LOWEST + number * COUNT
        raise OSError("every range of user ids is in use")

    def give_back(self, first_id: int) -> None:
        """No process and no mount of a range is left."""
        with self._lock:
            self._free.append(first_id)

    def namespace(self, first_id: int) -> int:
        """A user namespace with the range's ids, for `mount_shifted`; it stays open."""
        with self._lock:
            if first_id not in self._namespaces:
                self._namespaces[first_id] = _new_namespace(first_id)
            return self._namespaces[first_id]


def mapping(first_id: int) -> str:
    """A range as a namespace's `uid_map` has it."""
    return f"0 {first_id} {COUNT}\n"


def _new_namespace(first_id: int) -> int:
    """A namespace is made by a process, and lives on in its descriptor."""
    argv = ["unshare", "--user", "sh", "-c", "echo; read -r _"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as maker:
        assert maker.stdout is not None
        if not maker.stdout.readline():
            raise OSError("the kernel makes no user namespace")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{maker.pid}/{kind}").write_text(mapping(first_id), encoding="ascii")
        return os.open(f"/proc/{maker.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def mount_shifted(source: Path, target: Path, namespace: int) -> None:
    """Bind `source` to `target` with its owners translated to the range of a namespace. Raises OSError where its file system cannot."""
    tree = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    try:
        attributes = struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, namespace)
        _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, ctypes.c_size_t(len(attributes)))
        _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)


def act_as_root_of(first_id: int) -> None:
    """Make and own files as a range's root in this thread, with every capability kept. Call in `run_in_thread` only.

    Overlayfs writes with the rights of whoever mounted it, and its upper layer knows the ids of the range only.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.setfsgid(first_id)
    libc.setfsuid(first_id)
    header = ctypes.create_string_buffer(struct.pack("=II", _CAPABILITY_VERSION, 0))
    words = ctypes.create_string_buffer(24)
    if libc.capget(header, words) == 0:
        _, low, low_inherited, _, high, high_inherited = struct.unpack("=6I", words.raw)
        kept = struct.pack("=6I", low, low, low_inherited, high, high, high_inherited)
        if libc.capset(header, kept) == 0:
            return
    raise OSError(ctypes.get_errno(), "capset")


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def kernel_can() -> bool:
    """Return whether this kernel translates the ids of every file system that desktops use (Linux 6.3: tmpfs)."""
    numbers = re.match(r"(\d+)\.(\d+)", platform.release())
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (6, 3)


def refusal(scratch: Path, images: Path) -> str:
    """Why this host cannot give desktops ranges of their own; empty where it can. `scratch`: an empty directory where desktops write.

    Tries what a desktop needs: /proc and /sys of its own in a new user namespace, and an overlay of translated mounts that can be written.
    """
    tried = ["mount", "-t", "sysfs", "sysfs", "/sys"]
    argv = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc", *tried]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=10.0, check=False)
        if done.returncode != 0:
            return f"no /proc and /sys in a user namespace ({done.stderr.strip()[-200:]})"
        namespace = _new_namespace(LOWEST)
        try:
            syscalls.run_in_thread(lambda: _try_overlay(scratch, images, namespace))
        finally:
            os.close(namespace)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no file systems with translated ids ({error})"
    return ""


def _try_overlay(scratch: Path, images: Path, namespace: int) -> None:
    for name in ("plain", "plain/u", "plain/w", "upper", "lower", "root"):
        (scratch / name).mkdir()
    mounted = []
    try:
        for source, name in ((scratch / "plain", "upper"), (images, "lower")):
            mount_shifted(source, scratch / name, namespace)
            mounted.append(scratch / name)
        act_as_root_of(LOWEST)
        upper = f"upperdir={scratch}/upper/u,workdir={scratch}/upper/w"
        syscalls.mount("overlay", scratch / "root", "overlay", 0, f"lowerdir={scratch}/lower,{upper}")
        mounted.append(scratch / "root")
        (scratch / "root" / "probe").touch()
    finally:
        for place in reversed(mounted):
            syscalls.umount(place, syscalls.MNT_DETACH)
