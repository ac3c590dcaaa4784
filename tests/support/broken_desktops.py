"""What tests of faults share: desktops with small limits, an episode on one, and a task that is solved from the start.

Role: `limited_farm`, `episodes`, `SolvedTask`. Rule: the task's reward would be 1 if only the desktop were well, so that breaking it would
pay if it could. Non-goals: which faults there are.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from served_farm import served_farm

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.types import Action, ActionType, Desktop, EndReason, Outcome
from dart_server.wire import DesktopShape

SHAPE = DesktopShape(resolution=(640, 400))
MOVE = Action(ActionType.MOVE, x=9, y=9)
DONE = Action(ActionType.DONE)
NOTE = "/home/user/note.txt"


class SolvedTask:
    """Always solved."""

    id = "faults/note/0000"
    instruction = "Do not break anything."
    max_steps = 4
    publish_setup = False

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        return "0" * 64

    async def prepare(self, desktop: Desktop) -> None:
        await desktop.write_file(NOTE, b"solved")

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None, **_options: Any) -> Outcome:
        return Outcome(float(await desktop.read_file(NOTE) == b"solved"))

    async def oracle(self, desktop: Desktop, *, step: int = 0) -> list[Action]:
        return [DONE][step:]


@contextmanager
def limited_farm(place: Path, *, memory_mib: int, disk_mib: int, pids: int) -> Iterator[str]:
    """The URL of a farm for two desktops with these limits."""
    limits = {
        "DART_SNAPSHOT_DIR": f"/dev/shm/{place.name}-{os.getpid()}",  # in memory: only there the disk has a limit
        "DART_DESKTOP_MEMORY_MIB": str(memory_mib),
        "DART_DESKTOP_DISK_MIB": str(disk_mib),
        "DART_DESKTOP_PIDS": str(pids),
    }
    with served_farm(place, max_desktops=2, environment=limits) as url:
        yield url


@asynccontextmanager
async def episodes(url: str, **options: Any) -> AsyncIterator[AsyncDesktopEnv]:
    """Episodes on desktops of a farm, with options of the environment."""
    async with await AsyncFarmClient.connect(url) as farm, AsyncDesktopEnv(farm, shape=SHAPE, **options) as env:
        yield env
