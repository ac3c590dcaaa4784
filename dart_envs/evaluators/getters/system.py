"""Getters of a desktop's system state: trees of files with their contents, the trash, processes, settings.

Role: one coroutine per getter, and `GETTERS` of this module; all are ours. Rule: contents are told by their sha256, so that
nothing large leaves the desktop; what is larger than any answer needs is `InvalidArtifact`. Non-goals: comparing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.evidence import list_processes, list_tree, read_content, run_program
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, required_text
from dart_envs.types import Desktop
from dart_server.wire import FileFacts

TIMEOUT_S = 60.0
MAX_ENTRIES = 2000
TRASH = "/home/user/.local/share/Trash"
XFCONF_NAME = "org.xfce.Xfconf"
XFCONF_DAEMON = re.compile(r"/usr/lib/[^/]+/xfce4/xfconf/xfconfd")
TRASH_INFO = ".trashinfo"
MAX_TRASH_INFO_BYTES = 64 * 1024
KINDS = frozenset({"file", "folder", "link"})

Facts = dict[str, Any]


async def file_tree(context: GetterContext, config: GetterConfig) -> dict[str, Facts]:
    """{path}: everything below a folder by relative path: kind (file, folder, link, other), mode (octal text), and sha256 of a
    file or target of a link. Raises InvalidArtifact when it is no folder, or holds more than any answer needs.
    """
    path = required_text(config, "path")
    entries = await list_tree(context.desktop, path, max_entries=MAX_ENTRIES, digests=True)
    return {str(entry.path): _facts(entry) for entry in entries}


def _facts(entry: FileFacts) -> Facts:
    facts: Facts = {"kind": entry.kind if entry.kind in KINDS else "other", "mode": f"{entry.mode:o}"}
    if entry.kind == "link":
        facts["target"] = entry.target or ""
    return facts | ({} if entry.sha256 is None else {"sha256": entry.sha256})


async def trash(context: GetterContext, config: GetterConfig) -> dict[str, Facts]:
    """What lies in the trash, by the path it came from; facts as of `file_tree`. Without a trash there is nothing in it."""
    desktop = context.desktop
    try:
        noted = await list_tree(desktop, f"{TRASH}/info", max_entries=MAX_ENTRIES)
    except InvalidArtifact:
        return {}
    names = [str(entry.path) for entry in noted if str(entry.path).endswith(TRASH_INFO) and "/" not in str(entry.path)]
    if not names:
        return {}
    held = await file_tree(context, {"type": "file_tree", "path": f"{TRASH}/files"})
    places: dict[str, Facts] = {}
    for name in names:
        content = await read_content(desktop, f"{TRASH}/info/{name}", MAX_TRASH_INFO_BYTES)
        place = next(
            (line[5:] for line in content.decode("utf-8", "replace").splitlines() if line.startswith("Path=")), None
        )
        if place is not None and name.removesuffix(TRASH_INFO) in held:
            places[unquote(place)] = held[name.removesuffix(TRASH_INFO)]
    return places


async def processes(context: GetterContext, config: GetterConfig) -> list[str]:
    """{matching[, executable]}: command lines of all living processes in which the regular expression is found, sorted.

    With `executable` (an absolute path) only those that execute that file, as the image has it: a command line is a process's own claim.
    Stopped ones live, dead ones that nobody waited for do not.
    """
    pattern = re.compile(required_text(config, "matching"))
    executable = config.get("executable")
    seen = await list_processes(context.desktop)
    if seen is not None:
        wanted = [one for one in seen if executable is None or (one.executable == executable and one.from_image)]
        return sorted(filter(pattern.search, (" ".join(one.argv) for one in wanted if one.argv)))
    reply = await run_program(context.desktop, ["/usr/bin/ps", "-e", "-ww", "-o", "stat=,args="], timeout_s=TIMEOUT_S)
    if reply.returncode != 0:
        raise InvalidArtifact(f"the desktop's processes cannot be listed: {reply.stderr.strip()[:200]}")
    lines = (line.split(maxsplit=1) for line in reply.stdout.splitlines())
    living = (parts[1].strip() for parts in lines if len(parts) == 2 and not parts[0].startswith("Z"))
    return sorted(filter(pattern.search, living))


async def xfconf(context: GetterContext, config: GetterConfig) -> str:
    """{channel, property}: a setting of the Xfce session as text, lists one per line.

    Raises InvalidArtifact where it is not set, or where who answers for the settings on the session bus is not the image's daemon.
    """
    channel, name = required_text(config, "channel"), required_text(config, "property")
    await require_bus_owner(context.desktop, XFCONF_NAME, XFCONF_DAEMON)
    argv = ["/usr/bin/xfconf-query", "-c", channel, "-p", name]
    reply = await run_program(context.desktop, argv, timeout_s=TIMEOUT_S)
    if reply.returncode != 0:
        raise InvalidArtifact(f"{channel}{name} is not set: {reply.stderr.strip()[:200]}")
    return reply.stdout.removesuffix("\n")


async def require_bus_owner(desktop: Desktop, name: str, executable: re.Pattern[str]) -> None:
    """See that a name on the session bus belongs to an unchanged program of the image, where the host can tell. Raises InvalidArtifact."""
    seen = await list_processes(desktop, code=True)
    if seen is None:
        return
    argv = [
        "/usr/bin/dbus-send",
        "--session",
        "--print-reply=literal",
        "--dest=org.freedesktop.DBus",
        "/org/freedesktop/DBus",
    ]
    argv += ["org.freedesktop.DBus.GetConnectionUnixProcessID", f"string:{name}"]
    reply = await run_program(desktop, argv, timeout_s=TIMEOUT_S)
    words = reply.stdout.split()
    pid = int(words[-1]) if reply.returncode == 0 and words and words[-1].isdecimal() else None
    if pid is None:
        return  # nobody answers for it: the program that is asked next starts the daemon
    owner = next((one for one in seen if one.pid == pid), None)
    if owner is None or not executable.fullmatch(owner.executable) or not owner.code_from_image:
        raise InvalidArtifact(f"{name} on the session bus does not belong to the image's program")


GETTERS: Mapping[str, Getter] = {
    "file_tree": file_tree,
    "trash": trash,
    "processes": processes,
    "xfconf": xfconf,
}
