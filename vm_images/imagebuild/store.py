"""The image store: `$DART_HOME/images/NAME/DIGEST/{rootfs/,manifest.json}`, `NAME/current` and `NAME/build.log`.

Role: where finished images lie, and how one appears: by rename, so a reader sees a whole image or none.
Rule: one builder per image name (a lock); leftovers of a killed build are removed by the next one, and by `remove`. Whoever runs desktops
of an image holds a shared lock (flock) on its directory, a machine's hypervisor one of its own on the disk: such an image is neither
removed nor replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from imagebuild.errors import BuildError, UsageError
from imagebuild.manifest import Manifest, read_manifest
from imagebuild.recipe import NAME

WORK_PREFIX, REMOVED_PREFIX = ".build-", ".removed-"
PACKAGES_PREFIX = ".packages-"
CURRENT = "current"
WITNESS = "rootfs/usr/bin/dpkg"
"""A file of every packages layer: with a hard link to it, an image is made of that layer."""


def dart_home(given: str | None, environment: dict[str, str]) -> Path:
    """`--home`, else DART_HOME, else `~/.local/share/dart`."""
    chosen = given or environment.get("DART_HOME") or "~/.local/share/dart"
    return Path(chosen).expanduser().absolute()


class ImageStore:
    """The images of one DART_HOME."""

    def __init__(self, home: Path) -> None:
        self.images = home / "images"

    def directory(self, name: str, digest: str) -> Path:
        """Where an image lies."""
        return self.images / name / digest

    def build_log(self, name: str) -> Path:
        """What the last installation of an image's packages said."""
        return self.images / name / "build.log"

    def finished(self, name: str, digest: str) -> Manifest | None:
        """The manifest of a finished image."""
        path = self.directory(name, digest) / "manifest.json"
        return read_manifest(path) if path.is_file() else None

    def all(self) -> list[Manifest]:
        """Every finished image, newest first by name."""
        found = [
            read_manifest(path) for path in self.images.glob("[!.]*/[!.]*/manifest.json") if path.parent.name != CURRENT
        ]
        return sorted(found, key=lambda one: (one.name, one.built_at), reverse=True)

    def unfinished(self, name: str) -> dict[str, Path]:
        """What builds left that failed or were interrupted: a name that `remove` takes as a digest -> the directory.

        A packages layer is among them when no image is made of it.
        """
        found: dict[str, Path] = {}
        for path in sorted((self.images / name).glob(".*-*")):
            if path.name.startswith(PACKAGES_PREFIX) and not _is_shared(path / WITNESS):
                found[path.name.removeprefix(PACKAGES_PREFIX)] = path
            elif path.name.startswith((WORK_PREFIX, REMOVED_PREFIX)):
                found[path.name.removeprefix(".")] = path
        return found

    def current(self, name: str) -> str | None:
        """Digest that `current` points to."""
        with contextlib.suppress(OSError):
            return os.readlink(self.images / name / CURRENT)
        return None

    def same_packages(self, name: str, recipe_digest: str) -> Path | None:
        """The root file system of an image whose packages are those of this recipe."""
        for manifest in self.all():
            if manifest.name == name and manifest.recipe_digest == recipe_digest:
                return self.directory(name, manifest.digest) / "rootfs"
        return None

    def packages_layer(self, name: str, packages_digest: str) -> Path:
        """Where the packages of an image lie, finished or not; called under the lock, so those of other recipes go."""
        for old in (self.images / name).glob(f"{PACKAGES_PREFIX}*"):
            if old.name != f"{PACKAGES_PREFIX}{packages_digest}":
                remove_tree(old)
        return self.images / name / f"{PACKAGES_PREFIX}{packages_digest}"

    @contextlib.contextmanager
    def locked(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Hold the right to build this image; waits for another builder, or raises BuildError when `wait` is off."""
        parent = self.images / name
        while True:
            try:
                parent.mkdir(parents=True, exist_ok=True)
                lock = (parent / ".lock").open("w")
            except FileNotFoundError:
                continue  # the image was removed just now
            except FileExistsError:
                if parent.exists() and not parent.is_dir():
                    raise
                continue  # it was there, and was removed before `mkdir` looked what it is
            with lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError as error:
                    raise BuildError(f"image {name} is being built; wait for its end, or stop that build") from error
                if not _is_at(lock.fileno(), parent / ".lock"):
                    continue  # the image was removed meanwhile, and this lock with it
                yield
                return

    def writable(self, name: str) -> bool:
        """Whether this process may put an image of this name there."""
        place = self.images / name
        while not place.exists():
            place = place.parent
        lock = self.images / name / ".lock"
        return os.access(place, os.W_OK) and (not lock.exists() or os.access(lock, os.W_OK))

    def fresh_work(self, name: str) -> Path:
        """An empty directory to build in; called under the lock, so all others are leftovers."""
        for prefix in (WORK_PREFIX, REMOVED_PREFIX):
            for leftover in (self.images / name).glob(f"{prefix}*"):
                remove_tree(leftover)
        work = self.images / name / f"{WORK_PREFIX}{os.getpid()}"
        work.mkdir(mode=0o755)
        return work

    def publish(self, work: Path, name: str, digest: str) -> None:
        """Move a finished build to its place and point `current` at it."""
        target = self.directory(name, digest)
        if target.exists():
            retired = target.with_name(f"{WORK_PREFIX}old-{os.getpid()}")
            with unused(target):
                os.rename(target, retired)
                os.rename(work, target)
                remove_tree(retired)
        else:
            os.rename(work, target)
        self.point_current(name, digest)

    def point_current(self, name: str, digest: str) -> None:
        """Replace the `current` link in one step."""
        link = self.images / name / f".current-{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(digest)
        os.replace(link, self.images / name / CURRENT)

    def remove(self, name: str, digest: str | None) -> list[str]:
        """Remove one build or what an unfinished one left, or all of a name; returns the digests removed.

        The folder goes with the last finished build, and with all of the name.
        """
        folder = self.images / name
        missing = UsageError(f"there is no image {name}{' ' + digest if digest else ''}")
        if not (NAME.fullmatch(name) and folder.is_dir()):
            raise missing
        with self.locked(name, wait=False):
            left = self.unfinished(name)
            doomed = [one.digest for one in self.all() if one.name == name and digest in (None, one.digest)]
            if not (digest is None or doomed or digest in left):
                raise missing
            for one in doomed:
                target = self.directory(name, one)
                with unused(target):
                    if self.current(name) == one:
                        (folder / CURRENT).unlink()
                    remove_tree(target)
            if digest in left:
                remove_tree(left[digest])
            finished = any(one.name == name for one in self.all())
            if not finished and not (digest in left and self.unfinished(name)):
                remove_tree(folder)
        return [*doomed, *left] if digest is None else [digest]


def _is_shared(path: Path) -> bool:
    """Whether a file is there and has more than one hard link."""
    try:
        return path.stat().st_nlink > 1
    except OSError:
        return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still is the one at the path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def unused(directory: Path) -> Iterator[None]:
    """Keep an image from being taken into use. Raises BuildError when desktops or snapshots of it live."""
    with contextlib.ExitStack() as held:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        held.callback(os.close, place)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for disk in directory.glob("*.qcow2"):
                # A hypervisor locks bytes of the disks that it reads; these locks and flock do not see each other.
                fcntl.lockf(held.enter_context(disk.open("r+b")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            name = f"{directory.parent.name} {directory.name}"
            raise BuildError(
                f"image {name} is used by running desktops or their snapshots; end them with `dart-farm stop`"
                " (of a farm of a service: stop the service) and run the same command again"
            ) from error
        yield


def remove_tree(directory: Path) -> None:
    """Remove a tree that may hold leftover mounts: refuse to descend into one.

    It loses its name first, so that who makes a directory of that name meanwhile gets an empty one.
    """
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    if any(line.split()[1].startswith(f"{directory}/") for line in mounts.splitlines()):
        raise BuildError(f"something is still mounted under {directory}; unmount it and build again")
    doomed = directory.with_name(f"{REMOVED_PREFIX}{directory.name}-{os.getpid()}")
    os.rename(directory, doomed)
    shutil.rmtree(doomed)
