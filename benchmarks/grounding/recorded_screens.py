"""Screens of live desktops: the first screen of many tasks with its accessibility tree, and files of images and samples.

Role: `record_screens` shows tasks on desktops of a farm and keeps what they show; `write_images` writes recorded screens of any kind as
images with samples. Rule: a task that is recorded is not shown again, so that
an interrupted recording goes on; nothing is done on the desktops. It asks the farm that `DART_FARM_URL` names, or one of its own.
Non-goals: questions (`benchmarks.grounding.basics_source`).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PIL import Image

from dart_agent.grounding.samples import GroundingSample, write_samples
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.farm import AsyncFarmClient
from dart_envs.observations.annotated_screens import write_annotated_screen
from dart_envs.tasks import load
from dart_envs.types import RgbImage
from dart_server.wire import DesktopShape

Screen = TypeVar("Screen")

DESKTOPS = 2
"""Desktops at a time."""


@dataclass(frozen=True, slots=True)
class ShownTasks:
    """Tasks that are shown on one kind of desktop.

    Attributes:
        folder: Where their screens are kept.
        shape: The desktop.
        task_ids: The tasks.
    """

    folder: Path
    shape: DesktopShape
    task_ids: tuple[str, ...]

    def missing(self) -> list[str]:
        """Name the tasks that are not recorded."""
        done = {json.loads(file.read_text(encoding="utf-8"))["task_id"] for file in self.folder.glob("*.json")}
        return [task_id for task_id in self.task_ids if task_id not in done]


async def record_screens(shown: Sequence[ShownTasks]) -> None:
    """Record the first screen of tasks.

    Args:
        shown: The tasks by kind of desktop.

    Raises:
        DartEnvError: The farm gives no desktop, or the setup of a task fails.
    """
    waiting = [(one, deque(one.missing())) for one in shown]
    if not any(task_ids for _, task_ids in waiting):
        return
    async with await AsyncFarmClient.connect() as farm:
        for one, task_ids in waiting:
            one.folder.mkdir(parents=True, exist_ok=True)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(DESKTOPS, len(task_ids))):
                        group.create_task(_record(farm, one, task_ids))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None


async def _record(farm: AsyncFarmClient, shown: ShownTasks, waiting: deque[str]) -> None:
    """Show tasks on one desktop until none waits."""
    async with AsyncDesktopEnv(
        farm, shape=shown.shape, observation=["screenshot", "a11y"], labels={"purpose": "grounding"}
    ) as env:
        while waiting:
            task_id = waiting.popleft()
            observation, _ = await env.reset(load(task_id))
            if observation.a11y is None:
                raise RuntimeError(f"the desktop told no accessibility tree of {task_id}")
            await asyncio.to_thread(
                write_annotated_screen,
                shown.folder,
                observation.screenshot,
                task_id=task_id,
                instruction=observation.instruction,
                step=0,
                elements=observation.a11y,
                action=None,
            )


def write_images(
    out: Path,
    name: str,
    count: int,
    screens: Sequence[Screen],
    make: Callable[[Screen, str, str], tuple[RgbImage, list[GroundingSample]]],
) -> Path:
    """Write images that are made of recorded screens, with their samples.

    Args:
        out: Folder; images go to a folder of its own in it.
        name: Name of the set.
        count: How many images.
        screens: The screens; each is used as often as others, and the images of one follow each other.
        make: From a screen, the image's file and the id of the screen to the image, uint8 [H, W, 3], and its samples.

    Returns:
        The file of samples.
    """
    (out / name).mkdir(parents=True, exist_ok=True)
    samples: list[GroundingSample] = []
    for number in range(count):
        file = f"{name}/{number}.png"
        image, asked = make(screens[number * len(screens) // count], file, f"{name}/{number}")
        Image.fromarray(image).save(out / file, compress_level=1)
        samples += asked
    path = out / f"{name}.jsonl"
    write_samples(path, samples)
    return path
