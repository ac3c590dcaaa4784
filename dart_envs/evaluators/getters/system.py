"""Getters of a desktop's system state: trees of files with their contents, the trash, processes, settings.

Role: one coroutine per getter, and `GETTERS` of this module; all are ours. Rule: contents are told by their sha256, so that
nothing large leaves the desktop; what is larger than any answer needs is `InvalidArtifact`. Non-goals: comparing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, required_text

TIMEOUT_S = 60.0
MAX_ENTRIES = 2000
TRASH = "/home/user/.local/share/Trash"
KINDS = {"f": "file", "d": "folder", "l": "link"}

SUMS_SCRIPT = 'cd "$1" && find . -type f -size -32769k -exec sha256sum -z {} +'
"""sha256 of every file of at most 32 MiB below `$1`."""

Facts = dict[str, Any]


async def file_tree(context: GetterContext, config: GetterConfig) -> dict[str, Facts]:
    """{path}: everything below a folder by relative path: kind (file, folder, link, other), mode (octal text), and sha256 of a
    file or target of a link. Raises InvalidArtifact when it is no folder, or holds more than any answer needs.
    """
    path = required_text(config, "path")
    argv = ["find", path, "-mindepth", "1", "-printf", r"%y\t%m\t%l\t%P\0"]
    listed = await context.desktop.exec(argv, timeout_s=TIMEOUT_S, user="root")
    if listed.returncode != 0:
        raise InvalidArtifact(f"{path} cannot be listed: {listed.stderr.strip()[:200]}")
    entries: dict[str, Facts] = {}
    for line in filter(None, listed.stdout.split("\0")):
        kind, mode, target, name = line.split("\t", 3)
        entries[name] = {"kind": KINDS.get(kind, "other"), "mode": mode} | ({"target": target} if kind == "l" else {})
    if len(entries) > MAX_ENTRIES:
        raise InvalidArtifact(f"{path} has {len(entries)} entries, more than any answer needs")
    sums = await context.desktop.exec(["/bin/sh", "-c", SUMS_SCRIPT, "sums", path], timeout_s=TIMEOUT_S, user="root")
    for line in filter(None, sums.stdout.split("\0")):
        digest, _, name = line.partition("  ")
        entries.get(name.removeprefix("./"), {})["sha256"] = digest
    return entries


async def trash(context: GetterContext, config: GetterConfig) -> dict[str, Facts]:
    """What lies in the trash, by the path it came from; facts as of `file_tree`. Without a trash there is nothing in it."""
    script = 'cd "$1/info" 2>/dev/null || exit 0; for name in *.trashinfo; do grep -H -m1 ^Path= -- "$name"; done; true'
    noted = await context.desktop.exec(["/bin/sh", "-c", script, "trash", TRASH], timeout_s=TIMEOUT_S, user="root")
    if not noted.stdout.strip():
        return {}
    held = await file_tree(context, {"type": "file_tree", "path": f"{TRASH}/files"})
    places = (line.split(".trashinfo:Path=", 1) for line in noted.stdout.splitlines() if ".trashinfo:Path=" in line)
    return {unquote(place): held[name] for name, place in places if name in held}


async def processes(context: GetterContext, config: GetterConfig) -> list[str]:
    """{matching}: command lines of all living processes in which the regular expression is found, sorted.

    Stopped ones live, dead ones that nobody waited for do not.
    """
    pattern = re.compile(required_text(config, "matching"))
    reply = await context.desktop.exec(["ps", "-e", "-ww", "-o", "stat=,args="], timeout_s=TIMEOUT_S)
    if reply.returncode != 0:
        raise EvaluatorError(f"The desktop's processes cannot be listed: {reply.stderr.strip()[:200]}")
    lines = (line.split(maxsplit=1) for line in reply.stdout.splitlines())
    living = (parts[1].strip() for parts in lines if len(parts) == 2 and not parts[0].startswith("Z"))
    return sorted(filter(pattern.search, living))


async def xfconf(context: GetterContext, config: GetterConfig) -> str:
    """{channel, property}: a setting of the Xfce session as text, lists one per line. Raises InvalidArtifact where it is not set."""
    argv = ["xfconf-query", "-c", required_text(config, "channel"), "-p", required_text(config, "property")]
    reply = await context.desktop.exec(argv, timeout_s=TIMEOUT_S)
    if reply.returncode != 0:
        raise InvalidArtifact(f"{argv[2]}{argv[4]} is not set: {reply.stderr.strip()[:200]}")
    return reply.stdout.removesuffix("\n")


GETTERS: Mapping[str, Getter] = {
    "file_tree": file_tree,
    "trash": trash,
    "processes": processes,
    "xfconf": xfconf,
}
