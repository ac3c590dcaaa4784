"""Images of desktops on disk: `<images>/<name>/current` holds `rootfs/` and `manifest.json`.

Rule: an image is named, never a path, and must resolve to a place under the images directory. For an ordinary user it is opened with his
rights, must be root's, and must lie on the host's own mounts, so that neither a link, a mount nor a later change leads root to other files.
While somebody keeps what `find` gave, the image's directory is locked (flock, shared), so that it is not removed below its desktops.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from dart_server.hostd.errors import HostdImageMissing
from dart_server.hostd.linux.credentials import HostUser, belongs_to_root, is_mounted_here, open_directory

DEFAULT_INIT = ("/usr/sbin/dart-init",)
MAX_MANIFEST_BYTES = 4 << 20


class DirectoryLock:
    """A shared lock on an open directory, which ends with this object. Raises OSError where the directory is being removed."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            self._release()
            raise


@dataclass(frozen=True, slots=True)
class Image:
    """A root file system, its content digest, and the program that becomes pid 1."""

    rootfs: Path
    digest: str
    init: tuple[str, ...]
    lock: DirectoryLock | None = field(default=None, compare=False, repr=False)


def find(images_dir: Path, name: str, reader: HostUser | None = None) -> Image:
    """Look an image up by name.

    Args:
        images_dir: The directory of all images.
        name: Name of the image.
        reader: The ordinary user who named the directory: the image is opened with his rights, and `rootfs` names it by its descriptor.

    Raises:
        HostdImageMissing: There is no such image, or it is not fit for use; with the fix.
    """
    fix = f"build it: `dart-farm images build {name}`"
    try:
        if reader is None:
            top = images_dir.resolve()
            place = (top / name / "current").resolve()
            if not place.is_relative_to(top) or (place / "rootfs").is_symlink() or not (place / "rootfs").is_dir():
                raise HostdImageMissing(f"there is no image {name!r} in {images_dir}", hint=fix)
            lock = DirectoryLock(os.open(place, os.O_RDONLY | os.O_DIRECTORY))
            rootfs = place / "rootfs"
        else:
            lock = DirectoryLock(open_directory(reader, images_dir / name / "current"))
            rootfs = _rootfs_of_root(lock.descriptor, name)
    except OSError as error:
        raise HostdImageMissing(f"there is no image {name!r} in {images_dir} ({error.strerror})", hint=fix) from error
    try:
        manifest = json.loads(_read_manifest(lock.descriptor, of_root=reader is not None))
        digest = manifest["digest"]
        init = tuple(manifest.get("init", DEFAULT_INIT))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostdImageMissing(f"the image {name!r} has no readable manifest.json ({error})", hint=fix) from error
    if not isinstance(digest, str) or not re.fullmatch(r"(sha256:)?[0-9a-f]{12,64}", digest):
        raise HostdImageMissing(f"the manifest of image {name!r} has a malformed digest", hint=fix)
    if not init or not all(isinstance(word, str) for word in init):
        raise HostdImageMissing(f"the manifest of image {name!r} has a malformed init", hint=fix)
    return Image(rootfs, digest if digest.startswith("sha256:") else f"sha256:{digest}", init, lock)


def _rootfs_of_root(image: int, name: str) -> Path:
    """Name the root file system of an open image, after a look at whose it is. Raises HostdImageMissing, OSError."""
    inner = os.open("rootfs", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=image)
    try:
        good = stat.S_ISDIR(os.fstat(inner).st_mode) and all(
            belongs_to_root(os.fstat(place)) and is_mounted_here(place) for place in (image, inner)
        )
    finally:
        os.close(inner)
    if not good:
        raise HostdImageMissing(
            f"the image {name!r} can be changed by others than root",
            hint=f"build it again: `dart-farm images build {name}`",
        )
    return Path(f"/proc/self/fd/{image}/rootfs")


def _read_manifest(image: int, *, of_root: bool) -> bytes:
    descriptor = os.open("manifest.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=image)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (of_root and not belongs_to_root(status)):
            raise PermissionError("it is not a file of root's")
        if status.st_size > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has more than {MAX_MANIFEST_BYTES} bytes")
        return file.read(MAX_MANIFEST_BYTES)
