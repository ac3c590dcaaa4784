"""`gym.make("DartOSWorld-v0")`: tasks on a live desktop as a Gymnasium environment.

This module has `DartOSWorldEnv`, the synchronous form of `AsyncDesktopEnv`. Nothing is leased before the first
`reset`, and everything is given back by `close`, by garbage collection and at interpreter exit. Returned arrays are
fresh memory, and results are deterministic except for pixels. It does not run several desktops at once
(`dart_envs.envs.vector`) and does not read model text (`dart_agent`).
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, ClassVar, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from dart_envs.action_spaces import make_codec
from dart_envs.envs.config import EnvConfig, EnvOptions
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.task_sources import TaskSelection, load_task, select_tasks
from dart_envs.errors import ActionError, DartEnvError, FarmError
from dart_envs.farm.base import FarmLike, LeaseLike
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.live import LiveWindow, SupportsLiveView
from dart_envs.farm.loop import EventLoopThread
from dart_envs.observations.views import ObservationEncoder
from dart_envs.types import Action, DecodedAction, Outcome, RgbImage, TaskLike
from dart_server.wire import DesktopShape

log = logging.getLogger(__name__)

RESET_OPTIONS = ("task",)


class DartOSWorldEnv(gym.Env[Any, Any]):
    """Tasks on one desktop, one episode after another.

    An action is an element of `action_space`, or a `dart_envs.Action` in every action space. The reward is 0.0 until
    the evaluator has run, which happens once, at DONE, at FAIL or at the last step. `info["end"]` says why an episode
    ended; where `info["masked"]` is true there is no verdict to learn from.

    Args:
        task: What episodes play, as `EnvConfig.task`; None keeps that of `config`.
        config: All options in one object; None is the defaults.
        render_mode: With `rgb_array`, `render()` returns the last screenshot. With `human`, the first `reset` opens the
            farm's live view of the desktop in a browser, or prints its address where there is no display.
        **options: Fields of `EnvConfig`, which replace those of `config`.

    Attributes:
        config: The options in force.
        tasks: Where episodes draw their tasks from.
        shape: The desktop to lease.

    Raises:
        ValueError: If an option is unknown or has a value that is not allowed.
        TaskError: If the selection names no task.
        FarmError: If `farm` is text but not the address of a farm.
        EvaluatorError: If there is no such scorer.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "human"], "render_fps": 2}  # type: ignore[misc]

    def __init__(
        self,
        task: TaskSelection = None,
        *,
        config: EnvConfig | None = None,
        render_mode: str | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode is None, rgb_array or human, not {render_mode!r}.")
        self.render_mode = render_mode
        chosen = options if task is None else {"task": task, **options}
        self.config = EnvConfig.from_options(config, chosen, ("config", "render_mode"))
        self.tasks = select_tasks(self.config.task, self.config.split)
        self.shape = self.config.desktop_shape(self.tasks.shape(self.config.image))
        self._codec = make_codec(self.config.action_space, self.shape.resolution)
        self.action_space = self._codec.space
        self._observation_encoder = ObservationEncoder(self.config.observation, self.shape.resolution)
        self.observation_space = self._observation_encoder.space
        self._session: _EnvSession | None = None
        self._screen: RgbImage | None = None
        self._warned = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seeds the draw of tasks; None goes on with the generator's state.
            options: `{"task": task}` picks the task, in any form of `EnvConfig.task` that names one.

        Returns:
            The first observation (an element of `observation_space`), and `info`.

        Raises:
            ValueError: If an option is unknown.
            TaskError: If the task cannot be loaded or something that it needs is missing.
            SetupError: If the setup of the task failed.
            FarmError: If the farm gave no desktop.
            DesktopError: If no desktop could be brought to the start of the task.
        """
        super().reset(seed=seed)
        check_reset_options(options, RESET_OPTIONS)
        chosen = (options or {}).get("task")
        task = self.tasks.sample(self.np_random) if chosen is None else load_task(chosen)
        held = self._open_session()
        if (nsteps := held.core.unfinished_steps) and not self._warned:
            self._warned = True
            warn_of_unfinished_episode(nsteps)
        step_limit = outer_time_limit(sys._getframe(1))
        observation, info = held.loop.run(held.core.reset(task, seed, step_limit=step_limit))
        if self.render_mode == "human":
            held.loop.run(held.show())
        self._codec.reset()
        self._observation_encoder.reset()
        self._screen = observation.screenshot
        return self._observation_encoder.encode(observation), dict(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Perform one action.

        Args:
            action: An element of `action_space`, an `Action`, or a `DecodedAction`.

        Returns:
            Observation, reward, terminated, truncated and info, as in Gymnasium.

        Raises:
            ActionError: If the action is outside the action space and `on_action_error` is `raise`; the episode then goes on.
            DartEnvError: If no episode is running, or this process is a fork of the one that runs it.
        """
        if self._session is None:
            raise DartEnvError("No episode is running; call reset() first.")
        last = is_last_step(sys._getframe(1))
        reward = 0.0
        error_info: dict[str, Any] = {}
        try:
            decoded = self._codec.decode(action, self._session.core.pointer)
            self._codec.commit()
            result = self._session.loop.run(self._session.core.step(decoded, last=last))
        except ActionError as error:
            if self.config.on_action_error == "raise":
                raise
            reward, error_info = self.config.rejected_action(error)
            result = self._session.loop.run(self._session.core.step(DecodedAction(), last=last))
        self._screen = result.observation.screenshot
        element = self._observation_encoder.encode(result.observation)
        info = dict(result.info) | error_info
        return element, float(result.reward) + reward, result.terminated, result.truncated, info

    def evaluate(self) -> Outcome:
        """Judge the desktop as it is now, on a copy, so that the episode goes on: this gives dense rewards.

        Returns:
            The verdict of the evaluator.

        Raises:
            DartEnvError: As `AsyncDesktopEnv.evaluate`.
        """
        if self._session is None:
            raise DartEnvError("No episode is running; call reset() first.")
        return self._session.loop.run(self._session.core.evaluate())

    def oracle(self, step: int = 0) -> list[Action | DecodedAction]:
        """Return the running task's solution from one action on, for demonstrations and tests.

        Perform the first action, then call this again with `step + 1`.

        Args:
            step: Number of actions of the solution that were performed already.

        Returns:
            The next actions, as far as the screen shows their targets now; empty when the solution is complete.

        Raises:
            DartEnvError: If no episode is running.
        """
        held, task = self._session, self.current_task
        if held is None or task is None or held.core.lease is None:
            raise DartEnvError("No episode is running; call reset() first.")
        return list(held.loop.run(_oracle(task, held.core.lease, step)))

    def render(self) -> NDArray[np.uint8] | None:
        """Return the last screenshot; no new one is taken.

        Returns:
            uint8 `[H, W, 3]`, black before the first reset; None unless `render_mode` is `rgb_array`.
        """
        if self.render_mode != "rgb_array":
            return None
        if self._screen is None:
            width, height = self.shape.resolution
            return np.zeros((height, width, 3), dtype=np.uint8)
        return self._screen.copy()

    @property
    def current_task(self) -> TaskLike | None:
        """The task of the running or last episode."""
        return None if self._session is None else self._session.core.task

    @property
    def timings_s(self) -> dict[str, float]:
        """Durations of the parts of the last `reset` or `step`, in seconds."""
        return {} if self._session is None else dict(self._session.core.timings_s)

    def close(self) -> None:
        """Give the desktop back and disconnect. Idempotent; a later `reset` leases a desktop again."""
        held, self._session = self._session, None
        if held is not None:
            held.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._session is not None:
            raise TypeError(
                "A running environment cannot be pickled, because its desktop is leased by this process; "
                "pickle it before reset() or after close()."
            )
        return self.__dict__

    def _open_session(self) -> _EnvSession:
        if self._session is None or self._session.pid != os.getpid():
            self._session = _EnvSession(self.config, self.shape)
            weakref.finalize(self, _EnvSession.close_quietly, self._session)
        return self._session


class _EnvSession:
    """The connection and the leased desktop of an env, on the event loop of the process."""

    def __init__(self, config: EnvConfig, shape: DesktopShape) -> None:
        self.pid = os.getpid()
        self.loop = EventLoopThread.shared()
        self._own_farm: FarmLike | None = None
        farm = config.farm
        if farm is None or isinstance(farm, str):
            farm = self._own_farm = self.loop.run(AsyncFarmClient.connect(farm))
        self.core = AsyncDesktopEnv(farm, shape=shape, config=config)
        self._window: LiveWindow | None = None
        self._closed = False

    async def show(self) -> None:
        """Show the leased desktop to a person, once for each lease; raise `FarmError` where the farm has no live view."""
        lease = self.core.lease
        if not isinstance(lease, SupportsLiveView):
            raise FarmError("This farm has no live view; use render_mode rgb_array.", code="capability_missing")
        self._window = self._window or LiveWindow()
        await self._window.show(lease)

    def close(self) -> None:
        """Give the desktop back, once."""
        if not self._closed and self.pid == os.getpid():
            self._closed = True
            self.loop.run(self._aclose())

    def close_quietly(self) -> None:
        """Close from the garbage collector or at interpreter exit, where no caller can catch an error."""
        if self._closed or self.pid != os.getpid():
            return
        try:
            if self.loop.is_current():
                self._closed = True
                self.loop.submit(self._aclose())
            else:
                self.close()
        except (DartEnvError, RuntimeError) as error:
            log.warning("A desktop could not be given back and its lease will expire: %s", error)

    async def _aclose(self) -> None:
        await self.core.aclose()
        if self._window is not None:
            await self._window.aclose()
        if self._own_farm is not None:
            await self._own_farm.aclose()


def warn_of_unfinished_episode(nsteps: int) -> None:
    """Say that an episode was given up before its end, so that nobody takes its rewards for a verdict.

    Args:
        nsteps: Steps of the episode.
    """
    log.warning(
        "An episode was reset after %d steps, before its end, so it was not judged and its reward is 0. If a limit of steps "
        "outside the environment did this, pass max_steps=%d to the environment instead.",
        nsteps,
        nsteps,
    )


def outer_time_limit(frame: FrameType | None) -> int | None:
    """Find the limit of steps of the `TimeLimit` wrappers that call a `reset`, also those that `gym.make` adds.

    Gymnasium's wrapper truncates an episode without a word to the environment, which then could not judge it. The
    environment ends the episode itself at the same step, with a verdict.

    Args:
        frame: The frame that called `reset`.

    Returns:
        The lowest limit; None where there is none.
    """
    return min((limit._max_episode_steps for limit in _callers(frame, TimeLimit.reset.__code__)), default=None)


def is_last_step(frame: FrameType | None) -> bool | None:
    """Find out whether a `TimeLimit` wrapper that calls a `step` ends the episode after it.

    The wrapper is asked at each step, because a wrapper between it and the environment may repeat or skip steps.

    Args:
        frame: The frame that called `step`.

    Returns:
        None where no such wrapper calls.
    """
    limits = _callers(frame, TimeLimit.step.__code__)
    return any(limit._elapsed_steps + 1 >= limit._max_episode_steps for limit in limits) if limits else None


def _callers(frame: FrameType | None, method: CodeType) -> list[Any]:
    """Return the objects whose method is on the call stack, the innermost first."""
    found = []
    while frame is not None:
        if frame.f_code is method:
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found


def check_reset_options(options: Mapping[str, Any] | None, known: Sequence[str]) -> None:
    """Refuse options of `reset` that would be ignored.

    Args:
        options: The options that were given.
        known: Names of the options that exist.

    Raises:
        ValueError: If an option is unknown.
    """
    unknown = sorted(set(options or {}) - set(known))
    if unknown:
        raise ValueError(f"reset has no option {', '.join(unknown)}; its options are {', '.join(known)}.")


async def _oracle(task: TaskLike, lease: LeaseLike, step: int) -> list[Action | DecodedAction]:
    return list(await task.oracle(lease, step=step))
