"""Images from elsewhere: a root file system (directory or tar), or a virtual machine's disk.

Role: bring one into the store with a manifest that says what it is.
Rule: what is added is copied, never changed in its place; the digest is that of the file or of the copied tree's listing.
A root file system gets our guest agent; a disk is recorded as it is, for the provider `libvirt`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path

from imagebuild.artefacts import command, record
from imagebuild.errors import UsageError

QCOW2_MAGIC = b"QFI\xfb"
NEEDED = ("usr/bin/python3", "etc/passwd")


def kind_of(path: Path) -> str:
    """`directory`, `tar` or `qcow2`; raises UsageError for anything else."""
    if path.is_dir():
        return "directory"
    if not path.is_file():
        raise UsageError(f"there is no {path}: give a root file system (directory or tar) or a qcow2")
    with path.open("rb") as file:
        if file.read(len(QCOW2_MAGIC)) == QCOW2_MAGIC:
            return "qcow2"
    if tarfile.is_tarfile(path):
        return "tar"
    raise UsageError(f"{path} is neither a directory nor a tar nor a qcow2")


def check_rootfs(rootfs: Path) -> None:
    """Raises UsageError when the guest agent could not run there."""
    missing = [name for name in NEEDED if not os.path.lexists(rootfs / name)]
    if missing:
        raise UsageError(
            f"this is no root file system that a desktop can run on: it has no /{' and no /'.join(missing)}"
        )
    if not any(line.startswith("user:") for line in (rootfs / "etc/passwd").read_text(encoding="utf-8").splitlines()):
        raise UsageError(
            "its /etc/passwd has no account 'user', to which the desktop would belong; add one with uid 1000"
        )


def bring(path: Path, kind: str, work: Path) -> tuple[str, dict[str, dict[str, str | int]]]:
    """Copy into `work`; returns the digest of what came, 64 hex digits, and the artefacts to record."""
    if kind == "qcow2":
        target = work / "disk.qcow2"
        shutil.copyfile(path, target)
        facts = record(target)
        return str(facts["sha256"]), {"qcow2": facts}
    rootfs = work / "rootfs"
    if kind == "tar":
        rootfs.mkdir()
        command(["tar", "--numeric-owner", "--xattrs", f"--directory={rootfs}", "-xpf", str(path)])
    else:
        command(["cp", "-a", "--reflink=auto", str(path), str(rootfs)])
    check_rootfs(rootfs)
    return listing_digest(rootfs), {}


def listing_digest(rootfs: Path) -> str:
    """64 hex digits over every name with its type, mode, owner, size and link target."""
    total = hashlib.sha256()
    for directory, folders, names in os.walk(rootfs):
        folders.sort()
        for name in sorted((*folders, *names)):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            link = os.readlink(path) if os.path.islink(path) else ""
            size = 0 if os.path.isdir(path) else status.st_size
            facts = (
                os.path.relpath(path, rootfs),
                status.st_mode,
                status.st_uid,
                status.st_gid,
                size,
                int(status.st_mtime),
                link,
            )
            total.update(f"{facts!r}\n".encode())
    return total.hexdigest()
