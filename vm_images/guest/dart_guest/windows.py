"""The window manager's list of windows.

Role: read EWMH properties of the root window and its clients.
Rule: reads only (but for the probe window of `window_manager_works`); a window that vanishes meanwhile is left out. Called on
the step thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from Xlib import X, error

from dart_guest.xinput import XInput

PROBE_ROUNDS = 60
PROBE_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Window:
    """One managed window; x, y of its client area on the screen, in pixels."""

    id: int
    title: str
    cls: str
    instance: str
    pid: int
    x: int
    y: int
    w: int
    h: int
    active: bool

    def to_json(self) -> dict[str, Any]:
        """The protocol's form."""
        return {
            "id": self.id,
            "title": self.title,
            "class": self.cls,
            "pid": self.pid,
            "x": self.x,
            "y": self.y,
            "w": self.w,
            "h": self.h,
            "active": self.active,
        }


def values(x: XInput, window: Any, name: str) -> list[int]:
    """A property as a list of numbers, empty when it is not set."""
    found = window.get_full_property(x.display.intern_atom(name), X.AnyPropertyType)
    return [int(value) for value in found.value] if found is not None else []


def text(x: XInput, window: Any) -> str:
    """The window's title."""
    for name in ("_NET_WM_NAME", "WM_NAME"):
        found = window.get_full_property(x.display.intern_atom(name), X.AnyPropertyType)
        if found is not None and found.value:
            raw = found.value
            return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    return ""


def window_manager_works(x: XInput, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Whether a window manager has announced itself and takes a window on and off its list.

    The announcement alone is too early: a window that is mapped while the manager still starts may never be managed.
    """
    if not values(x, x.root, "_NET_SUPPORTING_WM_CHECK"):
        return False
    probe = x.root.create_window(0, 0, 1, 1, 0, x.screen.root_depth)
    probe.set_wm_name("probe")
    probe.map()
    managed = wait_listed(x, probe.id, True, sleep)
    probe.destroy()
    return wait_listed(x, probe.id, False, sleep) and managed


def wait_listed(x: XInput, identifier: int, wanted: bool, sleep: Callable[[float], None]) -> bool:
    """Poll the client list until a window is on it (or off it), for PROBE_ROUNDS rounds."""
    for _ in range(PROBE_ROUNDS):
        if (identifier in values(x, x.root, "_NET_CLIENT_LIST")) is wanted:
            return True
        sleep(PROBE_PAUSE_S)
    return False


def active(x: XInput) -> list[int]:
    """Ids of the active window: one, or none."""
    return [identifier for identifier in values(x, x.root, "_NET_ACTIVE_WINDOW") if identifier]


def listed(x: XInput) -> list[Window]:
    """The client list in stacking order, topmost last."""
    focused = active(x)
    ids = values(x, x.root, "_NET_CLIENT_LIST_STACKING") or values(x, x.root, "_NET_CLIENT_LIST")
    found = []
    for identifier in ids:
        window = x.display.create_resource_object("window", identifier)
        try:
            shape = window.get_geometry()
            place = x.root.translate_coords(window, 0, 0)
            instance, cls = window.get_wm_class() or ("", "")
            pid = values(x, window, "_NET_WM_PID")
            title = text(x, window)
        except (error.BadWindow, error.BadDrawable):
            continue
        corner = (int(place.x), int(place.y))
        found.append(
            Window(
                identifier,
                title,
                cls,
                instance,
                pid[0] if pid else 0,
                corner[0],
                corner[1],
                int(shape.width),
                int(shape.height),
                identifier in focused,
            )
        )
    return found
