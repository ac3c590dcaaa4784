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
from dart_envs.evaluators.evidence import list_processes, list_tree, look, read_content, run_program
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, required_text
from dart_envs.evaluators.getters.protected import protected_processes
from dart_envs.setup.protected import PROTECTED_GID
from dart_envs.types import Desktop, SupportsEvidence
from dart_server.wire import FileFacts, StatQuery

TIMEOUT_S = 60.0
MAX_ENTRIES = 2000
MAX_SEARCHED = 20_000
HOME = "/home/user"
TRASH = f"{HOME}/.local/share/Trash"
XFCONF_NAME = "org.xfce.Xfconf"
XFCONF_DAEMON = re.compile(r"/usr/lib/[^/]+/xfce4/xfconf/xfconfd")
TRASH_INFO = ".trashinfo"
TRASH_HEADER = "[Trash Info]"
MAX_TRASH_INFO_BYTES = 64 * 1024
KINDS = frozenset({"file", "folder", "link"})

APPLIED_BY: Mapping[str, str] = {"xfwm4": "/usr/bin/xfwm4", "xfce4-desktop": "/usr/bin/xfdesktop"}
"""The program that applies the settings of a channel."""
_NO_TEXT = re.compile(r"true|false|-?[0-9]+(\.[0-9]+)?")
XFCONF_GET_ARGV = (
    *("/usr/bin/dbus-send", "--session", "--print-reply", f"--dest={XFCONF_NAME}", "/org/xfce/Xfconf"),
    f"{XFCONF_NAME}.GetProperty",
)
"""Asks for a setting with its type; channel and property follow."""
BUS = "org.freedesktop.DBus"
BUS_OWNER_ARGV = (
    *("/usr/bin/dbus-send", "--session", "--print-reply=literal", f"--dest={BUS}", "/org/freedesktop/DBus"),
    f"{BUS}.GetConnectionUnixProcessID",
)
"""Asks for the process that has a name on the session bus; the name follows."""

ACCESS_LISTS_SCRIPT = """import os, sys
for folder, folders, files in os.walk(sys.argv[1]):
    for name in folders + files:
        path = os.path.join(folder, name)
        if not os.path.islink(path) and "system.posix_acl_access" in os.listxattr(path):
            print(os.path.relpath(path, sys.argv[1]))
"""
APPLICATION_LISTS = (
    f"{HOME}/.config/xfce-mimeapps.list",
    f"{HOME}/.config/mimeapps.list",
    f"{HOME}/.local/share/applications/xfce-mimeapps.list",
    f"{HOME}/.local/share/applications/mimeapps.list",
)
"""Where the desktop looks for the user's default applications, the first one first."""
APPLICATIONS_SCRIPT = """for path in "$@"; do printf '\\0%s\\n' "$path"; cat "$path" 2>/dev/null; done
printf '\\0own\\n'; cd /home/user/.local/share/applications 2>/dev/null && find . -name '*.desktop' -printf '%P\\n'
printf '\\0system\\n'; cd /usr/share/applications && find . -name '*.desktop' -printf '%P\\n'
"""

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
    if entry.access_list:
        facts["access_list"] = True
    return facts | ({} if entry.sha256 is None else {"sha256": entry.sha256})


async def present_files(context: GetterContext, config: GetterConfig) -> list[str]:
    """{paths: [...]}: those of these paths that lead to anything but an empty file, in their order."""
    found = []
    for path in config["paths"]:
        seen = await look(context.desktop, StatQuery(path=path))
        if seen is None:
            reply = await run_program(context.desktop, ["/usr/bin/stat", "-L", "-c", "%F", path], user="root")
            present = reply.returncode == 0 and reply.stdout.strip() != "regular empty file"
        else:
            answer = seen.answers[0]
            facts = answer.facts
            present = answer.error != "not_found" and not (facts and facts.kind == "file" and facts.nbytes == 0)
        if present:
            found.append(path)
    return found


async def copies(context: GetterContext, config: GetterConfig) -> list[str]:
    """{sha256: [...], below: [folders]}: paths of the files below these folders that have one of these contents, the trash left out."""
    wanted = set(config["sha256"])
    found: list[str] = []
    for folder in config["below"]:
        entries = await list_tree(context.desktop, folder, max_entries=MAX_SEARCHED, digests=True)
        found += [f"{folder}/{entry.path}" for entry in entries if entry.sha256 in wanted]
    return sorted(path for path in found if not path.startswith(f"{TRASH}/"))


async def trash(context: GetterContext, config: GetterConfig) -> dict[str, Facts]:
    """What lies in the trash, by the path it came from; facts as of `file_tree`. Without a trash there is nothing in it.

    A file whose note a file manager could not read, and so not restore it, is not in it.
    """
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
        lines = content.decode("utf-8", "replace").split("\n")
        place = next((line[5:] for line in reversed(lines) if line.startswith("Path=")), None)
        readable = lines[:1] == [TRASH_HEADER] and any(re.match(r"DeletionDate=.*T", line) for line in lines)
        if readable and place is not None and name.removesuffix(TRASH_INFO) in held:
            places[unquote(place)] = held[name.removesuffix(TRASH_INFO)]
    return places


async def processes(context: GetterContext, config: GetterConfig) -> list[str]:
    """{matching[, executable, protected]}: command lines of all living processes in which the regular expression is found, sorted.

    With `executable` (an absolute path) only those that execute that file, as the image has it: a command line is a process's own claim.
    With `protected` only those that the task started in the protected group.
    Stopped ones live, dead ones that nobody waited for do not. Raises InvalidArtifact where one of the protected ones is stopped: it is
    not ended, and does not go on either.
    """
    pattern = re.compile(required_text(config, "matching"))
    executable = config.get("executable")
    argv = ["/usr/bin/ps", "-e", "-ww", "-o", "pid=,stat=,egid=,args="]
    group = str(PROTECTED_GID) if config.get("protected") else None
    seen = await list_processes(context.desktop)
    if seen is not None:
        wanted = [one for one in seen if executable is None or (one.executable == executable and one.from_image)]
        if group is not None:
            started = {one.pid for one in await protected_processes(context)}
            wanted = [one for one in wanted if one.pid in started]
            if any(one.state == "T" and pattern.search(" ".join(one.argv)) for one in wanted):
                raise InvalidArtifact("a program that was to go on, or to end, is stopped")
        return sorted(filter(pattern.search, (" ".join(one.argv) for one in wanted if one.argv)))
    listed = await _ask_processes(context, argv)
    living = (line for _, state, egid, line in listed if not state.startswith("Z") and group in (None, egid))
    return sorted(filter(pattern.search, living))


async def _ask_processes(context: GetterContext, argv: list[str]) -> list[list[str]]:
    """Number, state, group and command line of every process, as `ps` lists them."""
    reply = await run_program(context.desktop, argv, timeout_s=TIMEOUT_S, user="root")
    if reply.returncode != 0:
        raise InvalidArtifact(f"the desktop's processes cannot be listed: {reply.stderr.strip()[:200]}")
    lines = (line.split(maxsplit=3) for line in reply.stdout.splitlines())
    return [[*words[:3], words[3].strip()] for words in lines if len(words) == 4]


async def access_lists(context: GetterContext, config: GetterConfig) -> list[str]:
    """{path}: what below a folder has an access list, which gives rights that the permission bits do not tell."""
    if isinstance(context.desktop, SupportsEvidence):
        entries = await list_tree(context.desktop, required_text(config, "path"), max_entries=MAX_ENTRIES)
        if found := [str(entry.path) for entry in entries if entry.access_list]:
            return found
    argv = ["/usr/bin/python3", "-I", "-c", ACCESS_LISTS_SCRIPT, required_text(config, "path")]
    reply = await run_program(context.desktop, argv, timeout_s=TIMEOUT_S, user="root")
    if reply.returncode != 0:
        raise InvalidArtifact(f"{config['path']} cannot be looked at: {reply.stderr.strip()[-200:]}")
    return sorted(reply.stdout.splitlines())


async def default_application(context: GetterContext, config: GetterConfig) -> str:
    """{kind}: the desktop entry that opens a kind of file, as the user's lists say, "" where they do not.

    Raises InvalidArtifact where that entry is the user's own, or not there: its name says nothing of what would start.
    """
    kind = required_text(config, "kind")
    argv = ["/usr/bin/sh", "-c", APPLICATIONS_SCRIPT, "applications", *APPLICATION_LISTS]
    reply = await run_program(context.desktop, argv, timeout_s=TIMEOUT_S, user="root")
    *lists, own, system = (part.partition("\n")[2] for part in reply.stdout.split("\0")[1:])
    for text in lists:
        entry = _default_entry(text, kind)
        if entry and (entry in own.splitlines() or entry not in system.splitlines()):
            raise InvalidArtifact(f"{entry} is not the entry of an installed program")
        if entry:
            return entry
    return ""


def _default_entry(text: str, kind: str) -> str:
    """The first entry for a kind of file in one list, "" where there is none.

    As GLib reads it (GKeyFile): of a key that is there twice the last one counts, and a list with a line that is none says nothing.
    """
    section = found = ""
    for line in text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if line.startswith("[") and line.rstrip().endswith("]"):
            section = line.rstrip()
        elif not equals or not section or not key.strip():
            return ""
        elif section == "[Default Applications]" and key.strip() == kind:
            found = value.split(";")[0].strip()
    return found


async def xfconf(context: GetterContext, config: GetterConfig) -> str:
    """{channel, property[, protected, shadows]}: a setting of the Xfce session as text, lists one per line.

    Raises InvalidArtifact where it is not set, or a number or a switch is set as a text, which programs ignore; where who answers for the
    settings on the session bus is not the image's daemon; with `protected`, where it is not the one that the task started in the protected
    group, or the program that applies the channel's settings does not run; and where one of the paths `shadows`, with {value} for the
    setting, exists: what the user put in the place of what is named.
    """
    channel, name = required_text(config, "channel"), required_text(config, "property")
    await require_bus_owner(context.desktop, XFCONF_NAME, XFCONF_DAEMON)
    if config.get("protected"):
        await _require_protected_service(context)
        await _require_running(context.desktop, APPLIED_BY.get(channel))
    argv = ["/usr/bin/xfconf-query", "-c", channel, "-p", name]
    reply = await run_program(context.desktop, argv, timeout_s=TIMEOUT_S)
    if reply.returncode != 0:
        raise InvalidArtifact(f"{channel}{name} is not set: {reply.stderr.strip()[:200]}")
    value = reply.stdout.removesuffix("\n")
    if _NO_TEXT.fullmatch(value):
        kind = await run_program(
            context.desktop, [*XFCONF_GET_ARGV, f"string:{channel}", f"string:{name}"], timeout_s=TIMEOUT_S
        )
        if re.search(r"variant\s+string ", kind.stdout):
            raise InvalidArtifact(f"{channel}{name} is a text, which programs ignore")
    for path in config.get("shadows", ()):
        place = path.format(value=value)
        seen = await look(context.desktop, StatQuery(path=place, follow=False))
        if seen is not None and seen.answers[0].error != "not_found":
            raise InvalidArtifact(f"{place} is in the place of what the setting names")
    return value


async def _require_running(desktop: Desktop, executable: str | None) -> None:
    """Raise InvalidArtifact where a program of the session does not run, or is stopped."""
    seen = None if executable is None else await list_processes(desktop)
    if seen is not None and not any(
        one.executable == executable and one.from_image and one.state != "T" for one in seen
    ):
        raise InvalidArtifact(f"{executable}, which applies the setting, does not run")


async def require_bus_owner(desktop: Desktop, name: str, executable: re.Pattern[str]) -> None:
    """See that a name on the session bus belongs to an unchanged program of the image, where the host can tell. Raises InvalidArtifact."""
    seen = await list_processes(desktop, code=True)
    if seen is None:
        return
    pid = await _bus_owner(desktop, name)
    if pid is None:
        return  # nobody answers for it: the program that is asked next starts the daemon
    owner = next((one for one in seen if one.pid == pid), None)
    if owner is None or not executable.fullmatch(owner.executable) or not owner.code_from_image:
        raise InvalidArtifact(f"{name} on the session bus does not belong to the image's program")


async def _bus_owner(desktop: Desktop, name: str) -> int | None:
    """The process that has a name on the session bus, None where none has."""
    reply = await run_program(desktop, [*BUS_OWNER_ARGV, f"string:{name}"], timeout_s=TIMEOUT_S)
    words = reply.stdout.split()
    return int(words[-1]) if reply.returncode == 0 and words and words[-1].isdecimal() else None


async def _require_protected_service(context: GetterContext) -> None:
    owner = await _bus_owner(context.desktop, XFCONF_NAME)
    services = {one.pid for one in await protected_processes(context) if XFCONF_DAEMON.fullmatch(one.executable)}
    if owner not in services:
        raise InvalidArtifact("the settings are told by another program than the service that the task started")


GETTERS: Mapping[str, Getter] = {
    "file_tree": file_tree,
    "copies": copies,
    "present_files": present_files,
    "trash": trash,
    "processes": processes,
    "access_lists": access_lists,
    "default_application": default_application,
    "xfconf": xfconf,
}
