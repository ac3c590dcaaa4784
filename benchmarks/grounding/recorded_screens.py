"""Screens of live desktops: the first screen of many tasks, with its accessibility tree.

Role: `record_screens` shows tasks on desktops of a farm and keeps what they show. Rule: a task that is recorded is not shown again, so that
an interrupted recording goes on; nothing is done on the desktops. It asks the farm that `DART_FARM_URL` names, or one of its own.
Non-goals: questions (`benchmarks.grounding.basics_source`).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.farm import AsyncFarmClient
from dart_envs.observations.annotated_screens import write_annotated_screen
from dart_envs.tasks import load
from dart_server.wire import DesktopShape

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
