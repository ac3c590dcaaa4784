"""One screen of a live desktop.

Role: `read_state` and `capture`. Rule: a screen is captured when the accessibility tree is the same before and after the screenshot; the
pointer waits in a corner, where it opens no tooltip. Windows come from the X server itself, menus and tooltips included. Non-goals: what to
do next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from dart_agent.errors import AgentError
from dart_agent.grounding.desktop_ground.screen import ScreenElement, ScreenWindow, read_elements
from dart_envs.envs.a11y_xml import read_a11y_xml
from dart_envs.errors import GuestError
from dart_envs.farm.base import LeaseLike
from dart_envs.types import RgbImage
from dart_server.wire import ButtonEvent, MoveEvent, SettleSpec

SETTLE = SettleSpec(quiet_ms=400, cap_ms=4_000)
ATTEMPTS = 6
WINDOWS_PROGRAM = """
import json
from Xlib import X, display, error
root = display.Display().screen().root
found = []
for window in root.query_tree().children:
    try:
        told, place = window.get_attributes(), window.get_geometry()
    except error.XError:
        continue
    if told.map_state == X.IsViewable and told.win_class != X.InputOnly:
        edge = 2 * place.border_width
        found.append([place.x, place.y, place.width + edge, place.height + edge, bool(told.override_redirect)])
print(json.dumps(found))
"""
"""Prints the visible windows below the root, the topmost last."""


class ScreenUnstable(AgentError):
    """A screen went on changing, or told nothing that can be read."""


@dataclass(frozen=True, slots=True)
class LiveState:
    """What a desktop shows.

    Attributes:
        pixels: The screenshot, uint8 [H, W, 3].
        elements: The accessibility tree.
        windows: Visible windows, the topmost last.
    """

    pixels: RgbImage
    elements: tuple[ScreenElement, ...]
    windows: tuple[ScreenWindow, ...]


async def read_tree(lease: LeaseLike) -> tuple[ScreenElement, ...]:
    """Read the accessibility tree of a desktop.

    Args:
        lease: The desktop.

    Returns:
        The elements.

    Raises:
        ScreenUnstable: It cannot be read.
    """
    try:
        return read_elements(await read_a11y_xml(lease))
    except (GuestError, ValueError) as error:
        raise ScreenUnstable(str(error)) from None


async def read_windows(lease: LeaseLike) -> tuple[ScreenWindow, ...]:
    """Read the windows of a desktop from its X server.

    Args:
        lease: The desktop.

    Returns:
        Visible windows, the topmost last.

    Raises:
        ScreenUnstable: They cannot be read.
    """
    reply = await lease.exec(["python3", "-c", WINDOWS_PROGRAM], timeout_s=20.0)
    try:
        listed = json.loads(reply.stdout)
        return tuple(ScreenWindow((x, y, x + w, y + h), bool(popup)) for x, y, w, h, popup in listed)
    except (ValueError, TypeError):
        raise ScreenUnstable(f"the windows of the desktop cannot be read: {reply.stderr.strip()[-200:]}") from None


async def capture(lease: LeaseLike) -> LiveState:
    """Capture a screen once it stands still.

    Args:
        lease: The desktop.

    Returns:
        What it shows.

    Raises:
        ScreenUnstable: It went on changing.
    """
    width, height = lease.resolution
    aside = MoveEvent(x=width - 1, y=height // 2)
    before = await read_tree(lease)
    for _ in range(ATTEMPTS):
        frame = await lease.step([aside], SETTLE)
        windows = await read_windows(lease)
        after = await read_tree(lease)
        if after == before:
            return LiveState(np.array(frame.image), after, windows)
        before = after
    raise ScreenUnstable(f"the screen still changed after {ATTEMPTS} looks at it")


async def click(lease: LeaseLike, point: tuple[float, float]) -> None:
    """Click, and wait until the screen settles.

    Args:
        lease: The desktop.
        point: Where, in pixels.
    """
    x, y = round(point[0]), round(point[1])
    await lease.step([MoveEvent(x=x, y=y), ButtonEvent(type="down"), ButtonEvent(type="up")], SETTLE)
