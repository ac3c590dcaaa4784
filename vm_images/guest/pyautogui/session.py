"""The X connection of this process, and the values and errors that pyautogui's functions answer with.

Role: one connection, made with the first call. Rule: a program that only imports pyautogui needs no display.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from dart_guest.xinput import XInput


class PyAutoGUIException(Exception):
    """A call that cannot be performed."""


class FailSafeException(PyAutoGUIException):
    """The pointer stands in a corner of the screen and FAILSAFE is on."""


class Point(NamedTuple):
    """A place on the screen, in pixels."""

    x: int
    y: int


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


class Connection:
    """The X connection, made with the first call."""

    x: XInput | None = None


def x_input() -> XInput:
    """The connection that all calls share."""
    if Connection.x is None:
        Connection.x = XInput(os.environ.get("DISPLAY", ":0"))
    return Connection.x
