"""Windows of the desktop, as the window manager lists them.

Role: list, find, measure and move windows with wmctrl, xwininfo and xprop. Rule: nothing here waits or retries;
callers do. Pixels are screen pixels; a frame is the window with its title bar and borders. Non-goals: what is inside
a window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dart_envs.errors import GuestError
from dart_envs.types import Desktop

_LIST_LINE = re.compile(r"^(0x[0-9a-f]+)\s+-?\d+\s+([^.]*\.\S+|N/A)\s+(\S+) (.*)$")
_NUMBER_AFTER = r"{}:\s+(-?\d+)"


@dataclass(frozen=True, slots=True)
class Window:
    """One window of the window manager's list."""

    window_id: str
    wm_class: str
    title: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a window is, borders and title bar included; the last four are the borders' widths."""

    x: int
    y: int
    w: int
    h: int
    left: int
    right: int
    top: int
    bottom: int


def parse_list(output: str) -> list[Window]:
    """Parse `wmctrl -lx`; lines that do not look like a window are left out."""
    matches = (_LIST_LINE.match(line) for line in output.splitlines())
    return [Window(match[1], match[2], match[4]) for match in matches if match]


async def list_windows(desktop: Desktop) -> list[Window]:
    """Every window the window manager knows, oldest first."""
    reply = await desktop.exec(["wmctrl", "-lx"], timeout_s=10.0)
    return parse_list(reply.stdout) if reply.returncode == 0 else []


def matches(window: Window, name: str, *, strict: bool, by_class: bool) -> bool:
    """Whether a window is the one that is meant; comparison ignores case unless `strict`."""
    held = window.wm_class if by_class else window.title
    return held == name if strict else name.lower() in held.lower()


async def find_window(desktop: Desktop, name: str, *, strict: bool = False, by_class: bool = False) -> Window | None:
    """The newest window of that name, None when there is none."""
    for window in reversed(await list_windows(desktop)):
        if matches(window, name, strict=strict, by_class=by_class):
            return window
    return None


def parse_frame(xwininfo: str, xprop: str) -> Frame:
    """Frame of a window from `xwininfo -id` and `xprop -id … _NET_FRAME_EXTENTS`. Raises ValueError on other text."""
    values: list[int] = []
    for label in ("Absolute upper-left X", "Absolute upper-left Y", "Width", "Height"):
        match = re.search(_NUMBER_AFTER.format(re.escape(label)), xwininfo)
        if match is None:
            raise ValueError(f"xwininfo did not say {label}")
        values.append(int(match[1]))
    x, y, w, h = values
    extents = re.search(r"=\s*(\d+), (\d+), (\d+), (\d+)", xprop)
    left, right, top, bottom = (int(extents[n]) for n in range(1, 5)) if extents else (0, 0, 0, 0)
    return Frame(x - left, y - top, w + left + right, h + top + bottom, left, right, top, bottom)


async def measure(desktop: Desktop, window: Window) -> Frame | None:
    """Where the window is now; None when it is gone."""
    info = await desktop.exec(["xwininfo", "-id", window.window_id], timeout_s=10.0)
    extents = await desktop.exec(["xprop", "-id", window.window_id, "_NET_FRAME_EXTENTS"], timeout_s=10.0)
    if info.returncode != 0:
        return None
    try:
        return parse_frame(info.stdout, extents.stdout)
    except ValueError:
        return None


async def move(desktop: Desktop, window: Window, x: int, y: int, size: tuple[int, int] | None = None) -> None:
    """Ask the window manager to put the frame's corner at (x, y); `size` is of the inside, without the frame."""
    width, height = size or (-1, -1)
    argv = ["wmctrl", "-i", "-r", window.window_id, "-e", f"0,{x},{y},{width},{height}"]
    reply = await desktop.exec(argv, timeout_s=10.0)
    if reply.returncode == 127:
        raise GuestError("wmctrl is not in the image; add it to the recipe's packages", code="missing_program")


async def close(desktop: Desktop, window: Window) -> None:
    """Ask the window to close, as its close button does."""
    await desktop.exec(["wmctrl", "-i", "-c", window.window_id], timeout_s=10.0)


async def activate(desktop: Desktop, window: Window) -> None:
    """Raise and focus the window."""
    await desktop.exec(["wmctrl", "-i", "-a", window.window_id], timeout_s=10.0)
