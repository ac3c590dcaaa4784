"""Episodes of a policy, many desktops at a time, each written down as it ends.

Role: `run_trials`. Rule: what has a verdict in the file is not run again; what a farm's fault took is tried again, a bounded number of
times, and reported apart if it never came through; an action that the space refuses costs nothing but patience; what the policy itself
raises is its failure and scores 0. Non-goals: tables (`report`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dart_envs.action_spaces import ActionSpaceChoice, make_codec
from dart_envs.clock import SYSTEM_CLOCK, Clock
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import ActionError, DartEnvError, FarmError
from dart_envs.evaluation.policies import Act, EndpointError, Policy, Seen
from dart_envs.farm.base import FarmLike
from dart_envs.tasks.model import Task
from dart_envs.types import Observation, StepResult
from dart_server.wire import DesktopShape

ATTEMPTS = 3
"""Runs of a task before a fault of the farm is reported as its end."""
REFUSALS = 3
"""Refused actions in a row after which an episode is given up."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One episode. `reward` is None where there is no verdict; `cause` says why, or what the policy raised."""

    task_id: str
    domain: str
    infeasible: bool
    reward: float | None
    end: str
    steps: int
    refused: int
    seconds: float
    cause: str | None = None


def domain_of(task: Task) -> str:
    """What a report groups by: the suite of a bundled task, the folder of a task file."""
    return task.suite if task.origin is None else task.origin.parent.name


def read_trials(path: Path) -> dict[str, Trial]:
    """Trials of an earlier run by task id, those without a verdict left out. Raises `ValueError` for a file that is none."""
    if not path.exists():
        return {}
    trials = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            trial = Trial(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path}: line {number} is not a trial ({error}); remove it or choose another --out"
            ) from error
        if trial.reward is not None:
            trials[trial.task_id] = trial
    return trials


async def run_trials(
    farm: FarmLike,
    tasks: Sequence[Task],
    policy: Policy,
    *,
    desktops: int,
    shape: DesktopShape,
    action_space: ActionSpaceChoice = "canonical",
    observation: Sequence[str] = ("screenshot",),
    max_steps: int | None = None,
    seed: int = 0,
    scorer: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncIterator[Trial]:
    """Play every task once, on `desktops` at a time; trials come in the order they end. scorer: as of `AsyncDesktopEnv`.

    Raises `FarmError` when the farm gives no desktop.
    """
    todo: asyncio.Queue[Task] = asyncio.Queue()
    for task in tasks:
        todo.put_nowait(task)
    done: asyncio.Queue[Trial | BaseException] = asyncio.Queue()
    options: Mapping[str, Any] = {
        "shape": shape,
        "max_steps": max_steps,
        "observation": observation,
        "scorer": scorer,
        "clock": clock,
    }

    async def work() -> None:
        try:
            async with AsyncDesktopEnv(farm, labels={"purpose": "eval"}, **options) as env:
                while not todo.empty():
                    task = todo.get_nowait()
                    done.put_nowait(await _try(env, task, policy, action_space, seed, clock))
        except Exception as error:  # noqa: BLE001 - handed to the one who waits for trials
            done.put_nowait(error)

    workers = [asyncio.create_task(work()) for _ in range(min(desktops, len(tasks)))]
    try:
        for _ in tasks:
            trial = await done.get()
            if isinstance(trial, BaseException):
                raise trial
            yield trial
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _try(
    env: AsyncDesktopEnv, task: Task, policy: Policy, action_space: ActionSpaceChoice, seed: int, clock: Clock
) -> Trial:
    for attempt in range(1, ATTEMPTS + 1):
        trial = await _play(env, task, policy, action_space, seed, clock)
        if trial.reward is not None or trial.end in ("evaluator_error", "endpoint_error") or attempt == ATTEMPTS:
            return trial
    raise AssertionError("the last attempt returns")


async def _play(
    env: AsyncDesktopEnv, task: Task, policy: Policy, action_space: ActionSpaceChoice, seed: int, clock: Clock
) -> Trial:
    started_s = clock.monotonic()
    episode = _Episode(env, task)

    def trial(reward: float | None, end: str, cause: str | None = None) -> Trial:
        seconds = round(clock.monotonic() - started_s, 3)
        functions = task.evaluator.functions
        return Trial(
            task.id,
            domain_of(task),
            "infeasible" in functions,
            reward,
            end,
            episode.steps,
            episode.refused,
            seconds,
            cause,
        )

    try:
        observation, _ = await env.reset(task, seed)
    except FarmError:
        raise
    except DartEnvError as error:
        return trial(None, "not_started", f"{type(error).__name__}: {error}")
    codec = make_codec(action_space, env.shape.resolution)
    digest = hashlib.sha256(f"{seed}/{task.id}".encode()).digest()
    act = policy(env, codec, np.random.default_rng(int.from_bytes(digest[:8], "big")))
    try:
        result = await episode.run(act, codec, observation)
    except _PolicyFailed as failed:
        await env.drop_lease()
        return trial(0.0, "policy_error", str(failed))
    except EndpointError as error:
        await env.drop_lease()
        return trial(None, "endpoint_error", str(error))
    except DartEnvError as error:
        await env.drop_lease()
        return trial(None, "farm_fault", f"{type(error).__name__}: {error}")
    assert result.end is not None
    return trial(None if result.end.masked else result.reward, result.end.value, result.info.get("cause"))


class _PolicyFailed(Exception):
    """The policy raised, or its actions were refused again and again."""


class _Episode:
    """One episode's loop, and what is counted of it."""

    def __init__(self, env: AsyncDesktopEnv, task: Task) -> None:
        self._env = env
        self._task = task
        self.steps = 0
        self.refused = 0

    async def run(self, act: Act, codec: Any, observation: Observation) -> StepResult:
        """Until the end. Raises `_PolicyFailed`, `DartEnvError`."""
        in_a_row = 0
        while True:
            try:
                action = await act(Seen(observation, self.steps, self._env.max_steps))
            except DartEnvError:
                raise
            except Exception as error:
                raise _PolicyFailed(f"{type(error).__name__}: {error}") from error
            try:
                gesture = codec.decode(action, self._env.pointer)
                codec.performed()
                result = await self._env.step(gesture)
            except ActionError as error:
                self.refused, in_a_row = self.refused + 1, in_a_row + 1
                if in_a_row == REFUSALS:
                    raise _PolicyFailed(f"{REFUSALS} actions in a row were refused, at last: {error}") from error
                continue
            in_a_row = 0
            self.steps += 1
            if result.end is not None:
                return result
            observation = result.observation


def append(path: Path, trial: Trial) -> None:
    """Write one trial as a line of its own."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(trial), ensure_ascii=False) + "\n")
