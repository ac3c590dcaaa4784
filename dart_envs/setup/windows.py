"""Windows of the desktop, as the window manager lists them.

Role: list, find, measure, move and focus windows with wmctrl, xwininfo and xprop. Rule: the window manager gets a moment to carry out
what it was asked; longer waits and retries are the callers'. Pixels are screen pixels; a frame is the window with its title bar and
borders. Non-goals: what is inside a window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dart_envs.errors import GuestError
from dart_envs.types import Desktop

_LIST_LINE = re.compile(r"^(0x[0-9a-f]+)\s+-?\d+\s+([^.]*\.\S+|N/A)\s+(\S+) (.*)$")
_NUMBER_AFTER = r"{}:\s+(-?\d+)"
_WORK_AREA = re.compile(r"=\s*(\d+), (\d+), (\d+), (\d+)")

TITLE_ALIAS = ("Chromium", "Google Chrome")
"""Chromium stands in for Google's browser, under whose name OSWorld's tasks look for its windows."""
CLASS_MATCHED_NAMES = frozenset({"Terminal"})
"""Programs' names that OSWorld's tasks take for titles: what runs in a terminal gives its window another one, so the class counts, too."""
MAX_LIST_POLLS = 20
MAX_ACTIVE_POLLS = 50
MAX_DESCRIBED_WINDOWS = 8
EXIT_COMMAND_NOT_FOUND = 127

LIST_SCRIPT = """command -v wmctrl >/dev/null || exit 127
polls=0
while now=$(wmctrl -lx) && [ "$now" = "$1" ] && [ "$polls" -lt "$2" ]; do
  polls=$((polls + 1))
  sleep 0.04
done
printf %s "$now"
"""
"""Windows, waiting up to `$2` polls for a list that is not `$1`: waiting inside costs no round trips."""

IDS_SCRIPT = "wmctrl -l | cut -d' ' -f1"

STARTED_SCRIPT = """command -v wmctrl >/dev/null || exit 0
polls=0
while [ "$polls" -lt "$1" ]; do
  new=0 splash=0 modal=0
  for id in $(wmctrl -l | cut -d' ' -f1); do
    case " $2 " in *" $id "*) continue ;; esac
    case $(xprop -id "$id" _NET_WM_WINDOW_TYPE _NET_WM_STATE 2>/dev/null) in
      *SPLASH*) splash=1 ;;
      *MODAL*) modal=1 new=$((new + 1)) ;;
      *) new=$((new + 1)) ;;
    esac
  done
  [ "$new" -ge "$3" ] && { [ "$splash" = 0 ] || [ "$modal" = 1 ]; } && exit 0
  polls=$((polls + 1))
  sleep 0.1
done
exit 1
"""
"""Wait up to `$1` polls until `$3` windows that are not in the list `$2` are open, and no splash screen, unless a modal dialog waits
beside it for an answer: LibreOffice shows both while it asks how to import a file."""

MEASURE_SCRIPT = """xwininfo -id "$1" && xprop -id "$1" _NET_FRAME_EXTENTS"""

MOVE_SCRIPT = """wmctrl -i -r "$1" -e "$2" || exit 1
polls=0
while info=$(xwininfo -id "$1") && [ "$polls" -lt 20 ]; do
  case $info in *"upper-left X:  $3"*"upper-left Y:  $4"*) break ;; esac
  polls=$((polls + 1))
  sleep 0.02
done
echo "$info"
xprop -id "$1" _NET_FRAME_EXTENTS
"""
"""Move window `$1` to geometry `$2`, wait until its inside begins at (`$3`, `$4`), and measure it."""

ACTIVATE_SCRIPT = """wmctrl -i -a "$1" || exit 1
polls=0
while [ "$polls" -lt "$3" ]; do
  case $(xprop -root _NET_ACTIVE_WINDOW) in *" $2" | *" $2,"*) exit 0 ;; esac
  polls=$((polls + 1))
  sleep 0.02
done
"""
"""Activate window `$1`, and wait up to `$3` polls until it is the active one, by its id `$2` as xprop writes it."""


@dataclass(frozen=True, slots=True)
class Window:
    """One window of the window manager's list."""

    window_id: str
    wm_class: str
    title: str


@dataclass(frozen=True, slots=True)
class WindowFrame:
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


async def list_windows_raw(desktop: Desktop, *, changed_from: str | None = None) -> str:
    """`wmctrl -lx` now; with `changed_from`, as soon as it differs from that, at the latest after about a second."""
    polls = 0 if changed_from is None else MAX_LIST_POLLS
    argv = ["/bin/sh", "-c", LIST_SCRIPT, "list", changed_from or "", str(polls)]
    reply = await desktop.exec(argv, timeout_s=20.0)
    if reply.returncode == EXIT_COMMAND_NOT_FOUND:
        raise GuestError("wmctrl is not in the image; add it to the recipe's packages.", code="missing_program")
    return reply.stdout if reply.returncode == 0 else ""


async def list_windows(desktop: Desktop) -> list[Window]:
    """Every window the window manager knows, oldest first."""
    return parse_list(await list_windows_raw(desktop))


async def window_ids(desktop: Desktop) -> list[str]:
    """Ids of every window, empty in an image without wmctrl."""
    return (await desktop.exec(["/bin/sh", "-c", IDS_SCRIPT], timeout_s=20.0)).stdout.split()


async def wait_started(desktop: Desktop, before: list[str], count: int, limit_s: float) -> bool:
    """Wait until programs have opened their windows, splash screens apart; a modal dialog is a window.

    Args:
        desktop: The desktop.
        before: Ids of the windows before the programs were started.
        count: How many new windows are awaited.
        limit_s: How long, in seconds.

    Returns:
        Whether they came in time; in an image without wmctrl nobody can tell, and nothing is awaited.
    """
    argv = ["/bin/sh", "-c", STARTED_SCRIPT, "started", str(int(limit_s * 10)), " ".join(before), str(count)]
    reply = await desktop.exec(argv, timeout_s=limit_s * 3 + 20.0)
    return reply.returncode == 0


def window_matches(window: Window, name: str, *, strict: bool, by_class: bool) -> bool:
    """Whether a window is the one that is meant; comparison ignores case unless `strict`."""
    held = window.wm_class if by_class else window.title
    titles = {held} if by_class else {held, held.replace(*TITLE_ALIAS)}
    if strict:
        return name in titles
    if name in CLASS_MATCHED_NAMES:
        titles.add(window.wm_class)
    return any(name.lower() in title.lower() for title in titles)


def newest_match(listed: list[Window], name: str, *, strict: bool, by_class: bool) -> Window | None:
    """The newest window of that name, None when there is none."""
    fitting = [window for window in listed if window_matches(window, name, strict=strict, by_class=by_class)]
    return fitting[-1] if fitting else None


def describe_windows(listed: list[Window], *, by_class: bool) -> str:
    """Titles of windows, or with `by_class` their classes, for an error message; of many only the newest."""
    if not listed:
        return "none"
    named = [repr(window.wm_class if by_class else window.title) for window in listed[-MAX_DESCRIBED_WINDOWS:]]
    more = f" and {left} more" if (left := len(listed) - len(named)) else ""
    return ", ".join(named) + more


async def find_window(desktop: Desktop, name: str, *, strict: bool = False, by_class: bool = False) -> Window | None:
    """The newest window of that name, None when there is none."""
    return newest_match(await list_windows(desktop), name, strict=strict, by_class=by_class)


def parse_frame(text: str) -> WindowFrame:
    """Return the frame of a window from what `xwininfo -id` and `xprop -id … _NET_FRAME_EXTENTS` print.

    Raises ValueError on other text.
    """
    values: list[int] = []
    for label in ("Absolute upper-left X", "Absolute upper-left Y", "Width", "Height"):
        match = re.search(_NUMBER_AFTER.format(re.escape(label)), text)
        if match is None:
            raise ValueError(f"xwininfo did not say {label}")
        values.append(int(match[1]))
    x, y, w, h = values
    extents = re.search(r"=\s*(\d+), (\d+), (\d+), (\d+)", text)
    left, right, top, bottom = (int(extents[n]) for n in range(1, 5)) if extents else (0, 0, 0, 0)
    return WindowFrame(x - left, y - top, w + left + right, h + top + bottom, left, right, top, bottom)


async def work_area(desktop: Desktop) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of what the panels leave free; the whole screen where the window manager names nothing."""
    reply = await desktop.exec(["xprop", "-root", "_NET_WORKAREA"], timeout_s=20.0)
    found = _WORK_AREA.search(reply.stdout)
    if reply.returncode != 0 or found is None:
        return 0, 0, *desktop.resolution
    left, top, width, height = map(int, found.groups())
    return left, top, left + width, top + height


async def measure(desktop: Desktop, window: Window) -> WindowFrame | None:
    """Where the window is now; None when it is gone."""
    return await _run_and_parse(desktop, [MEASURE_SCRIPT, "measure", window.window_id])


async def move(
    desktop: Desktop, window: Window, frame: WindowFrame, x: int, y: int, size: tuple[int, int] | None = None
) -> WindowFrame | None:
    """Put the frame's corner at (x, y) and measure again, after a short wait for it; `size` is without the frame."""
    width, height = size or (-1, -1)
    geometry = f"0,{x},{y},{width},{height}"
    corner = [str(x + frame.left), str(y + frame.top)]
    return await _run_and_parse(desktop, [MOVE_SCRIPT, "move", window.window_id, geometry, *corner])


async def _run_and_parse(desktop: Desktop, script: list[str]) -> WindowFrame | None:
    reply = await desktop.exec(["/bin/sh", "-c", *script], timeout_s=20.0)
    try:
        return parse_frame(reply.stdout) if reply.returncode == 0 else None
    except ValueError:
        return None


async def close(desktop: Desktop, window: Window) -> None:
    """Ask the window to close, as its close button does."""
    await desktop.exec(["wmctrl", "-i", "-c", window.window_id], timeout_s=10.0)


async def activate(desktop: Desktop, window: Window) -> None:
    """Raise and focus the window, and give it a second to become the active one: a modal dialog above it keeps the focus."""
    written_by_xprop = hex(int(window.window_id, 16))
    script = ["/bin/sh", "-c", ACTIVATE_SCRIPT, "activate", window.window_id, written_by_xprop, str(MAX_ACTIVE_POLLS)]
    await desktop.exec(script, timeout_s=10.0)
