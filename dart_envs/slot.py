"""One desktop of a vector environment: its core, its seed, its autoreset, and failures that stay its own.

Role: `Slot`. Rule: `advance` never raises for what happens on a desktop; a reset that failed is an episode
that ended by a fault of the farm, and is tried again by the next step. Non-goals: batching (`vector`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dart_envs.action_spaces import ActionCodec
from dart_envs.core import AsyncDesktopEnv
from dart_envs.errors import ActionError, DartEnvError
from dart_envs.farm.base import FarmLike
from dart_envs.selection import TaskPool, load
from dart_envs.types import EndReason, Gesture, Observation, RgbImage
from dart_envs.views import View

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Transition:
    """What one desktop answers; `element` is of the single observation space. `error`: why a reset failed."""

    index: int
    element: dict[str, Any]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)
    error: DartEnvError | None = None


class Slot:
    """Episodes on one desktop, one after another, with NEXT_STEP autoreset."""

    def __init__(
        self,
        index: int,
        farm: FarmLike,
        tasks: TaskPool,
        core_options: Mapping[str, Any],
        codec: ActionCodec,
        view: View,
    ) -> None:
        self.index = index
        self._view = view
        self._codec = codec
        self._core = AsyncDesktopEnv(farm, **core_options)
        self._tasks = tasks
        self._rng = np.random.default_rng()
        self._last: Observation | None = None
        self._over = True
        self._episode = 0

    @property
    def blank(self) -> bool:
        """True before the first episode."""
        return self._last is None

    @property
    def pointer(self) -> tuple[int, int]:
        """Where the pointer is, screen pixels."""
        return self._core.pointer

    @property
    def screen(self) -> RgbImage | None:
        """A copy of the last screenshot."""
        return None if self._last is None else self._last.screenshot.copy()

    async def reset(self, *, seed: int | None = None, task: Any = None) -> Transition:
        """Start an episode; a failure comes back as a truncated transition with its `error`."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._episode += 1
        try:
            chosen = self._tasks.draw(self._rng) if task is None else load(task)
            self._last, info = await self._core.reset(chosen, seed)
        except DartEnvError as error:
            self._over = True
            log.warning("Desktop %d could not start an episode: %s", self.index, error)
            end = EndReason.FARM_FAULT
            return self._transition(
                0.0, False, True, {"end": end.value, "masked": end.masked, "cause": f"reset: {error}"}, error
            )
        self._over = False
        self._codec.reset()
        return self._transition(0.0, False, False, info)

    async def advance(self, action: Gesture) -> Transition:
        """Perform an action; the one after an episode's end is ignored and starts the next episode.

        An action that the desktop itself refuses changes nothing; `info["action_error"]` says why.
        """
        if self._over:
            return await self.reset()
        try:
            result = await self._core.step(action)
        except ActionError as error:
            return self._transition(0.0, False, False, {"action_error": str(error)})
        self._last = result.observation
        self._over = result.end is not None
        return self._transition(result.reward, result.terminated, result.truncated, dict(result.info))

    async def repeat(self) -> Transition:
        """The last observation again, for desktops that a masked reset leaves alone."""
        return self._transition(0.0, False, False, {})

    async def aclose(self) -> None:
        """Give the desktop back."""
        await self._core.aclose()

    def _transition(
        self, reward: float, terminated: bool, truncated: bool, info: dict[str, Any], error: DartEnvError | None = None
    ) -> Transition:
        if self._last is None:
            width, height = self._core.shape.resolution
            screenshot = np.zeros((height, width, 3), dtype=np.uint8)
            self._last = Observation(screenshot, "")
        tagged = {**info, "episode": self._episode}
        return Transition(self.index, self._view.element(self._last), reward, terminated, truncated, tagged, error)
