"""Annotated screens of demonstrations: what a warm start learns from.

Role: `write_annotated_screen` keeps the full screen before a step, what the accessibility tree said about it, and what was done on it.
Rule: a screen is named by its content: the same screen is kept once, with what was done on it last; a file appears whole or not at all.
Non-goals: reading them (`dart_train.warmup`), who demonstrates (`dart_agent.rollouts.worker`, `dart_envs.demos`).
"""

from __future__ import annotations

import json
import os
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
    """Keep `<sha256>.png` and `<sha256>.json` beside it; the sha256. screen: uint8 [H, W, 3]; boxes of elements in its pixels."""
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
    """Keep `<sha256>.png` alone; the sha256."""
    sha256 = image_sha256(screen)
    path = directory / f"{sha256}.png"
    if not path.exists():
        write_file_atomically(path, encode_png(screen))
    return sha256


def write_file_atomically(path: Path, content: bytes) -> None:
    """Write a file that is never seen half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
