"""Many desktops in one process: a Gymnasium vector environment over one farm connection and one event loop.

`DartVectorEnv` (`gym.make_vec("DartOSWorld-v0", num_envs=N)`) has `step_async` and `step_wait`, and `send` and `recv`,
which return the desktops that are ready first. A desktop waits for another one only where the caller asks for all. A
failure on one desktop ends the episode of that desktop only. A timeout loses nothing: wait again. Each action has a
tag, and its answer carries the tag, so an answer cannot be taken for that of another step. This module has no worker
processes, no shared memory and no policy calls.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dart_envs.action_spaces import make_codec
from dart_envs.envs.config import EnvConfig, EnvOptions
from dart_envs.envs.env import RESET_OPTIONS, check_reset_options, warn_of_unfinished_episode
from dart_envs.envs.slot import (
    SubEnv,
    SubEnvSpec,
    Transition,
    batch_infos,
    expand_seeds,
    parse_autoreset_mode,
    split_actions,
    stack_transitions,
)
from dart_envs.envs.task_sources import TaskSelection, select_tasks
from dart_envs.errors import ActionError, DartEnvError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.loop import EventLoopThread
from dart_envs.observations.views import ObservationEncoder
from dart_envs.types import DecodedAction, Outcome, RgbImage

_T = TypeVar("_T")
_OTHER_OPTIONS = (
    "num_envs",
    "config",
    "render_mode",
    "autoreset_mode",
    "step_deadline_s",
    "reset_deadline_s",
    "max_episode_steps",
)
VectorStep = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class DartVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """`num_envs` desktops with one set of options, each with its own episode.

    Observations are batched Dicts: `screenshot` is uint8 `[N, H, W, 3]`, texts are tuples of N. Actions are a batch of
    `action_space`, or a sequence of N single actions (elements, `Action`s or JSON forms). All actions of a call are
    checked before any is performed. An action that the autoreset ignores is not read. Infos are batched as Gymnasium's.
    Values of different kinds under one key, such as a number and None, are in an object array. `infos["tag"]` numbers the
    actions of this vector; `send` returns the tags of the actions that it sent.

    Args:
        num_envs: Number of desktops, N.
        task: What episodes play, as `EnvConfig.task`; None keeps that of `config`.
        config: All options in one object; None is the defaults.
        render_mode: With `rgb_array`, `render()` returns the last screenshots.
        autoreset_mode: One of Gymnasium's three modes, by value or name; `dart_envs.envs.slot` says what each does.
        step_deadline_s: Seconds after which the step of one desktop is given up. Its episode ends, its desktop is replaced, and the
            other desktops go on. The episode is masked where the farm holds evidence against the host, or does not answer; otherwise
            its reward is 0 with the end `broke_desktop`. So choose a time that a busy host keeps. The judgement has its own limit,
            `evaluate_timeout_s`. None sets no deadline.
        reset_deadline_s: The same for a reset.
        max_episode_steps: Gymnasium's name of `max_steps`, which `gym.make_vec` passes; `max_steps` goes first.
        **options: Fields of `EnvConfig`, which replace those of `config`.

    Attributes:
        config: The options in force.
        tasks: Where episodes draw their tasks from.
        shape: The desktops to lease.

    Raises:
        ValueError: If an option is unknown or has a value that is not allowed.
        TaskError: If the selection names no task.
        FarmError: If `farm` is text but not the address of a farm.
        EvaluatorError: If there is no such scorer.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["rgb_array"],
        "render_fps": 2,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        task: TaskSelection = None,
        *,
        config: EnvConfig | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        step_deadline_s: float | None = None,
        reset_deadline_s: float | None = None,
        max_episode_steps: int | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}.")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode is None or rgb_array, not {render_mode!r}.")
        if not all(limit_s is None or limit_s > 0 for limit_s in (step_deadline_s, reset_deadline_s)):
            raise ValueError("step_deadline_s and reset_deadline_s are seconds above 0, or None.")
        self.num_envs = num_envs
        self.render_mode = render_mode
        if max_episode_steps is not None:
            options = {"max_steps": max_episode_steps, **options}
        chosen = options if task is None else {"task": task, **options}
        self.config = EnvConfig.from_options(config, chosen, _OTHER_OPTIONS)
        self.tasks = select_tasks(self.config.task, self.config.split)
        self.shape = self.config.desktop_shape(self.tasks.shape(self.config.image))
        self._codecs = [make_codec(self.config.action_space, self.shape.resolution) for _ in range(num_envs)]
        self.single_action_space = self._codecs[0].space
        self.single_observation_space = ObservationEncoder(self.config.observation, self.shape.resolution).space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        mode = parse_autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": mode}  # type: ignore[misc]
        self._spec = SubEnvSpec(self.tasks, self.shape, self.config, mode, step_deadline_s, reset_deadline_s)
        self._own_farm: AsyncFarmClient | None = None
        self._loop = EventLoopThread.shared()
        self._sub_envs: list[SubEnv] = []
        self._running: dict[int, asyncio.Task[Transition]] = {}
        self._waiting_for: str | None = None
        self._tags: dict[int, int] = {}
        self._next_tag = 0
        self._warned = False
        atexit.register(_close_if_alive, weakref.ref(self))

    # Everybody together.

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode on every desktop; the steps in flight there are cancelled.

        A step in flight on a desktop that the mask leaves alone goes on, and `recv` returns its result, also after `step_async`.

        Args:
            seed: With an integer s, desktop i gets the seed s+i. With a sequence, desktop i gets its entry i. None
                seeds nothing.
            options: `task` for all desktops; `reset_mask`, bool `[N]`, resets only the desktops where it is true.

        Returns:
            Batched observations and infos; for a desktop that is not reset, its last observation again.

        Raises:
            ValueError: If an option is unknown, or the mask or the seeds do not have N entries.
            DartEnvError: If no desktop at all could start an episode.
        """
        check_reset_options(options, (*RESET_OPTIONS, "reset_mask"))
        chosen = dict(options or {})
        mask = np.asarray(chosen.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_)), dtype=np.bool_)
        if mask.shape != (self.num_envs,):
            raise ValueError(f"reset_mask has one entry per desktop ({self.num_envs}), not shape {mask.shape}.")
        seeds = expand_seeds(seed, self.num_envs)
        if self._loop.pid != os.getpid():  # the desktops stay with the process that forked this one
            self._loop, self._sub_envs, self._running, self._own_farm = EventLoopThread.shared(), [], {}, None
        self._run(self._make_sub_envs())
        wanted = [index for index in range(self.num_envs) if mask[index] or self._sub_envs[index].never_reset]
        self._run(self._cancel(wanted))
        self._waiting_for = "recv" if self._running else None
        nsteps = max((self._sub_envs[index].unfinished_steps for index in wanted), default=0)
        if nsteps and not self._warned:
            self._warned = True
            warn_of_unfinished_episode(nsteps)
        transitions = self._run(self._reset_all(wanted, seeds, chosen.get("task")))
        failed = [transition.error for transition in transitions if transition.error is not None]
        if failed and len(failed) == len(wanted):
            raise failed[0]
        observations, *_, infos = self._batch(transitions)
        return observations, infos

    def step(self, actions: Any) -> VectorStep:
        """Perform one action on every desktop and wait for all of them.

        Args:
            actions: A batch of `action_space`, or N single actions.

        Returns:
            Observations, rewards float64 `[N]`, terminations bool `[N]`, truncations bool `[N]`, and infos.

        Raises:
            ActionError: If an action is outside the action space; nothing is sent then.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Send one action to every desktop; `step_wait` returns the results.

        Args:
            actions: A batch of `action_space`, or N single actions.

        Raises:
            ActionError: If an action is outside the action space; nothing is sent then.
            AlreadyPendingCallError: If results of earlier actions are pending.
        """
        self._check_idle("step_async")
        canonical = self._actions(actions, range(self.num_envs))
        self._run(self._start(dict(enumerate(canonical))))
        self._waiting_for = "step"

    def step_wait(self, timeout: float | None = None) -> VectorStep:
        """Wait for the results of `step_async` on all desktops.

        Args:
            timeout: Seconds to wait; None waits without a limit.

        Returns:
            As `step`.

        Raises:
            TimeoutError: If the results are not there in time. Nothing is lost: call this again for the same results.
            NoAsyncCallError: If there was no `step_async`.
        """
        if self._waiting_for != "step":
            raise NoAsyncCallError("step_wait was called without step_async before it.", "step")
        self._run(self._wait(self.num_envs, timeout))
        transitions = self._run(self._collect(self.num_envs))
        self._waiting_for = None
        return self._batch(transitions)

    # First come, first served.

    def send(self, actions: Any, env_ids: Sequence[int]) -> NDArray[np.int64]:
        """Send one action each to some desktops; `recv` returns the results.

        Args:
            actions: A batch of `action_space` with k entries, or k single actions.
            env_ids: Indices of k desktops, none of which is busy.

        Returns:
            The tags of the actions, int64 `[k]`, which the infos carry.

        Raises:
            ActionError: If an action is outside the action space; nothing is sent then.
            AlreadyPendingCallError: If a desktop is busy or is named twice.
        """
        self._check_idle("send", allow="recv")
        busy = sorted(set(env_ids) & set(self._running))
        if busy or len(set(env_ids)) != len(env_ids):
            raise AlreadyPendingCallError(f"Desktops {busy or list(env_ids)} have an action in flight already.", "send")
        canonical = self._actions(actions, env_ids)
        self._run(self._start(dict(zip(env_ids, canonical, strict=True))))
        self._waiting_for = "recv"
        return np.array([self._tags[index] for index in env_ids], dtype=np.int64)

    def recv(self, min_envs: int = 1, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the first results of `send`.

        Args:
            min_envs: Number of results to wait for; all that are ready are returned.
            timeout: Seconds to wait; None waits without a limit.

        Returns:
            Observations, rewards, terminations, truncations, infos (a list of k dicts) and env_ids, batched over the k
            desktops that are ready.

        Raises:
            TimeoutError: If the results are not there in time. Nothing is lost: call this again.
            NoAsyncCallError: If fewer than `min_envs` desktops are busy.
        """
        if not 1 <= min_envs <= len(self._running):
            raise NoAsyncCallError(f"{len(self._running)} desktops are busy; recv cannot wait for {min_envs}.", "recv")
        self._run(self._wait(min_envs, timeout))
        ready = self._run(self._collect(min_envs))
        self._waiting_for = "recv" if self._running else None
        observations, rewards, terminated, truncated = stack_transitions(ready)
        ids = np.array([transition.index for transition in ready], dtype=np.int64)
        return observations, rewards, terminated, truncated, [transition.info for transition in ready], ids

    # The rest of the interface.

    def evaluate(self, env_ids: Sequence[int] | None = None) -> tuple[NDArray[np.float64], list[dict[str, Any]]]:
        """Judge desktops as they are now, at any step: this gives dense rewards.

        Each verdict is made on a copy, for which the farm needs a free desktop; the episodes go on. After the end of an episode it
        is the verdict of that end, until the next episode's first observation has been returned.

        Args:
            env_ids: Indices of k desktops without an action in flight; None is all of them.

        Returns:
            Rewards float64 `[k]`, NaN where there is no verdict, and k dicts with the `outcome`, or with the `cause`
            where there is none.

        Raises:
            AlreadyPendingCallError: If a desktop has an action in flight.
        """
        indices = list(range(self.num_envs)) if env_ids is None else [int(index) for index in env_ids]
        if not self._sub_envs:
            raise gym.error.ResetNeeded("Call reset() before evaluate.")
        if busy := sorted(set(indices) & set(self._running)):
            raise AlreadyPendingCallError(f"Desktops {busy} have an action in flight.", "evaluate")
        verdicts = self._run(self._evaluate(indices))
        rewards = np.array([one.reward if isinstance(one, Outcome) else np.nan for one in verdicts], dtype=np.float64)
        infos = [
            {"outcome": dict(one.details)} if isinstance(one, Outcome) else {"cause": str(one)} for one in verdicts
        ]
        return rewards, infos

    def render(self) -> tuple[RgbImage, ...] | None:
        """Return the last screenshot of every desktop.

        Returns:
            N images, uint8 `[H, W, 3]`; None unless `render_mode` is `rgb_array`.
        """
        if self.render_mode != "rgb_array":
            return None
        width, height = self.shape.resolution
        blank = np.zeros((height, width, 3), dtype=np.uint8)
        return tuple(sub_env.screen if sub_env.screen is not None else blank.copy() for sub_env in self._sub_envs)

    @property
    def busy(self) -> tuple[int, ...]:
        """Indices of the desktops with an action in flight."""
        return tuple(sorted(self._running))

    def close_extras(self, **_kwargs: Any) -> None:
        """Cancel what is in flight, give all desktops back and disconnect; a fork of the process that holds them forgets them.

        Args:
            **_kwargs: Not used; Gymnasium passes the arguments of `close`.
        """
        if self._loop.pid != os.getpid():  # the desktops stay with the process that forked this one
            self._sub_envs, self._running, self._own_farm = [], {}, None
            return
        self._run(self._aclose())

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("A vector environment cannot be pickled; make it in the process that uses it.")

    # On the loop.

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run(work)

    async def _make_sub_envs(self) -> None:
        if not self._sub_envs:
            farm = self.config.farm
            if farm is None or isinstance(farm, str):
                farm = self._own_farm = await AsyncFarmClient.connect(farm)
            self._sub_envs = [SubEnv(index, farm, self._spec, self._codecs[index]) for index in range(self.num_envs)]

    async def _reset_all(self, wanted: Iterable[int], seeds: Sequence[int | None], task: Any) -> list[Transition]:
        chosen = set(wanted)
        return list(
            await asyncio.gather(
                *(
                    sub_env.reset(seed=seeds[sub_env.index], task=task)
                    if sub_env.index in chosen
                    else sub_env.current()
                    for sub_env in self._sub_envs
                )
            )
        )

    async def _start(self, actions: Mapping[int, DecodedAction | ActionError]) -> None:
        for index, action in actions.items():
            self._tags[index], self._next_tag = self._next_tag, self._next_tag + 1
            self._running[index] = asyncio.create_task(self._sub_envs[index].step(action), name=f"dart-slot-{index}")

    async def _wait(self, count: int, timeout_s: float | None) -> None:
        async with asyncio.timeout(timeout_s):
            while sum(task.done() for task in self._running.values()) < count:
                pending = [task for task in self._running.values() if not task.done()]
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    async def _collect(self, at_least: int) -> list[Transition]:
        ready = [index for index, task in sorted(self._running.items()) if task.done()]
        assert len(ready) >= at_least
        answers = [self._running[index].result() for index in ready]  # an exception of one takes away no other result
        for index in ready:
            del self._running[index]
        return [replace(answer, info={**answer.info, "tag": self._tags[answer.index]}) for answer in answers]

    async def _evaluate(self, indices: Sequence[int]) -> list[Outcome | DartEnvError]:
        async def verdict(sub_env: SubEnv) -> Outcome | DartEnvError:
            try:
                return await sub_env.evaluate()
            except DartEnvError as error:
                return error

        return list(await asyncio.gather(*(verdict(self._sub_envs[index]) for index in indices)))

    async def _cancel(self, indices: Iterable[int]) -> None:
        running = [self._running.pop(index) for index in indices if index in self._running]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _aclose(self) -> None:
        await self._cancel(list(self._running))
        slots, self._sub_envs = self._sub_envs, []
        await asyncio.gather(*(sub_env.aclose() for sub_env in slots))
        if self._own_farm is not None:
            await self._own_farm.aclose()
            self._own_farm = None

    # Batches.

    def _check_idle(self, call: str, *, allow: str | None = None) -> None:
        if not self._sub_envs:
            raise gym.error.ResetNeeded(f"Call reset() before {call}.")
        if self._waiting_for is not None and self._waiting_for != allow:
            raise AlreadyPendingCallError(
                f"{call} was called while a {self._waiting_for} is pending.", self._waiting_for
            )

    def _actions(self, actions: Any, indices: Sequence[int]) -> list[DecodedAction | ActionError]:
        singles = split_actions(actions, len(indices))
        ended = [index for index in indices if self._sub_envs[index].episode_over]
        if ended and self._spec.autoreset is AutoresetMode.DISABLED:
            raise gym.error.ResetNeeded(f"The episodes of desktops {ended} have ended; reset them with a reset_mask.")
        decoded = {
            index: self._decode(index, one) for index, one in zip(indices, singles, strict=True) if index not in ended
        }
        for index, action in decoded.items():
            if isinstance(action, DecodedAction):
                self._codecs[index].commit()
        return [decoded.get(index, DecodedAction()) for index in indices]

    def _decode(self, index: int, single: Any) -> DecodedAction | ActionError:
        try:
            return self._codecs[index].decode(single, self._sub_envs[index].pointer)
        except ActionError as error:
            if self.config.on_action_error == "raise":
                raise ActionError(f"env {index}: {error}") from error
            return error

    def _batch(self, transitions: Sequence[Transition]) -> VectorStep:
        infos = {transition.index: transition.info for transition in transitions}
        return (*stack_transitions(transitions), batch_infos(infos, self.num_envs))


def _close_if_alive(reference: weakref.ref[DartVectorEnv]) -> None:
    """Close a forgotten vector environment at interpreter exit."""
    vector = reference()
    if vector is not None:
        vector.close()


__all__ = ["DartVectorEnv"]
