"""Annotated screens written by tests: the dialog of the task `choose_nth`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement
from dart_train.warmup.screens import AnnotatedScreen

POINTS = PointMap((256, 160), (640, 400))


def element(role: str, name: str, x: int, y: int, w: int, h: int) -> A11yElement:
    return A11yElement(role=role, name=name, x=x, y=y, w=w, h=h)


def list_dialog(x: int = 100, y: int = 60) -> tuple[A11yElement, ...]:
    rows = [
        element("table cell", name, x + 10, y + 40 + 32 * i, 220, 30)
        for i, name in enumerate(["Moon", "Tiger", "Chair"])
    ]
    buttons = [
        element("push button", "Cancel", x + 8, y + 150, 115, 36),
        element("push button", "OK", x + 127, y + 150, 115, 36),
    ]
    return (element("dialog", "List", x, y, 250, 200), *rows, *buttons)


def screen_of(**changes: Any) -> AnnotatedScreen:
    values: dict[str, Any] = {
        "image": Path("none.png"),
        "task_id": "basics/choose_nth/0001",
        "instruction": "Choose the last row, then press OK.",
        "step": 1,
        "elements": list_dialog(),
        "action": Action(ActionType.CLICK, x=240, y=225),
        "previous": Action(ActionType.CLICK, x=215, y=179),
    }
    return AnnotatedScreen(**(values | changes))
