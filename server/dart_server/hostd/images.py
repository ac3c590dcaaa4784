"""Images of desktops on disk: `<images>/<name>/current` holds `rootfs/` and `manifest.json`.

Rule: an image is named, never a path, and must resolve to a place under the images directory. While somebody keeps what `find` gave, the
image's directory is locked (flock, shared), so that it is not removed below its desktops.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from dart_server.hostd.errors import HostdImageMissing

DEFAULT_INIT = ("/usr/sbin/dart-init",)


class DirectoryLock:
    """A shared lock on a directory that ends with this object. Raises OSError where there is no such directory, or it is being removed."""

    def __init__(self, place: Path) -> None:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
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


def find(images_dir: Path, name: str) -> Image:
    """Look an image up by name. Raises ImageMissing with the fix."""
    top = images_dir.resolve()
    place = (top / name / "current").resolve()
    rootfs = place / "rootfs"
    fix = f"build it: `dart-farm images build {name}`"
    if not place.is_relative_to(top) or rootfs.is_symlink() or not rootfs.is_dir():
        raise HostdImageMissing(f"there is no image {name!r} in {images_dir}", hint=fix)
    try:
        lock = DirectoryLock(place)
        manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        digest = manifest["digest"]
        init = tuple(manifest.get("init", DEFAULT_INIT))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostdImageMissing(f"the image {name!r} has no readable manifest.json ({error})", hint=fix) from error
    if not isinstance(digest, str) or not re.fullmatch(r"(sha256:)?[0-9a-f]{12,64}", digest):
        raise HostdImageMissing(f"the manifest of image {name!r} has a malformed digest", hint=fix)
    if not init or not all(isinstance(word, str) for word in init):
        raise HostdImageMissing(f"the manifest of image {name!r} has a malformed init", hint=fix)
    return Image(rootfs, digest if digest.startswith("sha256:") else f"sha256:{digest}", init, lock)
