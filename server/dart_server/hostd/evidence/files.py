"""Files of a desktop, read by the host through the root directory of its init.

Rule: a path is resolved with openat2(RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS), so that no link leads out of the desktop and its own mounts
count. A file is looked at (O_PATH) before it is opened: no device, pipe or socket ever is, and nothing on a file system that is not a plain
one, such as /proc. Sizes, counts, depths and the whole time are bounded (`budget`). Non-goals: freezing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dart_server.hostd.evidence.budget import Budget, Refused
from dart_server.hostd.evidence.layers import ImageLayers
from dart_server.hostd.evidence.queries import HostdFileQuery, HostdStatQuery, HostdTreeQuery
from dart_server.hostd.linux import syscalls

DIGEST_LIMIT_NBYTES = 32 << 20
"""A larger file has no digest."""
DIGESTS_NBYTES = 256 << 20
"""Of all files of one request."""
CONTENTS_NBYTES = 64 << 20
ACCESS_LIST = "system.posix_acl_access"
_CHUNK_NBYTES = 1 << 20
_PLAIN_FILE_SYSTEMS = frozenset(
    {0x794C7630, 0x01021994, 0x858458F6, 0xEF53, 0x58465342, 0x9123683E, 0x2FC12FC1, 0xF2F52010}
)
"""overlay, tmpfs, ramfs, ext, XFS, Btrfs, ZFS, F2FS."""
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class IdMap:
    """Numbers of users (or groups) inside a desktop, by those of the host; `lines` as in /proc/PID/uid_map."""

    def __init__(self, lines: str) -> None:
        self._ranges = [tuple(map(int, line.split())) for line in lines.splitlines() if line.strip()]

    def inside(self, number: int) -> int:
        """The number inside; the overflow id 65534 for one that is not mapped."""
        for inside, outside, count in self._ranges:
            if outside <= number < outside + count:
                return inside + number - outside
        return 65534


class DesktopFiles:
    """The files of one desktop, for one request. `root_fd`: the root directory of its init, open with O_PATH."""

    def __init__(self, root_fd: int, layers: ImageLayers, uids: IdMap, gids: IdMap) -> None:
        self._root_fd = root_fd
        self._layers = layers
        self._uids = uids
        self._gids = gids
        self.budget = Budget()
        self._contents_left = CONTENTS_NBYTES
        self._digests_left = DIGESTS_NBYTES

    def stat(self, query: HostdStatQuery) -> dict[str, Any]:
        """Facts of a path."""
        with self._looked_at(query.path, follow=query.follow) as descriptor:
            return self.budget.take_answer(self._facts(descriptor))

    def read(self, query: HostdFileQuery) -> tuple[dict[str, Any], bytes]:
        """Facts and content of a regular file."""
        with self._looked_at(query.path) as descriptor:
            facts = self.budget.take_answer(self._facts(descriptor))
            self._refuse_special(descriptor, facts)
            limit = min(query.limit_nbytes, self._contents_left)
            if facts["nbytes"] > limit:
                raise Refused("too_large")
            with _opened(descriptor) as file:
                content = self._read(file, limit)
        self._contents_left -= len(content)
        return facts, content

    def tree(self, query: HostdTreeQuery) -> list[dict[str, Any]]:
        """Facts of everything below a folder, with `path` relative to it; sorted."""
        entries: list[dict[str, Any]] = []
        with self._looked_at(query.path) as top:
            if not stat.S_ISDIR(os.fstat(top).st_mode):
                raise Refused("not_a_folder")
            if syscalls.file_system_type(top) not in _PLAIN_FILE_SYSTEMS:
                raise Refused("not_readable")
            self._walk(top, query, entries)
        return sorted(entries, key=lambda entry: str(entry["path"]))

    def identity(self, path: str) -> tuple[int, int] | None:
        """(device, inode) of the file that a path leads to now, None where there is none."""
        try:
            with self._looked_at(path) as descriptor:
                found = os.fstat(descriptor)
        except Refused:
            return None
        return found.st_dev, found.st_ino

    def from_image(self, path: str) -> bool:
        """Whether the file at a path without links is unchanged from the image."""
        return self._layers.holds(path)

    def user(self, uid: int) -> int:
        """The number inside the desktop of a user of the host."""
        return self._uids.inside(uid)

    def group(self, gid: int) -> int:
        """The number inside the desktop of a group of the host."""
        return self._gids.inside(gid)

    def _walk(self, top: int, query: HostdTreeQuery, entries: list[dict[str, Any]]) -> None:
        """Depth first, with one open folder for each level: the depth of the tree never meets a limit of the interpreter or of paths."""
        open_folders: list[tuple[int, str, list[str]]] = []
        try:
            open_folders.append(self._enter(os.dup(top), "", query, entries))
            while open_folders:
                folder, prefix, waiting = open_folders[-1]
                if not waiting:
                    os.close(open_folders.pop()[0])
                    continue
                if len(open_folders) >= query.max_depth:
                    raise Refused("too_deep")
                name = waiting.pop()
                inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                open_folders.append(self._enter(inner, f"{prefix}{name}/", query, entries))
        finally:
            for folder, _, _ in open_folders:
                os.close(folder)

    def _enter(
        self, folder: int, prefix: str, query: HostdTreeQuery, entries: list[dict[str, Any]]
    ) -> tuple[int, str, list[str]]:
        """Note what is directly in a folder; returns it with the names of the folders in it. Closes it when it fails."""
        inner: list[str] = []
        try:
            if syscalls.file_system_type(folder) not in _PLAIN_FILE_SYSTEMS:
                return folder, prefix, inner
            with _opened(folder, os.O_DIRECTORY) as listing:
                names = self._names(listing, query.max_entries - len(entries))
            for name in names:
                self.budget.check_time()
                descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    entries.append(self._entry(descriptor, prefix + name, digest=query.digests))
                finally:
                    os.close(descriptor)
                if entries[-1]["kind"] == "folder":
                    inner.append(name)
        except BaseException:  # a refusal, too, leaves no folder open; raised again
            os.close(folder)
            raise
        return folder, prefix, inner

    def _names(self, listing: int, room: int) -> list[str]:
        """Names in an open folder. Refuses more than there is room for."""
        names = []
        with os.scandir(listing) as found:
            for item in found:
                names.append(item.name)
                if len(names) > room:
                    raise Refused("too_many_entries")
        return names

    def _entry(self, descriptor: int, path: str, *, digest: bool) -> dict[str, Any]:
        facts = self._facts(descriptor, image=False)
        if digest and facts["kind"] == "file" and facts["nbytes"] <= DIGEST_LIMIT_NBYTES:
            if facts["nbytes"] > self._digests_left:
                raise Refused("too_large")
            if syscalls.file_system_type(descriptor) in _PLAIN_FILE_SYSTEMS:
                with _opened(descriptor) as file:
                    content = self._read(file, DIGEST_LIMIT_NBYTES)
                self._digests_left -= len(content)
                facts["sha256"] = hashlib.sha256(content).hexdigest()
        if facts["kind"] in ("file", "folder") and ACCESS_LIST in os.listxattr(f"/proc/self/fd/{descriptor}"):
            facts["access_list"] = True
        return self.budget.take_answer({**facts, "path": readable(path)})

    @contextmanager
    def _looked_at(self, path: str, *, follow: bool = True) -> Iterator[int]:
        """A path, found but not opened."""
        flags = os.O_PATH | (0 if follow else os.O_NOFOLLOW)
        try:
            descriptor = syscalls.open_in_root(self._root_fd, os.fsencode(path), flags)
        except (OSError, UnicodeEncodeError) as error:
            raise Refused(_refusal(error)) from error
        try:
            yield descriptor
        except OSError as error:
            raise Refused(_refusal(error)) from error
        finally:
            os.close(descriptor)

    def _facts(self, descriptor: int, *, image: bool = True) -> dict[str, Any]:
        found = os.fstat(descriptor)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
        facts: dict[str, Any] = {
            "kind": kind,
            "nbytes": found.st_size,
            "mode": stat.S_IMODE(found.st_mode),
            "uid": self._uids.inside(found.st_uid),
            "gid": self._gids.inside(found.st_gid),
            "modified_s": found.st_mtime_ns / 1e9,
            "identity": f"{found.st_dev}:{found.st_ino}",
        }
        if kind == "link":
            facts["target"] = readable(os.readlink("", dir_fd=descriptor))
        elif image:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            facts |= {"real_path": readable(path), "from_image": kind == "file" and self._layers.holds(path)}
        return facts

    def _refuse_special(self, descriptor: int, facts: dict[str, Any]) -> None:
        if facts["kind"] != "file":
            raise Refused("not_regular_file")
        if syscalls.file_system_type(descriptor) not in _PLAIN_FILE_SYSTEMS:
            raise Refused("not_readable")

    def _read(self, file: int, limit_nbytes: int) -> bytes:
        """An open file to its end. Refuses more than the limit, whatever its size was said to be."""
        content = bytearray()
        while chunk := os.read(file, _CHUNK_NBYTES):
            content += chunk
            self.budget.check_time()
            if len(content) > limit_nbytes:
                raise Refused("too_large")
        return bytes(content)


@contextmanager
def _opened(descriptor: int, flags: int = 0) -> Iterator[int]:
    """What was looked at, opened for reading; never waits, and changes no time of access where that can be avoided."""
    wanted = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags
    place = f"/proc/self/fd/{descriptor}"
    try:
        opened = os.open(place, wanted | os.O_NOATIME)
    except PermissionError:
        opened = os.open(place, wanted)
    try:
        yield opened
    finally:
        os.close(opened)


def readable(text: str) -> str:
    """A name as text that any JSON reader takes: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(text).decode("utf-8", "replace")


def _refusal(error: Exception) -> str:
    missing = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
    return "not_found" if isinstance(error, UnicodeError) or getattr(error, "errno", 0) in missing else "not_readable"
