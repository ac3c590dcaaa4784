"""Episodes of a policy, many desktops at a time, each written down as it ends.

Role: `run_episodes`. Rule: what has a verdict in the file is not run again; what a farm's fault took is tried again, a bounded number of
times, and reported apart if it never came through; an action that the space refuses costs nothing but patience, three in a row end the
episode with reward 0; an exception of the policy's code is an error without a verdict, and the task is run again next time.
Non-goals: tables (`report`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dart_envs.action_spaces import ActionSpaceLike, make_codec
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.worker_pool import WorkerUnavailable, run_jobs
from dart_envs.errors import ActionError, DartEnvError, FarmError
from dart_envs.evaluation.policies import EndpointError, EpisodePolicy, EpisodePolicyFactory, ModelAnswer, PolicyInput
from dart_envs.evaluation.trajectories import TrajectoryFolder
from dart_envs.farm.base import FarmLike
from dart_envs.farm.transport import NO_DESKTOP_CODES
from dart_envs.json_lines import append_json_line, cut_incomplete_line, read_json_lines
from dart_envs.tasks.model import Task
from dart_envs.types import Observation, StepResult
from dart_server.wire import Clock, DesktopShape

MAX_ATTEMPTS = 3
"""Runs of a task before a fault of the farm is reported as its end."""
POLICY_ERROR = "policy_error"
"""`EvaluationEpisode.end` after an exception of the policy's code."""
MAX_CONSECUTIVE_REJECTIONS = 3
"""Refused actions in a row after which an episode is given up."""


@dataclass(frozen=True, slots=True)
class EvaluationEpisode:
    """One episode. `reward` is None where the episode is masked; `cause` says why, or what the policy raised."""

    task_id: str
    domain: str
    infeasible: bool
    reward: float | None
    end: str
    steps: int
    rejected_actions: int
    duration_s: float
    cause: str | None = None
    instruction: str = ""
    trajectory: str | None = None
    """Folder of the episode, relative to that of the report, where trajectories are saved."""


def task_domain(task: Task) -> str:
    """What a report groups by: the suite of a bundled task, the folder of a task file."""
    return task.suite if task.origin is None else task.origin.parent.name


def read_episodes(path: Path) -> dict[str, EvaluationEpisode]:
    """Episodes of an earlier run by task id, those without a verdict left out; a last line that was cut off is removed.

    Raises `ValueError` for a file that is none.
    """
    if not path.exists():
        return {}
    cut_incomplete_line(path)
    episodes = {}
    for number, line in enumerate(read_json_lines(path), start=1):
        if not line.strip():
            continue
        try:
            episode = EvaluationEpisode(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path}: line {number} is not an episode ({error}); remove it or choose another --out"
            ) from error
        if episode.reward is not None:
            episodes[episode.task_id] = episode
    return episodes


async def run_episodes(
    farm: FarmLike,
    tasks: Sequence[Task],
    policy: EpisodePolicyFactory,
    *,
    desktops: int,
    shape: DesktopShape,
    action_space: ActionSpaceLike = "canonical",
    observation: Sequence[str] = ("screenshot",),
    max_steps: int | None = None,
    seed: int = 0,
    scorer: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    trajectories: Path | None = None,
) -> AsyncGenerator[EvaluationEpisode, None]:
    """Play every task once, on `desktops` at a time; episodes come in the order they end. scorer: as of `AsyncDesktopEnv`.

    trajectories: the report's folder, in which each episode gets one of its own (`dart_envs.evaluation.trajectories`); None saves none.

    Raises `FarmError` when the farm gives no desktop.
    """
    options: Mapping[str, Any] = {
        "shape": shape,
        "max_steps": max_steps,
        "observation": observation,
        "scorer": scorer,
        "clock": clock,
    }

    @asynccontextmanager
    async def open_worker() -> AsyncIterator[Callable[[Task], Awaitable[EvaluationEpisode]]]:
        async with AsyncDesktopEnv(farm, labels={"purpose": "eval"}, **options) as env:
            yield lambda task: _run_with_retries(env, task, policy, action_space, seed, clock, trajectories)

    async with aclosing(run_jobs(tasks, open_worker, parallel=desktops)) as episodes:
        async for episode in episodes:
            yield episode


async def _run_with_retries(
    env: AsyncDesktopEnv,
    task: Task,
    policy: EpisodePolicyFactory,
    action_space: ActionSpaceLike,
    seed: int,
    clock: Clock,
    trajectories: Path | None,
) -> EvaluationEpisode:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        episode = await _run_episode(env, task, policy, action_space, seed, clock, trajectories)
        if (
            episode.reward is not None
            or episode.end in ("evaluator_error", "endpoint_error", POLICY_ERROR)
            or attempt == MAX_ATTEMPTS
        ):
            return episode
    raise AssertionError("the last attempt returns")


async def _run_episode(
    env: AsyncDesktopEnv,
    task: Task,
    policy: EpisodePolicyFactory,
    action_space: ActionSpaceLike,
    seed: int,
    clock: Clock,
    trajectories: Path | None,
) -> EvaluationEpisode:
    started_s = clock.monotonic()
    instruction = task.instruction
    folder = None if trajectories is None else TrajectoryFolder(trajectories, task_domain(task), task.id, instruction)
    episode = _Episode(env, task, folder)

    def ended(reward: float | None, end: str, cause: str | None = None) -> EvaluationEpisode:
        seconds = round(clock.monotonic() - started_s, 3)
        functions = task.evaluator.functions
        return EvaluationEpisode(
            task.id,
            task_domain(task),
            "infeasible" in functions,
            reward,
            end,
            episode.steps,
            episode.rejected_actions,
            seconds,
            cause,
            instruction,
            None if folder is None or not episode.started else str(folder.relative),
        )

    async def saved(done: EvaluationEpisode) -> EvaluationEpisode:
        if folder is not None and episode.started:
            await folder.finish(env.lease, done.reward, done.end, done.cause)
        return done

    try:
        observation, _ = await env.reset(task, seed)
    except FarmError as error:
        if error.code in NO_DESKTOP_CODES:
            raise WorkerUnavailable(str(error)) from error
        raise
    except DartEnvError as error:
        return ended(None, "not_started", f"{type(error).__name__}: {error}")
    codec = make_codec(action_space, env.shape.resolution)
    digest = hashlib.sha256(f"{seed}/{task.id}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    try:
        result = await episode.run(policy, rng, codec, observation)
    except _PolicyError as failed:
        done = await saved(ended(None, POLICY_ERROR, str(failed)))
        await env.release_lease()
        return done
    except _RejectedActionsError as failed:
        done = await saved(ended(0.0, "rejected_actions", str(failed)))
        await env.release_lease()
        return done
    except EndpointError as error:
        done = await saved(ended(None, "endpoint_error", str(error)))
        await env.release_lease()
        return done
    except DartEnvError as error:
        done = await saved(ended(None, "farm_fault", f"{type(error).__name__}: {error}"))
        await env.release_lease()
        return done
    assert result.end is not None
    reward = None if result.end.masked else result.reward
    return await saved(ended(reward, result.end.value, result.info.get("cause")))


class _PolicyError(Exception):
    """The policy raised."""


@contextmanager
def _policy_errors() -> Iterator[None]:
    """What the policy's code raises becomes `_PolicyError`; a `DartEnvError` is its own."""
    try:
        yield
    except DartEnvError:
        raise
    except Exception as error:
        raise _PolicyError(f"{type(error).__name__}: {error}") from error


class _RejectedActionsError(Exception):
    """Actions of the policy were refused again and again."""


class _Episode:
    """One episode's loop, and what is counted of it."""

    def __init__(self, env: AsyncDesktopEnv, task: Task, folder: TrajectoryFolder | None) -> None:
        self._env = env
        self._task = task
        self._folder = folder
        self.started = False
        self.steps = 0
        self.rejected_actions = 0

    async def run(
        self, policy: EpisodePolicyFactory, rng: np.random.Generator, codec: Any, observation: Observation
    ) -> StepResult:
        """Until the end. Raises `_PolicyError`, `_RejectedActionsError`, `DartEnvError`."""
        in_a_row = 0
        with _policy_errors():
            act: EpisodePolicy = policy(self._env, codec, rng)
        self.started = True
        if self._folder is not None:
            await self._folder.start(self._env.lease, observation)
        while True:
            try:
                with _policy_errors():
                    answer = await act(PolicyInput(observation, self.steps, self._env.max_steps))
                action, text = (answer.action, answer.text) if isinstance(answer, ModelAnswer) else (answer, None)
                decoded = codec.decode(action, self._env.pointer)
                codec.commit()
                result = await self._env.step(decoded)
            except ActionError as error:
                self.rejected_actions, in_a_row = self.rejected_actions + 1, in_a_row + 1
                if in_a_row == MAX_CONSECUTIVE_REJECTIONS:
                    raise _RejectedActionsError(
                        f"{MAX_CONSECUTIVE_REJECTIONS} actions in a row were refused, at last: {error}"
                    ) from error
                continue
            in_a_row = 0
            self.steps += 1
            if self._folder is not None:
                await self._folder.add(action, result, text)
            if result.end is not None:
                return result
            observation = result.observation


def append_episode(path: Path, episode: EvaluationEpisode) -> None:
    """Append one episode to the file, as one line."""
    append_json_line(path, asdict(episode))
