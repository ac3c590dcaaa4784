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

from imagebuild.bootstrap import bootstrap, check_host
from imagebuild.errors import BuildError, UsageError
from imagebuild.layers import guest_version, lay_guest, lay_system, measure, share
from imagebuild.manifest import (
    Manifest,
    guest_digest,
    image_digest,
    installed_packages,
    recipe_digest,
    write_manifest,
)
from imagebuild.recipe import Recipe, read_recipe
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


def fill(recipe: Recipe, shared: Path | None, work: Path, log: Path, progress: Progress) -> Path:
    """Packages and system: those of `shared`, the root file system of an image that has the same ones, or made."""
    rootfs = work / "rootfs"
    if shared is not None:
        progress.say("taking the packages over from the last build")
        share(shared, rootfs)
        return rootfs
    progress.say(f"fetching and installing {len(recipe.packages)} packages and what they need")
    bootstrap(recipe, rootfs, log, progress.say)
    progress.say("setting up account and system files")
    lay_system(rootfs, recipe)
    return rootfs


def build(name: str, home: Path, force: bool) -> int:
    """Build an image if it does not exist yet."""
    progress = Progress(name)
    recipe = read_recipe(RECIPES / f"{name}.toml")
    of_recipe, of_guest = recipe_digest(recipe), guest_digest(GUEST)
    digest = image_digest(of_recipe, of_guest)
    store = ImageStore(home)
    if not force and store.finished(name, digest) is not None and store.current(name) == digest:
        print(f"image {name}: up to date ({digest})")
        return 0
    become_root(sys.argv[1:], home)
    with store.locked(name):
        if not force and store.finished(name, digest) is not None:
            store.point_current(name, digest)
            print(f"image {name}: up to date ({digest})")
            return 0
        shared = None if force else store.same_packages(name, of_recipe)
        if shared is None:
            check_host(store.images)
        work = store.fresh_work(name)
        try:
            rootfs = fill(recipe, shared, work, store.build_log(name), progress)
            progress.say("installing the guest agent")
            lay_guest(rootfs, GUEST)
            size, files = measure(rootfs)
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
                packages=installed_packages(rootfs / "var/lib/dpkg/status"),
            )
            write_manifest(manifest, work / "manifest.json")
            store.publish(work, name, digest)
        except BaseException:
            if work.exists():
                remove_tree(work)
            raise
        give_back(store, name)
    progress.say(f"done: {digest}, {len(manifest.packages)} packages, {size // 1024**2} MiB")
    return 0


def show(home: Path) -> int:
    """Print the images that exist."""
    store = ImageStore(home)
    for one in store.all():
        mark = "*" if store.current(one.name) == one.digest else " "
        size = f"{one.size_bytes // 1024**2} MiB"
        print(f"{mark} {one.name:12} {one.digest}  {size:>9}  {one.built_at}  agent {one.guest_version}")
    return 0


def remove(name: str, digest: str | None, home: Path) -> int:
    """Remove images."""
    become_root(sys.argv[1:], home)
    for gone in ImageStore(home).remove(name, digest):
        print(f"image {name}: removed {gone}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="build.py", description="Builds desktop images from recipes.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--home", help="where images lie (default: DART_HOME or ~/.local/share/dart)")
    verbs = top.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("build", parents=[common], help="build an image if it is not there yet")
    make.add_argument("name")
    make.add_argument("--force", action="store_true", help="build from nothing, whatever is there")
    verbs.add_parser("list", parents=[common], help="list the images")
    drop = verbs.add_parser("rm", parents=[common], help="remove an image")
    drop.add_argument("name")
    drop.add_argument("digest", nargs="?", help="only this build of it")
    return top


def main() -> int:
    """Parse, dispatch, and say in one sentence what went wrong."""
    options = parser().parse_args()
    home = dart_home(options.home, dict(os.environ))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.verb == "build":
            return build(options.name, home, options.force)
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
        print("\nstopped; nothing was left behind", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
