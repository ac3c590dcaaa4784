"""After a click that toggles something: how often the answer shows the new state, and how long it takes.

Role: `measure_toggles(desktop)` for `python -m benchmarks desktops`. Rule: a real toolkit's check boxes; before a try the box is known to
be in one state, and the one frame that answers the click must show the other; no second look. Non-goals: steps without settling
(`desktops_frames`).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import numpy as np

from dart_envs.farm import AsyncLease
from dart_envs.types import RgbImage
from dart_server.wire import ButtonEvent, FrameSpec, InputEvent, MoveEvent, SettleSpec

OFF, ON = (200, 16, 16), (16, 160, 16)
STYLE = """
check { min-width: 40px; min-height: 40px; border: none; background: #c81010; color: transparent; -gtk-icon-source: none; }
check:checked { background: #10a010; }
treeview, treeview:hover, treeview:selected { background: white; box-shadow: none; }
"""
ROWS = 14
"""Boxes, clicked in turn: two clicks of one box must not be near enough in time to be a double click."""
CONFIG = "/tmp/desktops-toggle"
LEAST_PX = 400
"""Pixels of one colour that make a box."""
QUIET_MS, CAP_MS = 60, 2_000
RAW = FrameSpec(encoding="raw")


class NoBoxes(RuntimeError):
    """The desktop did not show the check boxes."""


def boxes(image: RgbImage) -> list[tuple[int, int]]:
    """Centres (x, y) of the boxes, top to bottom, whatever their state."""
    coloured = (image == OFF).all(axis=2) | (image == ON).all(axis=2)
    rows = np.flatnonzero(coloured.any(axis=1))
    if rows.size == 0:
        return []
    found = []
    for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
        columns = np.flatnonzero(coloured[run].all(axis=0))
        if columns.size * run.size >= LEAST_PX:
            found.append((int(columns.mean()), int(run.mean())))
    return found


def checked(image: RgbImage, box: tuple[int, int]) -> bool:
    """Whether the box at (x, y) shows the state `on`."""
    x, y = box
    around = image[y - 4 : y + 5, x - 4 : x + 5].reshape(-1, 3)
    return bool((around == ON).all(axis=1).sum() > len(around) // 2)


async def measure_toggles(desktop: AsyncLease, *, tries: int = 1000, quiet_ms: int = QUIET_MS) -> dict[str, Any]:
    """`toggle_tries`, `toggle_shown`, `step_settled_p50_ms` and `quiet_ms` of a leased desktop at rest.

    quiet_ms: how long nothing may be drawn before the answer. Raises `NoBoxes`.
    """
    settle = SettleSpec(quiet_ms=quiet_ms, cap_ms=CAP_MS)
    await desktop.write_file(f"{CONFIG}/gtk-3.0/gtk.css", STYLE.encode())
    items = [word for row in range(ROWS) for word in ("FALSE", f"choice {row}")]
    window = ["zenity", "--list", "--checklist", "--hide-header", "--title=Toggle", "--width=500", "--height=900"]
    window += ["--text=", "--column=on", "--column=what", *items]
    await desktop.exec(window, env={"XDG_CONFIG_HOME": CONFIG}, detach=True)
    try:
        places, image = await _shown(desktop)
        shown = 0
        taken_ms: list[float] = []
        for number in range(tries):
            box = places[number % len(places)]
            before = checked(image, box)
            click: list[InputEvent] = [MoveEvent(x=box[0], y=box[1]), ButtonEvent(type="down"), ButtonEvent(type="up")]
            began_s = time.perf_counter()
            image = (await desktop.step(click, settle, frame=RAW)).image
            taken_ms.append((time.perf_counter() - began_s) * 1000)
            if checked(image, box) != before:
                shown += 1
            else:
                image = (await desktop.step([], SettleSpec(quiet_ms=500, cap_ms=CAP_MS), frame=RAW)).image
    finally:
        await desktop.exec(["pkill", "zenity"])
    return {
        "toggle_tries": tries,
        "toggle_shown": shown,
        "step_settled_p50_ms": round(statistics.median(taken_ms), 2),
        "step_settled_p95_ms": round(statistics.quantiles(taken_ms, n=20)[-1], 2),
        "quiet_ms": quiet_ms,
    }


async def _shown(desktop: AsyncLease) -> tuple[list[tuple[int, int]], RgbImage]:
    """Wait until every box is on the screen and drawn to its end."""
    image = np.zeros((1, 1, 3), dtype=np.uint8)
    places: list[tuple[int, int]] = []
    for _ in range(60):
        image = (await desktop.step([], SettleSpec(quiet_ms=500, cap_ms=CAP_MS), frame=RAW)).image
        places = boxes(image)
        if len(places) == ROWS:
            return places, image
        await asyncio.sleep(0.2)
    raise NoBoxes(f"{len(places)} of {ROWS} check boxes are on the screen")
