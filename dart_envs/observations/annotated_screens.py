"""Annotated screens of demonstrations, from which a warm start learns.

`write_annotated_screen` stores the full screen before a step, what the accessibility tree says about it, and what was
done on it. A screen is named by its content: the same screen is stored once, with the action that was done on it last.
A file appears complete or not at all. Reading them is in `dart_train.warmup`; demonstrations are made in
`dart_agent.rollouts.worker` and `dart_envs.demos`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dart_envs.actions import action_to_dict
from dart_envs.hashing import image_sha256
from dart_envs.observations.transforms import encode_png
from dart_envs.types import Action, RgbImage
from dart_server.wire import A11yElement


def write_annotated_screen(
    directory: Path,
    screen: RgbImage,
    *,
    task_id: str,
    instruction: str,
    step: int,
    elements: Sequence[A11yElement],
    action: Action | None,
) -> str:
    """Write `<sha256>.png` and `<sha256>.json` beside it.

    Args:
        directory: Where the files go.
        screen: uint8 `[H, W, 3]`.
        task_id: Id of the task.
        instruction: What the demonstrator was asked to do.
        step: Index of the step.
        elements: The accessibility tree; boxes in pixels of `screen`.
        action: What was done on the screen; None where nothing was.

    Returns:
        The SHA-256 of the screen (`dart_envs.hashing.image_sha256`).
    """
    sha256 = write_screenshot(directory, screen)
    height, width = screen.shape[:2]
    record: dict[str, Any] = {
        "task_id": task_id,
        "instruction": instruction,
        "step": step,
        "resolution": [width, height],
        "elements": [element.model_dump(mode="json") for element in elements],
        "action": None if action is None else action_to_dict(action),
    }
    write_file_atomically(directory / f"{sha256}.json", json.dumps(record, ensure_ascii=False).encode())
    return sha256


def write_screenshot(directory: Path, screen: RgbImage) -> str:
    """Write `<sha256>.png` alone.

    Args:
        directory: Where the file goes.
        screen: uint8 `[H, W, 3]`.

    Returns:
        The SHA-256 of the screen (`dart_envs.hashing.image_sha256`).
    """
    sha256 = image_sha256(screen)
    path = directory / f"{sha256}.png"
    if not path.exists():
        write_file_atomically(path, encode_png(screen))
    return sha256


def write_file_atomically(path: Path, content: bytes) -> None:
    """Write a file that no reader sees half written; several threads and processes may write the same one.

    Args:
        path: Path of the file.
        content: The content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    temporary.write_bytes(content)
    temporary.replace(path)
