"""Annotated screens of demonstrations, from which a warm start learns.

`write_annotated_screen` stores the full screen before a step, what the accessibility tree says about it, and what was
done on it. An image is named by its content and stored once. What was done on it is named by the task and the step,
too: the screen after an action that changes nothing looks like the screen before it.
A file appears complete or not at all. Reading them is in `dart_train.warmup`; demonstrations are made in
`dart_agent.rollouts.worker` and `dart_envs.demos`.
"""

from __future__ import annotations

import hashlib
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
    """Write `<sha256>.png`, and beside it `<sha256>-<step>.json`, where `<step>` stands for the task and the number of the step.

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
    of_step = hashlib.sha256(f"{task_id}\0{step}".encode()).hexdigest()[:16]
    write_file_atomically(directory / f"{sha256}-{of_step}.json", json.dumps(record, ensure_ascii=False).encode())
    return sha256


def image_of(annotation: Path) -> Path:
    """Name the image of an annotation.

    Args:
        annotation: A file that `write_annotated_screen` wrote; one of an earlier version has the name of its image.

    Returns:
        The path of the image.
    """
    return annotation.with_name(f"{annotation.stem.partition('-')[0]}.png")


def annotations_of(image: Path) -> list[Path]:
    """Find the annotations of an image.

    Args:
        image: A file that `write_screenshot` wrote.

    Returns:
        Their paths in the order of their names; none where the accessibility tree was not read.
    """
    return sorted(image.parent.glob(f"{image.stem}*.json"))


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
