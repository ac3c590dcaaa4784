"""One desktop of a vector environment, with its own seed, autoreset, deadlines and failures.

`SubEnv.step` does not raise for what happens on a desktop; who owns a step that misses its deadline, the core decides. A reset that
failed is an episode that ended by a fault of the farm, and the next step tries it again. The functions
at the end convert between batches and single desktops. Running all desktops is in `dart_envs.envs.vector`.

    NEXT_STEP   the action after an end is ignored and returns the next episode's first observation; that reset begins at the end already
    SAME_STEP   the answer to an episode's last action holds the next episode's first observation; the last one is in `info["final_obs"]`
    DISABLED    an ended episode stays ended until `reset`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from dart_envs.action_spaces import ActionCodec
from dart_envs.envs.config import EnvConfig
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.task_sources import TaskSource, load_task
from dart_envs.errors import ActionError, DartEnvError
from dart_envs.farm.base import FarmLike
from dart_envs.observations.views import ObservationEncoder
from dart_envs.types import DecodedAction, EndReason, Observation, Outcome, RgbImage, StepResult
from dart_server.wire import DesktopShape

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Transition:
    """The answer of one desktop.

    Attributes:
        index: Index of the desktop in the vector.
        element: An element of the single observation space.
        reward: Reward of the step.
        terminated: Whether the task ended the episode.
        truncated: Whether a limit or a fault ended the episode.
        info: Further results of the step.
        error: Why a reset failed; None otherwise.
    """

    index: int
    element: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)
    error: DartEnvError | None = None


@dataclass(frozen=True, slots=True)
class SubEnvSpec:
    """What all desktops of a vector have in common.

    Attributes:
        tasks: Where episodes draw their tasks from.
        shape: The desktop to lease.
        config: How episodes run.
        autoreset: What happens after the end of an episode.
        step_deadline_s: Seconds after which a step is given up, as `AsyncDesktopEnv.step`; None sets no deadline.
        reset_deadline_s: Seconds after which a reset is given up; None sets no deadline.
    """

    tasks: TaskSource
    shape: DesktopShape
    config: EnvConfig
    autoreset: AutoresetMode = AutoresetMode.NEXT_STEP
    step_deadline_s: float | None = None
    reset_deadline_s: float | None = None


class SubEnv:
    """One episode after another on one desktop.

    Args:
        index: Index of the desktop in the vector.
        farm: Where the desktop is leased.
        spec: What all desktops of the vector have in common.
        codec: The desktop's own action codec.
    """

    def __init__(self, index: int, farm: FarmLike, spec: SubEnvSpec, codec: ActionCodec) -> None:
        self.index = index
        self._spec = spec
        self._codec = codec
        self._observation_encoder = ObservationEncoder(spec.config.observation, spec.shape.resolution)
        self._core = AsyncDesktopEnv(farm, shape=spec.shape, config=spec.config)
        self._rng = np.random.default_rng()
        self._last_observation: Observation | None = None
        self._episode_over = True
        self._episode = 0
        self._pending_reset: asyncio.Task[Transition] | None = None
        self._verdict: Outcome | DartEnvError | None = None

    @property
    def never_reset(self) -> bool:
        """True before the first episode."""
        return self._last_observation is None

    @property
    def episode_over(self) -> bool:
        """True where no episode runs, or where the next one has begun and its first observation was not returned yet."""
        return self._episode_over or self._pending_reset is not None

    @property
    def unfinished_steps(self) -> int:
        """Number of steps of an episode that is running; 0 where none is."""
        return 0 if self.episode_over else self._core.unfinished_steps

    @property
    def pointer(self) -> tuple[int, int]:
        """Pointer position, in screen pixels."""
        return self._core.pointer

    @property
    def screen(self) -> RgbImage | None:
        """A copy of the last screenshot."""
        return None if self._last_observation is None else self._last_observation.screenshot.copy()

    async def reset(self, *, seed: int | None = None, task: Any = None) -> Transition:
        """Start an episode; a failure is returned as a truncated transition with its `error`.

        Args:
            seed: Seeds the draw of tasks; None goes on with the generator's state.
            task: The task to play; None draws one.

        Returns:
            The first observation, with a reward of 0.0.
        """
        ahead, self._pending_reset, self._verdict = self._pending_reset, None, None
        if ahead is not None:
            if seed is None and task is None:
                return await ahead
            await asyncio.wait([ahead])
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return await self._start_episode(seed, task)

    async def _start_episode(self, seed: int | None = None, task: Any = None) -> Transition:
        self._episode += 1
        try:
            chosen = self._spec.tasks.sample(self._rng) if task is None else load_task(task)
            async with asyncio.timeout(self._spec.reset_deadline_s):
                self._last_observation, info = await self._core.reset(chosen, seed)
        except TimeoutError:
            return self._reset_failed(DartEnvError(f"The reset took more than {self._spec.reset_deadline_s:g} s."))
        except DartEnvError as error:
            return self._reset_failed(error)
        self._episode_over = False
        self._codec.reset()
        self._observation_encoder.reset()
        return self._transition(0.0, False, False, info)

    def _reset_failed(self, error: DartEnvError) -> Transition:
        """Return the transition for a reset that started no episode."""
        self._episode_over = True
        log.warning("Desktop %d could not start an episode: %s", self.index, error)
        return self._farm_fault(f"reset: {error}", error)

    def _farm_fault(self, cause: str, error: DartEnvError | None = None) -> Transition:
        """Return the transition that ends an episode without a verdict."""
        end = EndReason.FARM_FAULT
        info = {"end": end.value, "masked": end.masked, "cause": cause}
        return self._transition(0.0, False, True, info, error)

    async def step(self, action: DecodedAction | ActionError) -> Transition:
        """Perform an action; the module's docstring says what happens after the end of an episode.

        An action that the desktop itself refuses changes nothing, and `info["action_error"]` says why. A step that
        misses its deadline ends the episode, and the desktop is replaced. An error that the core raises ends the episode
        as a fault of the farm.

        Args:
            action: What to perform, or why the action that was given cannot be performed; the step then counts, and
                nothing is done.

        Returns:
            The result, also for failures.
        """
        if self.episode_over:
            return await self.reset()
        try:
            transition = await self._play(action)
        except DartEnvError as error:
            log.warning("The episode of desktop %d ends by an error: %s", self.index, error)
            transition = self._farm_fault(f"step: {error}")
        return await self._finish_transition(transition) if "end" in transition.info else transition

    async def _play(self, action: DecodedAction | ActionError) -> Transition:
        """Perform an action of the running episode."""
        reward = 0.0
        error_info: dict[str, Any] = {}
        if isinstance(action, ActionError):
            reward, error_info = self._spec.config.rejected_action(action)
            result = await self._perform(DecodedAction())
        else:
            try:
                result = await self._perform(action)
            except ActionError as error:
                reward, error_info = self._spec.config.rejected_action(error)
                if self._spec.config.on_action_error == "raise":
                    return self._transition(0.0, False, False, error_info)
                result = await self._perform(DecodedAction())
        self._last_observation = result.observation
        info = dict(result.info) | error_info
        return self._transition(result.reward + reward, result.terminated, result.truncated, info)

    async def _perform(self, action: DecodedAction) -> StepResult:
        return await self._core.step(action, deadline_s=self._spec.step_deadline_s)

    async def _finish_transition(self, last: Transition) -> Transition:
        """Return the answer to an episode's last action, and begin the next episode where the autoreset mode asks for it."""
        self._episode_over = True
        self._verdict = await self._recorded_verdict(last.info)
        if self._spec.autoreset is AutoresetMode.NEXT_STEP:
            self._pending_reset = asyncio.create_task(self._start_episode(), name=f"dart-reset-ahead-{self.index}")
        if self._spec.autoreset is not AutoresetMode.SAME_STEP:
            return last
        self._verdict = None
        first = await self._start_episode()
        info = {**first.info, "final_obs": last.element, "final_info": last.info}
        return replace(last, element=first.element, info=info, error=first.error)

    async def _recorded_verdict(self, info: Mapping[str, Any]) -> Outcome | DartEnvError:
        """Return the verdict of an episode that has ended, which the next reset would forget."""
        if info["masked"]:
            return DartEnvError(f"The episode ended without a verdict ({info['cause']}).")
        return await self._core.evaluate()

    async def evaluate(self) -> Outcome:
        """Judge the running episode's desktop as it is now, on a copy.

        Returns:
            The verdict of the evaluator. After the end of an episode it is the verdict of that end, until the first
            observation of the next one has been returned.

        Raises:
            DartEnvError: If there was no episode yet, or the last one ended without a verdict, and as `AsyncDesktopEnv.evaluate`.
        """
        if not self.episode_over:
            return await self._core.evaluate()
        if isinstance(self._verdict, Outcome):
            return self._verdict
        raise self._verdict or DartEnvError("No episode is running; call reset() first.")

    async def current(self) -> Transition:
        """Return the last observation again, for desktops that a masked reset leaves alone."""
        return self._transition(0.0, False, False, {})

    async def aclose(self) -> None:
        """Give the desktop back."""
        ahead, self._pending_reset = self._pending_reset, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead])
        await self._core.aclose()

    def _transition(
        self, reward: float, terminated: bool, truncated: bool, info: dict[str, Any], error: DartEnvError | None = None
    ) -> Transition:
        if self._last_observation is None:
            width, height = self._core.shape.resolution
            self._last_observation = Observation(np.zeros((height, width, 3), dtype=np.uint8), "")
        tagged = {**info, "episode_number": self._episode}
        if "pointer" in info:
            tagged["pointer"] = np.array(info["pointer"], dtype=np.int64)
        return Transition(
            self.index,
            self._observation_encoder.encode(self._last_observation),
            reward,
            terminated,
            truncated,
            tagged,
            error,
        )


def parse_autoreset_mode(given: AutoresetMode | str) -> AutoresetMode:
    """Read an autoreset mode.

    Args:
        given: A mode, its value, or its name.

    Returns:
        The mode.

    Raises:
        ValueError: If there is no such mode; the message names those that exist.
    """
    found = [mode for mode in AutoresetMode if given in (mode, mode.name, mode.value)]
    if not found:
        names = ", ".join(mode.name for mode in AutoresetMode)
        raise ValueError(f"autoreset_mode is one of {names}, not {given!r}.")
    return found[0]


def expand_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """Return one seed for each desktop.

    Args:
        seed: An integer s gives desktop i the seed s+i; a sequence has one seed for each desktop; None seeds nothing.
        num_envs: Number of desktops, N.

    Returns:
        N seeds.

    Raises:
        ValueError: If a sequence does not have N entries.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + index for index in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"There are {num_envs} desktops and {len(seed)} seeds.")
    return list(seed)


def split_actions(actions: Any, count: int) -> list[Any]:
    """Split a batch into single actions.

    Args:
        actions: A batch of the action space (a mapping of columns), or a sequence of single actions.
        count: Number of actions that are needed.

    Returns:
        `count` actions.

    Raises:
        ActionError: If there are more or fewer.
    """
    if isinstance(actions, Mapping):
        short = [name for name, column in actions.items() if len(column) != count]
        if short:
            raise ActionError(f"The batch of actions needs {count} entries in {', '.join(short)}.")
        return [{name: column[row] for name, column in actions.items()} for row in range(count)]
    singles = list(actions)
    if len(singles) != count:
        raise ActionError(f"{count} actions are needed, one per desktop, not {len(singles)}.")
    return singles


def stack_transitions(
    ready: Sequence[Transition],
) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Batch the answers of k desktops.

    Args:
        ready: At least one answer.

    Returns:
        Observations (screenshots stacked, texts as tuples; one array where an observation is pixels), rewards `[k]`,
        terminations `[k]` and truncations `[k]`.
    """
    elements = [transition.element for transition in ready]
    observations: Any
    if isinstance(elements[0], np.ndarray):
        observations = np.stack(elements)
    else:
        observations = {name: tuple(element[name] for element in elements) for name in elements[0]}
        observations["screenshot"] = np.stack(observations["screenshot"])
    rewards = np.array([transition.reward for transition in ready], dtype=np.float64)
    terminated = np.array([transition.terminated for transition in ready], dtype=np.bool_)
    truncated = np.array([transition.truncated for transition in ready], dtype=np.bool_)
    return observations, rewards, terminated, truncated


def batch_infos(infos: Mapping[int, Mapping[str, Any]], num_envs: int) -> dict[str, Any]:
    """Batch infos as `gymnasium.vector.VectorEnv` does, also where the values of a key have different types.

    Args:
        infos: Infos by index of the desktop.
        num_envs: Number of desktops, N.

    Returns:
        For each key an array with N entries, and under `_key` the mask of the desktops that have it. Dictionaries become a
        dictionary of such arrays. Numbers, and arrays of one shape, have their common dtype. Other values, and values of
        different kinds, are in an object array.
    """
    batch: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos.values() for key in info):
        values = {index: info[key] for index, info in infos.items() if key in info}
        batch[key] = _batch_values(values, num_envs, as_objects=key == "final_obs")
        batch[f"_{key}"] = mask = np.zeros(num_envs, dtype=np.bool_)
        mask[list(values)] = True
    return batch


def _batch_values(values: Mapping[int, Any], num_envs: int, *, as_objects: bool) -> Any:
    if not as_objects and all(isinstance(value, dict) for value in values.values()):
        return batch_infos(values, num_envs)
    arrays = [
        np.asarray(value)
        for value in values.values()
        if isinstance(value, bool | int | float | np.number | np.bool_ | np.ndarray)
    ]
    column: NDArray[Any] = np.full(num_envs, None, dtype=object)
    if len(arrays) == len(values) and not as_objects and (dtype := _common_dtype(arrays)) is not None:
        column = np.zeros((num_envs, *arrays[0].shape), dtype=dtype)
    for index, value in values.items():
        column[index] = value
    return column


def _common_dtype(arrays: Sequence[NDArray[Any]]) -> np.dtype[Any] | None:
    """Return the dtype of an array that holds these arrays of one kind and shape; None where an object array must hold them."""
    kinds = {array.dtype.kind for array in arrays}
    if len({array.shape for array in arrays}) > 1 or "O" in kinds or (len(kinds) > 1 and not kinds <= set("iuf")):
        return None
    dtype = np.result_type(*(array.dtype for array in arrays))
    return dtype if dtype.kind in kinds else None  # uint64 with int64 would be float64
