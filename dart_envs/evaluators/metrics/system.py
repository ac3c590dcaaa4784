"""Metrics of a desktop's system state: trees of files, archives, settings files.

Role: one function per metric, and `METRICS` of this module; all are ours. Rule: archives are unpacked in memory, within limits; a
broken or oversized one is `InvalidArtifact`. Non-goals: reading desktops.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.metrics.base import Metric, Options, as_text, binary_score

MAX_MEMBERS = 2000
MAX_UNPACKED_BYTES = 64 * 1024 * 1024


def tree_is(result: Any, rules: Mapping[str, Any], options: Options) -> float:
    """{entries: {path: facts}, others}: each path is there with all the facts that are given (kind, mode, sha256, target), and, unless
    `others` is true, nothing else is.
    """
    wanted: Mapping[str, Mapping[str, str]] = rules["entries"]
    fitting = all(path in result and facts.items() <= result[path].items() for path, facts in wanted.items())
    return binary_score(fitting and (bool(rules.get("others")) or set(result) == set(wanted)))


def archive_is(result: GuestFile, rules: Mapping[str, Any], options: Options) -> float:
    """{format: zip | tar.gz | tar.xz, files: {name: sha256}}: an archive of that kind with exactly these files; folders do not count."""
    held = dict(_archive_members(result.content, rules["format"]))
    return binary_score(held == dict(rules["files"]))


def _archive_members(content: bytes, form: str) -> Iterator[tuple[str, str]]:
    read = {"zip": _zip_files, "tar.gz": _tar_files, "tar.xz": _tar_files}[form]
    starts = {"zip": b"PK", "tar.gz": b"\x1f\x8b", "tar.xz": b"\xfd7zXZ"}[form]
    if not content.startswith(starts):
        raise InvalidArtifact(f"not a {form} archive")
    room = MAX_UNPACKED_BYTES
    try:
        for count, (name, size, opened) in enumerate(read(content)):
            room -= size
            if room < 0 or count >= MAX_MEMBERS:
                raise InvalidArtifact("the archive holds more than any answer needs")
            yield name.removeprefix("./"), hashlib.sha256(opened.read(size + 1)).hexdigest()
    except (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError) as error:
        raise InvalidArtifact(f"a broken {form} archive: {error}") from error
    except (NotImplementedError, RuntimeError) as error:
        raise InvalidArtifact(f"an archive that needs a password or an unknown method: {error}") from error


def _zip_files(content: bytes) -> Iterator[tuple[str, int, Any]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as opened:
                    yield info.filename, info.file_size, opened


def _tar_files(content: bytes) -> Iterator[tuple[str, int, Any]]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r|*") as archive:
        for info in archive:
            opened = archive.extractfile(info) if info.isfile() else None
            if opened is not None:
                yield info.name, info.size, opened
            elif not info.isdir():
                yield info.name, 0, io.BytesIO(info.linkname.encode())


def settings_are(result: Any, rules: Mapping[str, Any], options: Options) -> float:
    """{expected: {key: value}}: the lines `key=value` of a settings file say so, the last one of a key counts.

    Lines that begin with # or ; do not.
    """
    held: dict[str, str] = {}
    for line in as_text(result).splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            held[key.strip()] = value.strip()
    return binary_score(all(held.get(key) == value for key, value in rules["expected"].items()))


METRICS: Mapping[str, Metric] = {
    "tree_is": tree_is,
    "archive_is": archive_is,
    "settings_are": settings_are,
}
