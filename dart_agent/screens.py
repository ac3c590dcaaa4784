"""Annotated screens of demonstrations: the warm start's extra supervision.

Role: `ScreenWriter` keeps, per step of a demonstration, the full screen and what the accessibility tree said about it. Rule: demonstrations
only; rollouts and evaluation never come here. A screen is named by its content: the same screen is kept once, with what was done on it
last. Non-goals: reading them (`dart_train.warmup`).
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from dart_agent.hashing import image_sha256
from dart_agent.runner import Seen
from dart_envs.actions import action_to_dict
from dart_envs.types import Observation


class ScreenWriter:
    """Writes `<sha256>.png` (the screen before the step) and `<sha256>.json` beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    async def write(self, task_id: str, seen: Seen) -> None:
        """Keep one step. Raises ValueError when the observation carries no accessibility tree."""
        await asyncio.to_thread(self._write, task_id, seen)

    def _write(self, task_id: str, seen: Seen) -> None:
        observation = seen.observation
        if observation.a11y is None:
            raise ValueError("an annotated screen needs the accessibility tree in the observation")
        sha256 = image_sha256(observation.screenshot)
        height, width = observation.screenshot.shape[:2]
        record: dict[str, Any] = {
            "task_id": task_id,
            "instruction": observation.instruction,
            "step": seen.index,
            "resolution": [width, height],
            "elements": [element.model_dump(mode="json") for element in observation.a11y],
            "action": None if seen.action is None else action_to_dict(seen.action),
        }
        picture = self.directory / f"{sha256}.png"
        if not picture.exists():
            self._replace(picture, _png(observation))
        self._replace(self.directory / f"{sha256}.json", json.dumps(record, ensure_ascii=False).encode())

    def _replace(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(content)
        temporary.replace(path)


def _png(observation: Observation) -> bytes:
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(observation.screenshot).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
