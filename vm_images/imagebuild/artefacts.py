"""Other forms of a finished image: a tar for `docker import`, a disk with kernel and initrd for virtual machines.

Role: make them from the image's own root file system, beside its manifest, and record size and sha256 there.
Rule: an artefact appears by rename; one that is recorded and there is not made again. The root file system is read only.
Non-goals: loading them anywhere; booting them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from imagebuild.bootstrap import CLEAN_PATH, POLICY, Say, Teller, inside, run_logged
from imagebuild.errors import BuildError, UsageError
from imagebuild.manifest import Manifest, write_manifest
from imagebuild.store import remove_tree

KINDS = ("rootfs", "docker", "qcow2")
INIT = "/usr/sbin/dart-init"
KERNELS = {"amd64": "linux-image-cloud-amd64", "arm64": "linux-image-cloud-arm64"}
DISK_SLACK_BYTES = 1 * 1024**3
"""Room for the file system's own tables while it is written; it is shrunk afterwards."""

INODE_BYTES = "8192"
"""One inode for so many bytes: the images have many small files."""

ROOM_KIB = 16 * 1024
"""What a machine can write before it has grown its disk."""

CHUNK_BYTES = 4 * 1024**2


def check_tools(kind: str) -> None:
    """Raises UsageError with the fix when a program is missing."""
    needed = {"docker": {"tar": "tar"}, "qcow2": {"mke2fs": "e2fsprogs", "qemu-img": "qemu-utils"}}
    packages = [package for tool, package in needed[kind].items() if shutil.which(tool, path=CLEAN_PATH) is None]
    if packages:
        raise UsageError(
            f"a {kind} artefact needs {' and '.join(packages)}: run 'apt-get install -y {' '.join(packages)}'"
        )


def make(kind: str, manifest: Manifest, place: Path, log: Path, say: Say) -> Manifest:
    """Make one artefact of the image in the directory `place`; returns the manifest that records it."""
    makers: dict[str, Callable[[], dict[str, Path]]] = {
        "docker": lambda: docker(manifest, place),
        "qcow2": lambda: disk(manifest, place, log, say),
    }
    if all(
        name in manifest.artefacts and (place / str(manifest.artefacts[name]["file"])).is_file() for name in (kind,)
    ):
        say(f"the {kind} artefact is up to date")
        return manifest
    say(f"making the {kind} artefact")
    made = {name: record(path) for name, path in makers[kind]().items()}
    told = dataclasses.replace(manifest, artefacts=manifest.artefacts | made)
    write_manifest(told, place / "manifest.json")
    for name, facts in made.items():
        say(f"{name}: {place / str(facts['file'])}, {int(facts['bytes']) // 1024**2} MiB")
    return told


def record(path: Path) -> dict[str, str | int]:
    """What the manifest tells of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            total.update(chunk)
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": total.hexdigest()}


def command(argv: list[str]) -> str:
    """Run a program of the host; returns what it says, raises BuildError with its last words."""
    ended = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={"PATH": CLEAN_PATH, "LC_ALL": "C.UTF-8"}
    )
    if ended.returncode != 0:
        raise BuildError(f"{argv[0]} failed: {ended.stderr.strip()[-400:]}")
    return ended.stdout


def docker(manifest: Manifest, place: Path) -> dict[str, Path]:
    """`docker.tar` for `docker import`, and `docker.json`: the tag and the changes to import it with."""
    fresh, target = place / ".docker.tar", place / "docker.tar"
    command(
        [
            "tar",
            "--numeric-owner",
            "--xattrs",
            "--one-file-system",
            f"--directory={place / 'rootfs'}",
            "-cf",
            str(fresh),
            ".",
        ]
    )
    os.replace(fresh, target)
    facts = place / "docker.json"
    tag = f"dart/{manifest.name}:{manifest.digest}"
    changes = [f'ENTRYPOINT ["{INIT}"]', f"LABEL dart.image={manifest.name}", f"LABEL dart.digest={manifest.digest}"]
    argv = ["docker", "import", *(word for change in changes for word in ("--change", change)), target.name, tag]
    facts.write_text(json.dumps({"tag": tag, "changes": changes, "import": argv}, indent=1) + "\n", encoding="utf-8")
    return {"docker": target, "docker_metadata": facts}


def disk(manifest: Manifest, place: Path, log: Path, say: Say) -> dict[str, Path]:
    """`disk.qcow2` with the root file system on ext4 (label `dart`), and `vmlinuz` and `initrd.img` to start it with."""
    if manifest.architecture not in KERNELS:
        raise UsageError(f"there is no kernel package known for {manifest.architecture}")
    work = place / ".disk"
    if work.exists():
        remove_tree(work)
    work.mkdir()
    try:
        rootfs = work / "rootfs"
        command(["cp", "-al", str(place / "rootfs"), str(rootfs)])
        add_kernel(rootfs, KERNELS[manifest.architecture], log, say)
        found: dict[str, Path] = {}
        for name, pattern, file in (("kernel", "vmlinuz-*", "vmlinuz"), ("initrd", "initrd.img-*", "initrd.img")):
            newest = max((rootfs / "boot").glob(pattern))
            shutil.copyfile(newest, place / file)
            found[name] = place / file
        say("writing the disk")
        raw = work / "disk.raw"
        write_ext4(rootfs, raw, manifest.size_bytes)
        command(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(work / "disk.qcow2")])
        os.replace(work / "disk.qcow2", place / "disk.qcow2")
    finally:
        remove_tree(work)
    return {"qcow2": place / "disk.qcow2", **found}


def write_ext4(rootfs: Path, raw: Path, size_bytes: int) -> None:
    """An ext4 that is full but for `ROOM_KIB`: a machine's own disk decides how far it grows. The first tells the size of the second."""
    size_kib = (size_bytes * 5 // 4 + DISK_SLACK_BYTES) // 1024
    for _ in range(2):
        raw.unlink(missing_ok=True)
        ext4 = ["mke2fs", "-q", "-t", "ext4", "-L", "dart", "-m", "0", "-i", INODE_BYTES, "-d", str(rootfs), str(raw)]
        command([*ext4, f"{size_kib}k"])
        told = command(["dumpe2fs", "-h", str(raw)])
        facts = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
        used_kib = (int(facts["Block count"]) - int(facts["Free blocks"])) * int(facts["Block size"]) // 1024
        size_kib = used_kib + ROOM_KIB


def add_kernel(rootfs: Path, package: str, log: Path, say: Say) -> None:
    """Install a kernel and its initrd in a root file system that shares its files with the image."""
    policy, resolver = rootfs / "usr/sbin/policy-rc.d", rootfs / "etc/resolv.conf"
    for path, text in ((policy, POLICY), (resolver, Path("/etc/resolv.conf").read_text(encoding="utf-8"))):
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
    policy.chmod(0o755)
    apt = ["apt-get", "-q", "-y", "--no-install-recommends"]
    for step in ([*apt, "update"], [*apt, "install", package, "initramfs-tools", "e2fsprogs", "kmod"], [*apt, "clean"]):
        run_logged(inside(rootfs, step), log, Teller(say))
    resolver.unlink()
