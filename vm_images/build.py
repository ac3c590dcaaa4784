"""Builds desktop images from recipes: `python vm_images/build.py build basic`.

Role: the command line around `imagebuild`.
Rule: the same recipe and the same guest files are built once; exit code 2 means that nothing was started.
Non-goals: running desktops; converting an image to other formats.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from imagebuild import artefacts, foreign
from imagebuild.bootstrap import DONE, bootstrap, check_compiler, check_host
from imagebuild.errors import BuildError, UsageError
from imagebuild.layers import guest_version, lay_guest, lay_system, measure, share
from imagebuild.manifest import (
    Manifest,
    guest_digest,
    image_digest,
    installed_packages,
    package_digests,
    packages_digest,
    recipe_digest,
    write_manifest,
)
from imagebuild.recipe import NAME, Recipe, read_recipe
from imagebuild.store import ImageStore, dart_home, remove_tree

HERE = Path(__file__).resolve().parent
RECIPES = HERE / "recipes"
GUEST = HERE / "guest"


class Progress:
    """Tells what is done, with the seconds since the start."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.start_s = time.monotonic()

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.start_s

    def say(self, text: str) -> None:
        """One line."""
        print(f"image {self.name}: [{self.seconds():5.1f} s] {text}", flush=True)


def become_root(arguments: list[str], home: Path) -> None:
    """Start again under sudo when not root; returns when root already."""
    if os.geteuid() == 0:
        return
    if shutil.which("sudo") is None:
        raise UsageError("building an image needs root: run this as root, or install sudo")
    again = [sys.executable, str(HERE / "build.py"), *arguments, "--home", str(home)]
    keep = "--preserve-env=http_proxy,https_proxy,no_proxy"
    os.execvp("sudo", ["sudo", keep, *again])


def give_back(store: ImageStore, name: str) -> None:
    """Under sudo, leave the directories (not the root file systems) to the caller."""
    uid, gid = int(os.environ.get("SUDO_UID", "0")), int(os.environ.get("SUDO_GID", "0"))
    if uid:
        for path in (store.images.parent, store.images, store.images / name):
            os.chown(path, uid, gid)


def architecture() -> str:
    """Debian's name of this machine's architecture."""
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def fill(recipe: Recipe, files: Path, shared: Path | None, work: Path, store: ImageStore, progress: Progress) -> Path:
    """Packages and system: those of `shared`, the root file system of an image that has the same ones, or made."""
    rootfs = work / "rootfs"
    if shared is not None:
        progress.say("taking packages and system over from the last build")
        share(shared, rootfs)
        return rootfs
    progress.say(f"fetching and installing {len(recipe.packages)} packages and what they need")
    layer = store.packages_layer(recipe.name, packages_digest(recipe))
    share(bootstrap(recipe, layer, store.build_log(recipe.name), progress.say), rootfs)
    progress.say("setting up account, system files and profiles")
    lay_system(rootfs, recipe, files, progress.say)
    return rootfs


def recipe_file(given: str) -> Path:
    """The recipe of a name, or at a path that ends with .toml; its files are in the folder beside it that is called like it.

    Raises UsageError for what is neither, and for a recipe elsewhere that is called like one of ours: the two would take turns.
    """
    if NAME.fullmatch(given) and not given.endswith(".toml"):
        return RECIPES / f"{given}.toml"
    file = Path(given).absolute()
    if file.suffix != ".toml":
        raise UsageError(f"{given!r} is neither the name of a recipe nor the path of one (FOLDER/NAME.toml)")
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    if file.parent != RECIPES and (RECIPES / file.name).exists():
        raise UsageError(f"{file}: there is a recipe {file.stem!r} already; call this one otherwise")
    return file


def build(file: Path, home: Path, force: bool) -> int:
    """Build the image of a recipe if it does not exist yet."""
    name, laid = file.stem, file.with_suffix("")
    progress = Progress(name)
    recipe = read_recipe(file)
    of_recipe, of_guest = recipe_digest(recipe, laid), guest_digest(GUEST)
    digest = image_digest(of_recipe, of_guest)
    store = ImageStore(home)
    if not force and store.finished(name, digest) is not None and store.current(name) == digest:
        print(f"image {name}: up to date ({digest})")
        return 0
    check_compiler()
    become_root(sys.argv[1:], home)
    with store.locked(name):
        if not force and store.finished(name, digest) is not None:
            store.point_current(name, digest)
            print(f"image {name}: up to date ({digest})")
            return 0
        shared = None if force else store.same_packages(name, of_recipe)
        if shared is None:
            layer = store.packages_layer(name, packages_digest(recipe))
            if force and layer.exists():
                remove_tree(layer)
            if not (layer / DONE).exists():
                check_host(store.images)
        work = store.fresh_work(name)
        try:
            rootfs = fill(recipe, laid, shared, work, store, progress)
            progress.say("installing the guest agent")
            lay_guest(rootfs, GUEST)
            size, files = measure(rootfs)
            installed = installed_packages(rootfs / "var/lib/dpkg/status")
            lists = store.packages_layer(name, packages_digest(recipe)) / "rootfs" / "var/lib/apt/lists"
            manifest = Manifest(
                name=name,
                digest=digest,
                recipe_digest=of_recipe,
                guest_digest=of_guest,
                guest_version=guest_version(GUEST),
                suite=recipe.suite,
                architecture=architecture(),
                size_bytes=size,
                files=files,
                built_at=datetime.now(UTC).isoformat(timespec="seconds"),
                build_s=round(progress.seconds(), 1),
                packages={name: version for name, (version, _) in installed.items()},
                package_bytes={name: size for name, (_, size) in installed.items()},
                package_sha256=package_digests(lists, installed),
                applications=list(recipe.applications),
            )
            write_manifest(manifest, work / "manifest.json")
            store.publish(work, name, digest)
        except BaseException:  # interrupted, too, no half an image may stay; raised again
            if work.exists():
                remove_tree(work)
            raise
        give_back(store, name)
    progress.say(f"done: {digest}, {len(manifest.packages)} packages, {size // 1024**2} MiB")
    return 0


def make_artefact(name: str, kind: str, home: Path) -> int:
    """Make another form of the current build of an image."""
    store = ImageStore(home)
    digest = store.current(name)
    manifest = store.finished(name, digest) if digest else None
    if manifest is None:
        raise UsageError(f"there is no image {name}; build it first")
    progress = Progress(name)
    with store.locked(name):
        artefacts.make(kind, manifest, store.directory(name, manifest.digest), store.build_log(name), progress.say)
    return 0


def add(name: str, path: Path, home: Path) -> int:
    """Install an image from elsewhere."""
    if not NAME.fullmatch(name) or (RECIPES / f"{name}.toml").exists():
        raise UsageError(f"an added image needs a name of its own, like {NAME.pattern}, and {name!r} is none")
    kind = foreign.kind_of(path)
    if kind == "qcow2":
        foreign.check_disk(path)
    if kind == "directory":
        foreign.check_rootfs(path)
    if kind != "qcow2":
        check_compiler()
    store = ImageStore(home)
    if kind != "qcow2" or not store.writable(name):
        become_root(sys.argv[1:], home)
    progress = Progress(name)
    with store.locked(name):
        work = store.fresh_work(name)
        try:
            progress.say(f"copying the {kind} {path}")
            of_content, made = foreign.bring(path, kind, work)
            rootfs = work / "rootfs"
            if rootfs.is_dir():
                progress.say("installing the guest agent")
                lay_guest(rootfs, GUEST)
                foreign.check_agent(rootfs)
            status = rootfs / "var/lib/dpkg/status"
            installed = installed_packages(status) if status.is_file() else {}
            size, files = measure(work)
            manifest = Manifest(
                name=name,
                digest=image_digest(of_content, guest_digest(GUEST)),
                recipe_digest=of_content,
                guest_digest=guest_digest(GUEST) if rootfs.is_dir() else "",
                guest_version=guest_version(GUEST) if rootfs.is_dir() else "none",
                suite="added",
                architecture=architecture(),
                size_bytes=size,
                files=files,
                built_at=datetime.now(UTC).isoformat(timespec="seconds"),
                build_s=round(progress.seconds(), 1),
                packages={name: version for name, (version, _) in installed.items()},
                package_bytes={name: size for name, (_, size) in installed.items()},
                artefacts=made,
            )
            write_manifest(manifest, work / "manifest.json")
            store.publish(work, name, manifest.digest)
        except BaseException:  # interrupted, too, no half an image may stay; raised again
            if work.exists():
                remove_tree(work)
            raise
        give_back(store, name)
    progress.say(f"done: {manifest.digest}, {size // 1024**2} MiB")
    return 0


def show(home: Path) -> int:
    """Print the images that exist, and what unfinished builds left."""
    store = ImageStore(home)
    for one in store.all():
        mark = "*" if store.current(one.name) == one.digest else " "
        size = f"{one.size_bytes // 1024**2} MiB"
        print(f"{mark} {one.name:12} {one.digest}  {size:>9}  {one.built_at}  agent {one.guest_version}")
    for folder in sorted(store.images.glob("*")):
        for left in store.unfinished(folder.name):
            print(f"  {folder.name:12} {left}  unfinished")
    return 0


def remove(name: str, digest: str | None, home: Path) -> int:
    """Remove images."""
    if ImageStore(home).current(name) is None and not (home / "images" / name).is_dir():
        raise UsageError(f"there is no image {name}")
    become_root(sys.argv[1:], home)
    for gone in ImageStore(home).remove(name, digest) or ["its folder"]:
        print(f"image {name}: removed {gone}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="build.py", description="Builds desktop images from recipes.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--home", help="where images lie (default: DART_HOME or ~/.local/share/dart)")
    verbs = top.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("build", parents=[common], help="build an image if it is not there yet")
    make.add_argument("name", help="a recipe of this folder, or the path of another one (FOLDER/NAME.toml)")
    make.add_argument("--artefact", choices=artefacts.KINDS, default="rootfs", help="the form that is wanted")
    make.add_argument("--force", action="store_true", help="build from nothing, whatever is there")
    bring = verbs.add_parser("add", parents=[common], help="install an image from elsewhere")
    bring.add_argument("name")
    bring.add_argument("path", type=Path, help="root file system (directory or tar) or qcow2")
    verbs.add_parser("list", parents=[common], help="list the images")
    drop = verbs.add_parser("rm", parents=[common], help="remove an image")
    drop.add_argument("name")
    drop.add_argument("digest", nargs="?", help="only this build of it, finished or not")
    return top


def main() -> int:
    """Parse, dispatch, and say in one sentence what went wrong."""
    options = parser().parse_args()
    home = dart_home(options.home, dict(os.environ))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.verb == "build":
            if options.artefact != "rootfs":
                artefacts.check_tools(options.artefact)
                become_root(sys.argv[1:], home)
            file = recipe_file(options.name)
            code = build(file, home, options.force)
            return code if options.artefact == "rootfs" else make_artefact(file.stem, options.artefact, home)
        if options.verb == "add":
            return add(options.name, options.path, home)
        if options.verb == "list":
            return show(home)
        return remove(options.name, options.digest, home)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the output has enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("\nstopped; the next build goes on from what was finished", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
