"""One desktop of a vector environment: its core, its seed, its autoreset, its deadlines, and failures that stay its own.

Role: `Slot`. Rule: `advance` never raises for what happens on a desktop, and never outlasts its deadline; a reset that failed is an
episode that ended by a fault of the farm, and is tried again by the next step. Non-goals: batching (`vector`).

    NEXT_STEP   the action after an end is ignored and brings the next episode's first observation; that reset begins at the end already
    SAME_STEP   the answer to an episode's last action holds the next episode's first observation; the last one is in `info["final_obs"]`
    DISABLED    an ended episode stays ended until `reset`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from dart_envs.action_spaces import ActionCodec
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.task_sources import TaskSource, load
from dart_envs.errors import ActionError, DartEnvError
from dart_envs.farm.base import FarmLike
from dart_envs.observations.views import View
from dart_envs.types import EndReason, Gesture, Observation, Outcome, RgbImage

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


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """What all desktops of a vector have in common. Deadlines in seconds, None: none of our own."""

    tasks: TaskSource
    view: View
    core_options: Mapping[str, Any]
    autoreset: AutoresetMode = AutoresetMode.NEXT_STEP
    step_deadline_s: float | None = None
    reset_deadline_s: float | None = None


class Slot:
    """Episodes on one desktop, one after another."""

    def __init__(self, index: int, farm: FarmLike, spec: SlotSpec, codec: ActionCodec) -> None:
        self.index = index
        self._spec = spec
        self._codec = codec
        self._core = AsyncDesktopEnv(farm, **spec.core_options)
        self._rng = np.random.default_rng()
        self._last: Observation | None = None
        self._over = True
        self._episode = 0
        self._ahead: asyncio.Task[Transition] | None = None

    @property
    def blank(self) -> bool:
        """True before the first episode."""
        return self._last is None

    @property
    def over(self) -> bool:
        """True where no episode runs, or the next one has begun and was not shown yet."""
        return self._over or self._ahead is not None

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
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if seed is None and task is None:
                return await ahead
            await asyncio.wait([ahead])
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return await self._begin(seed, task)

    async def _begin(self, seed: int | None = None, task: Any = None) -> Transition:
        self._episode += 1
        try:
            chosen = self._spec.tasks.draw(self._rng) if task is None else load(task)
            async with asyncio.timeout(self._spec.reset_deadline_s):
                self._last, info = await self._core.reset(chosen, seed)
        except TimeoutError:
            return self._failed(DartEnvError(f"The reset took more than {self._spec.reset_deadline_s:g} s."))
        except DartEnvError as error:
            return self._failed(error)
        self._over = False
        self._codec.reset()
        return self._transition(0.0, False, False, info)

    def _failed(self, error: DartEnvError) -> Transition:
        """A reset that brought no episode."""
        self._over = True
        log.warning("Desktop %d could not start an episode: %s", self.index, error)
        end = EndReason.FARM_FAULT
        info = {"end": end.value, "masked": end.masked, "cause": f"reset: {error}"}
        return self._transition(0.0, False, True, info, error)

    async def advance(self, action: Gesture) -> Transition:
        """Perform an action; what an ended episode makes of it, the module says.

        An action that the desktop itself refuses changes nothing; `info["action_error"]` says why. One that is not done within the
        deadline ends the episode as a fault of the farm, and the desktop is replaced.
        """
        if self._over or self._ahead is not None:
            return await self.reset()
        try:
            async with asyncio.timeout(self._spec.step_deadline_s):
                result = await self._core.step(action)
        except ActionError as error:
            return self._transition(0.0, False, False, {"action_error": str(error)})
        except TimeoutError:
            end = EndReason.FARM_FAULT
            cause = f"deadline: the step took more than {self._spec.step_deadline_s:g} s"
            return await self._ended(
                self._transition(0.0, False, True, {"end": end.value, "masked": end.masked, "cause": cause})
            )
        self._last = result.observation
        transition = self._transition(result.reward, result.terminated, result.truncated, dict(result.info))
        return transition if result.end is None else await self._ended(transition)

    async def _ended(self, last: Transition) -> Transition:
        """What an episode's last action is answered with, and the begin of the next one where the mode wants it."""
        self._over = True
        if self._spec.autoreset is AutoresetMode.NEXT_STEP:
            self._ahead = asyncio.create_task(self._begin(), name=f"dart-reset-ahead-{self.index}")
        if self._spec.autoreset is not AutoresetMode.SAME_STEP:
            return last
        first = await self._begin()
        info = {**first.info, "final_obs": last.element, "final_info": last.info}
        return replace(last, element=first.element, info=info, error=first.error)

    async def evaluate(self) -> Outcome:
        """The verdict on the running episode's desktop as it is now, made on a copy. Errors as of `AsyncDesktopEnv.evaluate`."""
        if self.over:
            raise DartEnvError("No episode is running; its next observation has not been shown yet.")
        return await self._core.evaluate()

    async def repeat(self) -> Transition:
        """The last observation again, for desktops that a masked reset leaves alone."""
        return self._transition(0.0, False, False, {})

    async def aclose(self) -> None:
        """Give the desktop back."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead])
        await self._core.aclose()

    def _transition(
        self, reward: float, terminated: bool, truncated: bool, info: dict[str, Any], error: DartEnvError | None = None
    ) -> Transition:
        if self._last is None:
            width, height = self._core.shape.resolution
            self._last = Observation(np.zeros((height, width, 3), dtype=np.uint8), "")
        tagged = {**info, "episode_number": self._episode}
        return Transition(self.index, self._spec.view.element(self._last), reward, terminated, truncated, tagged, error)
