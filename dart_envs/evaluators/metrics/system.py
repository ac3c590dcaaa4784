"""Metrics of a desktop's system state: trees of files, archives, settings files.

Role: one function per metric, and `METRICS` of this module; all are ours. Rule: archives are unpacked in memory, within limits; a
broken or oversized one is `InvalidArtifact`. Non-goals: reading desktops.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import shlex
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.metrics.base import (
    FileResult,
    FilesResult,
    Metric,
    Options,
    TextResult,
    TreeResult,
    as_text,
    binary_score,
)

MAX_MEMBERS = 2000
MAX_UNPACKED_BYTES = 64 * 1024 * 1024


def tree_is(result: TreeResult, rules: Mapping[str, Any], options: Options) -> float:
    """{entries: {path: facts}, others}: each path is there with all the facts that are given (kind, mode, sha256, target), and, unless
    `others` is true, nothing else is. Where a mode is given, no access list must say more.
    """
    wanted: Mapping[str, Mapping[str, str]] = rules["entries"]
    fitting = all(
        path in result
        and facts.items() <= result[path].items()
        and not ("mode" in facts and result[path].get("access_list"))
        for path, facts in wanted.items()
    )
    return binary_score(fitting and (bool(rules.get("others")) or set(result) == set(wanted)))


def archive_is(result: FileResult, rules: Mapping[str, Any], options: Options) -> float:
    """{format: zip | tar.gz | tar.xz, files: {name: sha256}}: an archive of that kind with exactly these files; folders do not count."""
    members = list(_archive_members(result.content, rules["format"]))
    held = dict(members)
    if len(held) != len(members):
        raise InvalidArtifact("the archive holds a file twice")
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
            if stat.S_ISLNK(info.external_attr >> 16):
                raise InvalidArtifact(f"the archive has a link, {info.filename!r}")
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
                raise InvalidArtifact(f"the archive has a link or a device, {info.name!r}")


def settings_are(result: TextResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expected: {key: value}}: the lines `key=value` of a settings file say so, the last one of a key counts.

    Lines that begin with # or ; do not, nor those with white space before the key or after it.
    """
    held: dict[str, str] = {}
    for line in as_text(result).split("\n"):
        key, equals, value = line.partition("=")
        if equals and key == key.strip() and not key.startswith(("#", ";")):
            held[key] = value.strip()
    return binary_score(all(held.get(key) == value for key, value in rules["expected"].items()))


def unchanged_since(result: TreeResult, rules: Any, options: Options) -> float:
    """`file_tree` of a folder, and a file that sha256sum(1) wrote there before: every file that was noted still has its content."""
    noted = [line.partition("  ") for line in as_text(rules).split("\n") if line]
    return binary_score(bool(noted) and all(result.get(name, {}).get("sha256") == digest for digest, _, name in noted))


_OPENING, _CLOSING = (
    re.compile(r"^\s*(if|case|for|while|until|function)\b|\{\s*$"),
    re.compile(r"^\s*(fi|esac|done|\})"),
)


def alias_is(result: FilesResult, rules: Mapping[str, Any], options: Options) -> float:
    """{name, command}: [start-up file, the one that it was at first]: the lines that were added define this alias, outside every block.

    Other lines than aliases and comments must not have been added, and none taken away: what they would do only a shell can tell.
    """
    text, original = (as_text(one) for one in result)
    left = original.split("\n")
    held: dict[str, str] = {}
    depth = 0
    for line in text.split("\n"):
        if left and line == left[0]:
            left.pop(0)
            depth += bool(_OPENING.search(line)) - bool(_CLOSING.search(line))
        elif line.strip() and not line.lstrip().startswith("#"):
            held |= _aliases(line, outside=depth == 0)
    return binary_score(not left and held.get(rules["name"]) == rules["command"])


def _aliases(line: str, *, outside: bool) -> dict[str, str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise InvalidArtifact(f"the line {line[:80]!r} cannot be read: {error}") from error
    defined = [word.partition("=") for word in words[1:]]
    plain = re.fullmatch(r"[\w\s'\"=.,:/@%+~-]*", line.partition("#")[0])
    if not (outside and plain and words[0] == "alias" and all(equals and name for name, equals, _ in defined)):
        raise InvalidArtifact(f"the line {line[:80]!r} is no alias by itself")
    return {name: command for name, _, command in defined}


METRICS: Mapping[str, Metric] = {
    "alias_is": alias_is,
    "tree_is": tree_is,
    "archive_is": archive_is,
    "settings_are": settings_are,
    "unchanged_since": unchanged_since,
}
