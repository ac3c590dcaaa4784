"""Root file system → image of a container engine, and its removal.

Rule: once per image digest and engine, whoever comes first; the image carries labels with its name and digest, and is found by these. It is
shared by all farms that use the engine, so that no farm's clean-up touches it. The tar is streamed; no copy is kept on disk.
Non-goals: building root file systems (`vm_images`).
"""

from __future__ import annotations

import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dart_server.hostd.images import Image
from dart_server.providers.docker.engine import connect

REPOSITORY = "dart"
LABEL_NAME = "rl.dart.image.name"
LABEL_DIGEST = "rl.dart.image.digest"
IMPORT_TIMEOUT_S = 1800
_CHUNK_BYTES = 1 << 20
_FILE_CAPABILITY = "security.capability"


def find(client: Any, digest: str) -> str | None:
    """Id of the engine's image of this digest."""
    found = client.api.images(filters={"label": [f"{LABEL_DIGEST}={digest}"]})
    return str(found[0]["Id"]) if found else None


def ensure(client: Any, name: str, image: Image) -> str:
    """Id of the engine's image of a root file system, imported when it is not there yet."""
    known = find(client, image.digest)
    if known is not None:
        return known
    labels = [f'LABEL {key}="{value}"' for key, value in ((LABEL_NAME, name), (LABEL_DIGEST, image.digest))]
    patient = connect(IMPORT_TIMEOUT_S)
    try:
        patient.api.import_image(
            src=tar_stream(image.rootfs),
            repository=f"{REPOSITORY}/{name}",
            tag=image.digest.removeprefix("sha256:")[:12],
            changes=labels,
            stream_src=True,
        )
    finally:
        patient.close()
    made = find(client, image.digest)
    if made is None:
        raise RuntimeError(f"the engine took the image {name} and does not know it")
    return made


def remove(client: Any, name: str) -> list[str]:
    """Remove every image made of root file systems of this name; ids of those removed. Containers of theirs must be gone."""
    ids = [str(found["Id"]) for found in client.api.images(filters={"label": [f"{LABEL_NAME}={name}"]})]
    for identifier in ids:
        client.api.remove_image(identifier, force=True)
    return ids


def tar_stream(rootfs: Path) -> Iterator[bytes]:
    """The tree as a tar with owners, modes, links, devices, file capabilities and exact times. Raises OSError when it cannot be read."""
    reading, writing = os.pipe()
    failure: list[BaseException] = []

    def write() -> None:
        try:
            with (
                os.fdopen(writing, "wb") as sink,
                tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                for entry in sorted(rootfs.iterdir()):
                    tar.add(entry, arcname=entry.name, filter=lambda member: _complete(member, rootfs))
        except BaseException as error:  # noqa: BLE001 - raised in the reader's thread
            failure.append(error)

    writer = threading.Thread(target=write, name="rootfs-tar")
    writer.start()
    try:
        with os.fdopen(reading, "rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                yield chunk
    finally:
        writer.join()
    if failure:
        raise failure[0]


def _complete(member: tarfile.TarInfo, rootfs: Path) -> tarfile.TarInfo:
    """What `tarfile` leaves out: file capabilities, and the nanoseconds by which fontconfig knows that its cache is still true."""
    path = rootfs / member.name
    seconds, nanoseconds = divmod(path.lstat().st_mtime_ns, 10**9)
    member.pax_headers = {"mtime": f"{seconds}.{nanoseconds:09d}"}
    if member.isreg():
        with suppress(OSError):
            value = os.getxattr(path, _FILE_CAPABILITY, follow_symlinks=False)
            member.pax_headers[f"SCHILY.xattr.{_FILE_CAPABILITY}"] = value.decode("utf-8", "surrogateescape")
    return member
