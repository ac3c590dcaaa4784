"""One coroutine per setup step type.

Role: perform a parsed step and return when its success condition holds. Rule: conditions are polled against the
step's own time-out; what failed is a `StepFailedError` with one sentence. Programs get argument lists; only a step that
says `shell` reaches a shell. Non-goals: order, retries and error wrapping (`dart_envs.setup.runner`).
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from dart_envs.errors import GuestError
from dart_envs.setup import params, windows
from dart_envs.setup.protected import PROTECTED_GID, capture_argv, start_argv
from dart_envs.types import Desktop
from dart_server.wire import Clock, ExecReply, SettleSpec

POLL_S = 0.05
WINDOW_SETTLE = SettleSpec(quiet_ms=700, cap_ms=10_000)
"""When a screen counts as done with painting a window that has just come."""
CLIENT_PASSWORD = "password"
HOME = "/home/user"
BASELINE_FILE = "/var/lib/dart/baseline"
EXECUTABLES_ARGV = (
    *("/usr/bin/setpriv", "--reuid=user", "--regid=user", "--init-groups"),
    *("/usr/bin/find", "/proc", "-maxdepth", "2", "-path", "/proc/[0-9]*/exe", "-printf", r"%h %l\n"),
)
"""Lists what the user's processes execute; root has no right to see it."""
NOTE_PROGRAMS_SCRIPT = f"""umask 077; mkdir -p /var/lib/dart && ps -e -o pid=,comm= >{BASELINE_FILE}
{shlex.join(EXECUTABLES_ARGV)} >{BASELINE_FILE}.executables 2>/dev/null; true"""
"""Notes, where only root can write, which processes there are and what they execute."""


class StepFailedError(Exception):
    """A step missed its success condition."""


class StepTimedOutError(StepFailedError):
    """A step did not see its success condition in all of its time."""


@dataclass(frozen=True, slots=True)
class SetupContext:
    """What a step may use: the desktop, the clock, the folder that host files are relative to, where to put what it printed, and whose step
    it is.
    """

    desktop: Desktop
    clock: Clock
    assets: Path | None = None
    step_outputs: dict[str, str] = field(default_factory=dict)
    task_id: str = ""

    async def wait_until(self, condition: Callable[[], Awaitable[bool]], timeout_s: float, what: str) -> None:
        """Poll until `condition`; raises StepTimedOutError(`what`) after `timeout_s`."""
        limit_s = self.clock.monotonic() + timeout_s
        while not await condition():
            if self.clock.monotonic() >= limit_s:
                raise StepTimedOutError(f"{what} within {timeout_s:g} s")
            await self.clock.sleep(POLL_S)


def fill_placeholders(text: str, resolution: tuple[int, int]) -> str:
    """Replace OSWorld's place holders ({CLIENT_PASSWORD}, {SCREEN_WIDTH}, …) and nothing else."""
    width, height = resolution
    values = {
        "CLIENT_PASSWORD": CLIENT_PASSWORD,
        "SCREEN_WIDTH": str(width),
        "SCREEN_HEIGHT": str(height),
        "SCREEN_WIDTH_HALF": str(width // 2),
        "SCREEN_HEIGHT_HALF": str(height // 2),
    }
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def guest_path(path: str) -> str:
    """Return the absolute path inside the desktop, as OSWorld reads it.

    Args:
        path: A path; a relative one, or one that begins with `~/`, is below the home folder, where commands run too.

    Returns:
        The absolute path.
    """
    return path if path.startswith("/") else f"{HOME}/{path.removeprefix('~/').removeprefix('./')}"


def command_argv(command: str | tuple[str, ...], *, shell: bool, resolution: tuple[int, int]) -> list[str]:
    """The argument list of an `execute` or `launch` command, in OSWorld's reading: text is split like a shell would,
    `~/` is home.
    """
    if shell:
        line = command if isinstance(command, str) else shlex.join(command)
        return ["/bin/bash", "-c", fill_placeholders(line, resolution)]
    words = shlex.split(command) if isinstance(command, str) else list(command)
    filled = [fill_placeholders(word, resolution) for word in words]
    return [f"{HOME}/{word[2:]}" if word.startswith("~/") else word for word in filled]


def matches_reply(until: params.UntilCondition, reply: ExecReply) -> bool:
    """Whether a reply satisfies every condition that is given."""
    return (
        (until.returncode is None or reply.returncode == until.returncode)
        and (until.stdout is None or until.stdout in reply.stdout)
        and (until.stderr is None or until.stderr in reply.stderr)
    )


async def execute(context: SetupContext, step: params.ExecuteParameters) -> None:
    """Run a program to its end, again and again where `until` is given."""
    argv = command_argv(step.command, shell=step.shell, resolution=context.desktop.resolution)
    last: ExecReply | None = None

    async def done() -> bool:
        nonlocal last
        last = await context.desktop.exec(argv, timeout_s=step.timeout_s, user=step.user)
        if last.timed_out:
            raise StepFailedError(f"{argv[0]} did not end within {step.timeout_s:g} s")
        return step.until is None or matches_reply(step.until, last)

    await context.wait_until(done, step.timeout_s, f"{argv[0]} never gave what `until` asks for")
    if last is not None and step.stdout is not None:
        context.step_outputs[step.stdout] = last.stdout
    if last is not None and step.stderr is not None:
        context.step_outputs[step.stderr] = last.stderr
    if last is not None and step.expect_returncode not in (None, last.returncode):
        raise StepFailedError(f"{argv[0]} ended with {last.returncode}: {last.stderr.strip()[:300]}")


async def launch(context: SetupContext, step: params.LaunchParameters) -> None:
    """Start a program and leave it running."""
    argv = command_argv(step.command, shell=step.shell, resolution=context.desktop.resolution)
    if step.protected:
        started = start_argv(argv, PROTECTED_GID, step.sealed)
        reply = await context.desktop.exec(started, user="root", detach=True)
    else:
        reply = await context.desktop.exec(argv, detach=True)
    if reply.returncode not in (None, 0):
        raise StepFailedError(f"{argv[0]} could not be started: {reply.stderr.strip()[:300]}")


async def launch_captured(context: SetupContext, step: params.LaunchCapturedParameters) -> None:
    """Start a program whose answer only root can read."""
    argv = capture_argv(step.name, step.command, step.sealed)
    await context.desktop.exec(argv, user="root", detach=True)


async def open_path(context: SetupContext, step: params.OpenParameters) -> None:
    """Open a file with its default application and wait for its window."""
    path = guest_path(step.path)
    await context.desktop.exec(["xdg-open", path], detach=True)
    name = PurePosixPath(path).name
    await wait_for_window(context, params.WindowParameters(window_name=name, timeout_s=step.timeout_s))


async def sleep(context: SetupContext, step: params.SleepParameters) -> None:
    """Let time pass."""
    await context.clock.sleep(step.seconds)


async def wait_for_window(context: SetupContext, step: params.WindowParameters) -> windows.Window:
    """The window a step names, waited for."""
    limit_s = context.clock.monotonic() + step.timeout_s
    raw: str | None = None
    while True:
        raw = await windows.list_windows_raw(context.desktop, changed_from=raw)
        listed = windows.parse_list(raw)
        found = windows.newest_match(listed, step.window_name, strict=step.strict, by_class=step.by_class)
        if found is not None:
            return found
        if context.clock.monotonic() >= limit_s:
            raise StepTimedOutError(
                f"no window {step.window_name!r} appeared within {step.timeout_s:g} s; "
                f"windows on the screen: {windows.describe_windows(listed, by_class=step.by_class)}"
            )
        await context.clock.sleep(POLL_S)


async def wait_window(context: SetupContext, step: params.WindowParameters) -> None:
    """Wait until a window is there."""
    await wait_for_window(context, step)


async def wait_element(context: SetupContext, step: params.WaitElementParameters) -> None:
    """Wait until an element is showing, then until the screen rests. A tree that cannot be read yet is waited for too."""
    what = step.role if step.name is None else f"{step.role} {step.name!r}"
    limit_s = context.clock.monotonic() + step.timeout_s
    while True:
        unread = ""
        try:
            elements = await context.desktop.a11y()
        except GuestError as error:
            elements, unread = [], f": {error}"
        if any(element.role == step.role and step.name in (None, element.name) for element in elements):
            break
        if context.clock.monotonic() >= limit_s:
            raise StepTimedOutError(f"no {what} appeared within {step.timeout_s:g} s{unread}")
        await context.clock.sleep(POLL_S)
    await context.desktop.step([], WINDOW_SETTLE)


async def activate_window(context: SetupContext, step: params.WindowParameters) -> None:
    """Raise and focus a window."""
    await windows.activate(context.desktop, await wait_for_window(context, step))


async def close_window(context: SetupContext, step: params.WindowParameters) -> None:
    """Close a window and wait until it is gone; no such window is success."""

    async def gone() -> bool:
        window = await windows.find_window(
            context.desktop, step.window_name, strict=step.strict, by_class=step.by_class
        )
        if window is not None:
            await windows.close(context.desktop, window)
        return window is None

    await context.wait_until(gone, step.timeout_s, f"window {step.window_name!r} did not close")


def target_geometry(
    frame: windows.WindowFrame, step: params.PlaceWindowParameters, free: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """Frame position and size (x, y, w, h) that a `place_window` step asks for.

    free: left, top, right and bottom of the room between the panels. Raises StepFailedError when it does not fit.
    """
    corner, extent = free[:2], (free[2] - free[0], free[3] - free[1])
    left, top, right, bottom = (corner[n % 2] + round(share * extent[n % 2]) for n, share in enumerate(step.area))
    borders_w, borders_h = frame.left + frame.right, frame.top + frame.bottom
    w = frame.w if step.width is None else min(step.width + borders_w, right - left)
    h = frame.h if step.height is None else min(step.height + borders_h, bottom - top)
    x = left + round(step.x * max(0, right - left - w))
    y = top + round(step.y * max(0, bottom - top - h))
    if x + w > free[2] or y + h > free[3]:
        raise StepFailedError(
            f"window {step.window_name!r} ({w}x{h}) does not fit its place on a screen with {extent[0]}x{extent[1]} free;"
            " use a larger screen or a smaller font"
        )
    return x, y, w, h


async def place_window(context: SetupContext, step: params.PlaceWindowParameters) -> None:
    """Put a window where it is asked to be, and see that it is there."""
    window = await wait_for_window(context, step)
    free = await windows.work_area(context.desktop)
    difference = ""

    async def placed() -> bool:
        nonlocal difference
        frame = await windows.measure(context.desktop, window)
        if frame is None:
            return False
        x, y, w, h = target_geometry(frame, step, free)
        if (frame.x, frame.y, frame.w, frame.h) == (x, y, w, h):
            return True
        size = None if step.width is None and step.height is None else inner_size(frame, w, h)
        moved = await windows.move(context.desktop, window, frame, x, y, size)
        if moved is not None:
            difference = f"; it is {moved.w}x{moved.h} at {moved.x}, {moved.y}, not {w}x{h} at {x}, {y}"
        return moved is not None and (moved.x, moved.y) == (x, y) and is_near_size(moved, w, h)

    try:
        await context.wait_until(placed, step.timeout_s, f"window {step.window_name!r} did not take its place")
    except StepTimedOutError as error:
        raise StepTimedOutError(f"{error}{difference}") from None


SIZE_TOLERANCE_PX = 40
"""Terminals round their size to whole characters."""


def is_near_size(frame: windows.WindowFrame, w: int, h: int) -> bool:
    """Whether a frame has the size asked for, up to what applications round."""
    return abs(frame.w - w) <= SIZE_TOLERANCE_PX and abs(frame.h - h) <= SIZE_TOLERANCE_PX


def inner_size(frame: windows.WindowFrame, w: int, h: int) -> tuple[int, int]:
    """Size without borders of a frame that shall be w by h."""
    return w - frame.left - frame.right, h - frame.top - frame.bottom


async def upload_file(context: SetupContext, step: params.UploadFileParameters) -> None:
    """Copy host files in."""
    for file in step.files:
        source = Path(file.local_path)
        if not source.is_absolute() and context.assets is not None:
            source = context.assets / source
        try:
            content = source.read_bytes()
        except OSError as error:
            raise StepFailedError(f"cannot read {source}: {error.strerror}") from error
        await write_and_verify(context, file.path, content, 0o644)


async def write_file(context: SetupContext, step: params.WriteFileParameters) -> None:
    """Write a text file."""
    await write_and_verify(context, step.path, step.content.encode(), step.mode)


async def write_binary(context: SetupContext, step: params.WriteBinaryParameters) -> None:
    """Write a file of any bytes."""
    await write_and_verify(context, step.path, step.content_base64, step.mode)


async def write_and_verify(context: SetupContext, path: str, content: bytes, mode: int) -> None:
    """Write and read back."""
    path = guest_path(path)
    await context.desktop.write_file(path, content, mode=mode)
    held = await context.desktop.read_file(path)
    if held != content:
        raise StepFailedError(f"{path} does not read back as it was written")


Performer = Callable[[SetupContext, Any], Awaitable[None]]

PERFORMERS: Mapping[str, Performer] = {
    "execute": execute,
    "command": execute,
    "launch": launch,
    "launch_captured": launch_captured,
    "open": open_path,
    "sleep": sleep,
    "activate_window": activate_window,
    "close_window": close_window,
    "wait_window": wait_window,
    "wait_element": wait_element,
    "place_window": place_window,
    "upload_file": upload_file,
    "write_file": write_file,
    "write_binary": write_binary,
}
