"""Demonstrations on disk, made up: screens of noise with one named button, which is clicked, and the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dart_envs.demos.store import Demonstration, DemoWriter
from dart_envs.types import Action, ActionType, RgbImage
from dart_server.wire import A11yElement, DesktopShape

SIZE = (256, 160)
TRAIN_TASKS = ("basics/press_nth/0000", "basics/press_nth/0003", "basics/press_nth/0005", "basics/press_nth/0008")
TEST_TASK = "basics/press_nth/0006"


def noise(seed: int) -> RgbImage:
    return np.random.default_rng(seed).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)


def write_demonstration(
    folder: Path,
    task_id: str = TRAIN_TASKS[0],
    *,
    seed: int = 0,
    clicks: int = 2,
    end: str | None = "done",
    reward: float | None = 1.0,
    says_done: bool = True,
    **head: Any,
) -> Path:
    """A demonstration that clicks the one button of the dialog on each of `clicks` screens; says_done: the end is a step of its own."""
    told = {
        "task_id": task_id, "content_hash": "c0ffee", "instruction": f"Press the buttons of {seed}.", "recorded_by": "human",
        "shape": DesktopShape(resolution=SIZE), "image_digest": "sha256:" + "0" * 64, "started_at": "2026-01-01T00:00:00+00:00",
        "max_steps": 5,
    }  # fmt: skip
    writer = DemoWriter(folder, Demonstration(**(told | head)))
    for index in range(clicks):
        x, y = 40 + 30 * index, 60
        button = A11yElement(role="push button", name=f"Button {index}", x=x - 20, y=y - 10, w=40, h=20)
        dialog = A11yElement(role="dialog", name="Question", x=0, y=0, w=SIZE[0], h=SIZE[1])
        writer.add(
            Action(ActionType.CLICK, x=x, y=y), (), before=noise(10 * seed + index), after=noise(10 * seed + index + 1),
            at_s=float(index), duration_s=0.1, elements=[dialog, button],
        )  # fmt: skip
    if says_done:
        last = noise(10 * seed + clicks)
        writer.add(Action(ActionType.DONE), (), before=last, after=last, at_s=9.0, duration_s=0.0)
    if end is not None:
        writer.finish(end, reward, duration_s=10.0, cause=None, outcome={})
    return folder
