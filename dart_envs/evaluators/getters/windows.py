"""Getters of windows, with a second witness beside what the window says of itself.

Role: one coroutine per getter, and `GETTERS` of this module; `vm_window_size` is OSWorld's, the others are ours. Rule: any program may give
any window any title and class. With `executable` a window counts only if the X server says that its connection belongs to a process which,
by the host's evidence, executes that file with no code but the image's. Non-goals: what is inside a window.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_envs.evaluators.artifacts import InvalidArtifact, load_json
from dart_envs.evaluators.evidence import list_processes, list_tree, look, require, run_program
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, required_text
from dart_envs.evaluators.getters.protected import protected_processes
from dart_envs.setup import windows
from dart_envs.types import Desktop
from dart_server.wire import ProcessesQuery, ProcessFacts, TreeQuery

PYTHON = "/usr/bin/python3"
MAX_FOLDERS = 2000

OWNERS_SCRIPT = """
import json
from Xlib import X, display
from Xlib.error import XError
from Xlib.ext import res
shown = display.Display(":0")
root = shown.screen().root
def value(window, name):
    held = window.get_full_property(shown.intern_atom(name), X.AnyPropertyType)
    return held.value if held is not None else None
found = []
for number in value(root, "_NET_CLIENT_LIST") or ():
    window = shown.create_resource_object("window", number)
    try:
        title = value(window, "_NET_WM_NAME") or value(window, "WM_NAME") or b""
        names = window.get_wm_class() or ("", "")
        asked = shown.res_query_client_ids([{"client": number, "mask": res.LocalClientPIDMask}])
    except XError:  # the window was closed meanwhile
        continue
    pids = [pid for answer in asked.ids for pid in answer.value]
    text = title.decode("utf-8", "replace") if isinstance(title, bytes) else str(title)
    found.append([text, ".".join(names), pids[0] if len(pids) == 1 else 0])
print(json.dumps(found))
"""
"""[title, class, process id] of every window: the id is what the X server knows of the connection, not what the window claims."""

WATCHED_SCRIPT = """
for process in /proc/[0-9]*; do
  [ "$(/usr/bin/readlink "$process/exe")" = "$1" ] || continue
  for entry in "$process"/fdinfo/*; do
    while read -r kind _ inode device _; do
      [ "$kind" = inotify ] && echo "${inode#ino:}"
    done <"$entry" 2>/dev/null
  done
done
exit 0
"""
"""Inodes, in hexadecimal, that processes of the program `$1` watch."""
INODES = ["-mindepth", "1", "-maxdepth", "1", "-type", "d", "-printf", "%i %P\\0"]


def genuine(process: ProcessFacts, executable: str) -> bool:
    """Whether a process is that program of the image, with nobody else's code in it."""
    return process.executable == executable and process.from_image and process.code_from_image is True


async def window_titles(context: GetterContext, config: GetterConfig) -> list[str]:
    """{[by_class, executable]}: titles of all windows, oldest first; of those whose WM_CLASS contains `by_class`.

    With `executable` (an absolute path) only of those that this program of the image has opened, where the host can tell.
    """
    wanted = str(config.get("by_class", "")).lower()
    executable = config.get("executable")
    seen = None if executable is None else await list_processes(context.desktop, code=True)
    if executable is None or seen is None:
        return [w.title for w in await windows.list_windows(context.desktop) if wanted in w.wm_class.lower()]
    owners = {process.pid for process in seen if genuine(process, executable)}
    listed = await _list_owned(context.desktop)
    return [title for title, wm_class, pid in listed if wanted in wm_class.lower() and pid in owners]


async def _list_owned(desktop: Desktop) -> list[tuple[str, str, int]]:
    """(title, class, process id of its connection) of every window. Raises InvalidArtifact when the X server does not say."""
    reply = await run_program(desktop, [PYTHON, "-I", "-c", OWNERS_SCRIPT], user="root")
    try:
        return [(str(title), str(wm_class), int(pid)) for title, wm_class, pid in load_json(reply.stdout)]
    except (ValueError, TypeError) as error:
        raise InvalidArtifact(f"the windows cannot be listed: {reply.stderr.strip()[-200:]}") from error


async def watched_folders(context: GetterContext, config: GetterConfig) -> list[str]:
    """{path, executable[, protected]}: names of the folders directly inside `path` that a program wants to be told changes of, sorted;
    with `protected` the one that the task started.

    A file manager watches the folder that it shows, and no other one beside or above it.
    """
    path, executable = required_text(config, "path"), required_text(config, "executable")
    seen = await look(
        context.desktop, TreeQuery(path=path, max_entries=MAX_FOLDERS, max_depth=8), ProcessesQuery(code=True)
    )
    if seen is None:
        return await _ask_watched(context.desktop, path, executable)
    if seen.answers[0].error is not None:
        raise InvalidArtifact(f"{path} cannot be listed: {seen.answers[0].error}")
    running = require(seen.answers[1], "the list of processes").processes or []
    if config.get("protected"):
        started = {process.pid for process in await protected_processes(context, executable)}
        running = [process for process in running if process.pid in started]
    watched = {identity for process in running if genuine(process, executable) for identity in process.watched}
    entries = seen.answers[0].entries or []
    return [
        str(one.path)
        for one in entries
        if one.kind == "folder" and "/" not in str(one.path) and one.identity in watched
    ]


async def _ask_watched(desktop: Desktop, path: str, executable: str) -> list[str]:
    """The same by programs of the desktop, where nobody looks from outside."""
    named = {entry.path for entry in await list_tree(desktop, path, max_entries=MAX_FOLDERS) if entry.kind == "folder"}
    inodes = await run_program(desktop, ["/usr/bin/find", path, *INODES], user="root")
    watched = await run_program(desktop, ["/bin/sh", "-c", WATCHED_SCRIPT, "watched", executable], user="root")
    numbers = {int(word, 16) for word in watched.stdout.split()}
    pairs = (line.partition(" ") for line in inodes.stdout.split("\0") if line)
    return sorted(name for inode, _, name in pairs if int(inode) in numbers and name in named)


async def vm_window_size(context: GetterContext, config: GetterConfig) -> dict[str, int]:
    """{app_class_name}: width and height of that application's window, without its frame.

    Raises InvalidArtifact when there is none.
    """
    name = required_text(config, "app_class_name")
    window = await windows.find_window(context.desktop, name, by_class=True)
    frame = None if window is None else await windows.measure(context.desktop, window)
    if frame is None:
        raise InvalidArtifact(f"there is no window of {name}")
    return {"width": frame.w - frame.left - frame.right, "height": frame.h - frame.top - frame.bottom}


GETTERS: Mapping[str, Getter] = {
    "window_titles": window_titles,
    "watched_folders": watched_folders,
    "vm_window_size": vm_window_size,
}
