"""The window manager's list of windows.

Role: read EWMH properties of the root window and its clients.
Rule: reads only; a window that vanishes meanwhile is left out. Called on the step thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from Xlib import X, error

from dart_guest.xinput import XInput


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


def window_manager_answers(x: XInput) -> bool:
    """Whether a window manager has announced itself (EWMH's supporting window)."""
    return bool(values(x, x.root, "_NET_SUPPORTING_WM_CHECK"))


def listed(x: XInput) -> list[Window]:
    """The client list in stacking order, topmost last."""
    active = values(x, x.root, "_NET_ACTIVE_WINDOW")
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
                identifier in active,
            )
        )
    return found
