"""Getters that read the desktop itself: files, programs' output, the accessibility tree.

Role: one coroutine per getter, and `GETTERS` of this module. Names and parameters are OSWorld's; `captured`, `captured_in_turn`,
`file_names`, `a11y_elements` and `desktop_time` are ours. Non-goals: comparing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.evidence import list_tree, look, require
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, read_guest_file, required_text
from dart_envs.setup import windows
from dart_envs.setup.protected import CAPTURE_ROOT
from dart_envs.setup.steps import POLL_S, command_argv
from dart_server.wire import A11yElement, ExecReply, FileQuery, StatQuery

COMMAND_TIMEOUT_S = 60.0
MAX_LISTED = 20_000
NAMED_KINDS = frozenset({"file", "folder", "link"})
EXIT_GRACE_S = 3.0
"""How long after its window closed a captured program may take to end."""
EXIT_STILL_RUNNING = 4
KILLED_CODE = 126
"""From here on an exit code tells of a program that could not be run or was ended by a signal."""

READ_CAPTURE_SCRIPT = """cd "$1" 2>/dev/null || exit 3
[ -f code ] || exit 4
/usr/bin/stat --format=%.9Y code && /bin/cat code stdout
"""


async def vm_file(context: GetterContext, config: GetterConfig) -> GuestFile | list[GuestFile]:
    """{path[, multi, gives]}: a file, or with `multi` the files that `gives` (indices, default all) picks from a list
    of paths.
    """
    if not config.get("multi"):
        return await read_guest_file(context, required_text(config, "path"))
    paths = config.get("path")
    if not isinstance(paths, list | tuple):
        raise EvaluatorError("Getter 'vm_file' with `multi` needs a list of paths.")
    given = config.get("gives", range(len(paths)))
    return [await read_guest_file(context, paths[index]) for index in given]


async def run_command(context: GetterContext, config: GetterConfig) -> ExecReply:
    """Run {command[, shell, user]} and return its reply. Raises EvaluatorError when it does not end."""
    command = config.get("command")
    if not isinstance(command, str | list | tuple) or not command:
        raise EvaluatorError(f"Getter {config.get('type')!r} needs a `command`.")
    argv = command_argv(
        command if isinstance(command, str) else tuple(command),
        shell=config.get("shell") in (True, "true", "True"),
        resolution=context.desktop.resolution,
    )
    user = config.get("user", "user")
    reply = await context.desktop.exec(argv, timeout_s=COMMAND_TIMEOUT_S, user=user)
    if reply.timed_out:
        raise EvaluatorError(f"The evaluator's command {argv[0]!r} did not end within {COMMAND_TIMEOUT_S:g} s.")
    return reply


async def vm_command_line(context: GetterContext, config: GetterConfig) -> str:
    """{command[, shell, user]}: what the command prints."""
    return (await run_command(context, config)).stdout


async def vm_command_error(context: GetterContext, config: GetterConfig) -> str:
    """{command[, shell, user]}: what the command prints as error."""
    return (await run_command(context, config)).stderr


async def desktop_time(context: GetterContext, config: GetterConfig) -> str:
    """{format}: the desktop's time of day as `date` writes it there, in its time zone: what "today" is to a task that declares a clock."""
    argv = ["date", f"+{required_text(config, 'format')}"]
    reply = await context.desktop.exec(argv, timeout_s=COMMAND_TIMEOUT_S)
    if reply.returncode != 0:
        raise InvalidArtifact(f"the desktop does not tell its time: {reply.stderr.strip()[:200]}")
    return reply.stdout.removesuffix("\n")


async def content_from_vm_file(context: GetterContext, config: GetterConfig) -> str:
    """{path}: text of a file."""
    return (await read_guest_file(context, required_text(config, "path"))).text


async def list_directory(context: GetterContext, config: GetterConfig) -> list[str]:
    """{path}: every path below a folder, relative, folders with a closing slash, sorted.

    Raises InvalidArtifact when it is no folder.
    """
    path = required_text(config, "path")
    entries = await list_tree(context.desktop, path, max_entries=MAX_LISTED)
    return sorted(f"{entry.path}/" if entry.kind == "folder" else str(entry.path) for entry in entries)


async def file_names(context: GetterContext, config: GetterConfig) -> list[str]:
    """{path}: names directly inside a folder, folders with a closing slash, sorted.

    Raises InvalidArtifact where one is neither a file nor a folder nor a link.
    """
    path = required_text(config, "path")
    entries = await list_tree(context.desktop, path, max_entries=MAX_LISTED)
    named = [entry for entry in entries if "/" not in str(entry.path)]
    for entry in named:
        if entry.kind not in NAMED_KINDS:
            raise InvalidArtifact(f"{path}/{entry.path} is a {entry.kind}, not a file")
    return sorted(f"{entry.path}/" if entry.kind == "folder" else str(entry.path) for entry in named)


@dataclass(frozen=True, slots=True)
class _Capture:
    """How a captured program ended: when, with which code, and what it had printed."""

    ended_s: float
    code: int
    printed: str

    @property
    def answer(self) -> str:
        """What it printed, without the last line end; nothing of a program that was killed or never ran."""
        return self.printed.removesuffix("\n") if self.code < KILLED_CODE else ""


async def captured(context: GetterContext, config: GetterConfig) -> str:
    """{name[, window_name]}: what a program of `launch_captured` printed, without the last line end.

    "" while it still runs, and of one that was killed. A program whose window is gone gets `EXIT_GRACE_S` to end, so that a click on the
    last step counts.
    """
    capture = await _wait_captured(context, config)
    return "" if capture is None else capture.answer


async def captured_in_turn(context: GetterContext, config: GetterConfig) -> list[list[str]]:
    """{captures: [{name[, window_name]}, ...]}: [name, printed] of those that have ended, the first to end first."""
    ended: list[tuple[float, list[str]]] = []
    for each in config["captures"]:
        capture = await _wait_captured(context, each)
        if capture is not None:
            ended.append((capture.ended_s, [required_text(each, "name"), capture.answer]))
    return [pair for _, pair in sorted(ended)]


async def _wait_captured(context: GetterContext, config: GetterConfig) -> _Capture | None:
    """What is captured under a name; None where the program still runs at the end of its time."""
    folder = f"{CAPTURE_ROOT}/{required_text(config, 'name')}"
    limit_s = context.clock.monotonic() + EXIT_GRACE_S
    while True:
        capture = await _read_captured(context, folder)
        if capture is not None:
            return capture
        window_name = config.get("window_name")
        still_open = window_name is None or await windows.find_window(context.desktop, window_name) is not None
        if still_open or context.clock.monotonic() >= limit_s:
            return None
        await context.clock.sleep(POLL_S)


async def _read_captured(context: GetterContext, folder: str) -> _Capture | None:
    """How a captured program ended, None while it runs. Raises InvalidArtifact where what was captured has been taken away."""
    code, printed = FileQuery(path=f"{folder}/code"), FileQuery(path=f"{folder}/stdout")
    seen = await look(context.desktop, StatQuery(path=folder), code, printed)
    if seen is None:
        return await _ask_captured(context, folder)
    require(seen.answers[0], folder)
    if seen.answers[1].error == "not_found":
        return None
    ended = require(seen.answers[1], code.path)
    said = seen.content(require(seen.answers[2], printed.path)).decode("utf-8", "replace")
    return _parse_captured(
        ended.facts.modified_s if ended.facts else 0.0, seen.content(ended).decode("ascii", "replace"), said
    )


async def _ask_captured(context: GetterContext, folder: str) -> _Capture | None:
    """The same by programs of the desktop, where nobody looks from outside."""
    reply = await context.desktop.exec(
        ["/bin/sh", "-c", READ_CAPTURE_SCRIPT, "read", folder], timeout_s=10.0, user="root"
    )
    if reply.returncode == EXIT_STILL_RUNNING:
        return None
    if reply.returncode != 0:
        raise EvaluatorError(f"Nothing was captured in {folder}: {reply.stderr.strip()[:200]}")
    when, _, rest = reply.stdout.partition("\n")
    code, _, said = rest.partition("\n")
    return _parse_captured(float(when), code, said)


def _parse_captured(ended_s: float, code: str, printed: str) -> _Capture:
    if not code.strip().isdecimal():
        raise InvalidArtifact("what a captured program left was changed")
    return _Capture(ended_s, int(code), printed)


async def a11y_elements(context: GetterContext, config: GetterConfig) -> list[A11yElement]:
    """The showing elements of the accessibility tree; {role} keeps one role."""
    role = config.get("role")
    return [element for element in await context.desktop.a11y() if role in (None, element.role)]


async def vm_screen_size(context: GetterContext, config: GetterConfig) -> dict[str, int]:
    """Width and height of the screen in pixels."""
    width, height = context.desktop.resolution
    return {"width": width, "height": height}


async def rule(context: GetterContext, config: GetterConfig) -> Any:
    """{rules}: the expected value itself; it stays on this side."""
    if "rules" not in config:
        raise EvaluatorError("Getter 'rule' needs `rules`.")
    return config["rules"]


GETTERS: Mapping[str, Getter] = {
    "vm_file": vm_file,
    "vm_command_line": vm_command_line,
    "vm_command_error": vm_command_error,
    "content_from_vm_file": content_from_vm_file,
    "list_directory": list_directory,
    "file_names": file_names,
    "captured": captured,
    "captured_in_turn": captured_in_turn,
    "a11y_elements": a11y_elements,
    "accessibility_tree": a11y_elements,
    "desktop_time": desktop_time,
    "vm_screen_size": vm_screen_size,
    "rule": rule,
}
