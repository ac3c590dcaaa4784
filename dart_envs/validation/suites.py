"""Proof that an evaluator tells right from wrong, on real desktops.

Role: run each task once per kind of play: its oracle must score 1, doing nothing, its near miss and its exploits 0. Rule: all go
through the episode core, as a policy would; a fault of the farm is tried again, a bounded number of times that the validation tells; one
that stays, or a fault of the evaluator, is a failed validation with its cause, never a pass. A setup step that fails is waited for by one
play of the task, and is the result of the others, too. Non-goals: choosing tasks (the command line
does), keeping validations (`records`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.worker_pool import run_jobs
from dart_envs.errors import DartEnvError, FarmError, SetupError
from dart_envs.farm.base import FarmLike
from dart_envs.tasks.model import Task
from dart_envs.types import Action, ActionType, EndReason, StepResult
from dart_server.wire import Clock, DesktopShape

ATTEMPTS = 3
"""Plays of one job before a fault of the farm is its result."""


class ValidationKind(StrEnum):
    """What is played."""

    ORACLE = "oracle"
    NOOP = "noop"
    NEAR_MISS = "near_miss"
    EXPLOIT_1 = "exploit_1"
    EXPLOIT_2 = "exploit_2"

    @property
    def expected_reward(self) -> float:
        """The reward that it must get."""
        return 1.0 if self is ValidationKind.ORACLE else 0.0


@dataclass(frozen=True)
class ValidationJob:
    """One play that is to be done: `repeat` counts from 0 where the same play is done several times.

    scorer: who judges, as of `AsyncDesktopEnv`; None: who judges the task by default.
    """

    task: Task
    kind: ValidationKind
    repeat: int = 0
    scorer: str | None = None

    @cached_property
    def definition(self) -> str:
        """sha256 (hex) over the whole task, its scripts too, and a scorer that was asked for: what was proved of another definition is
        not proved of this one."""
        judged = "" if self.scorer is None else f"\n{self.scorer}"
        return hashlib.sha256(f"{self.task.model_dump_json(by_alias=True)}{judged}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """One play of one task.

    `reward` is None where there is no verdict; then `cause` says why. `attempts`: how often it was played, more than once after
    faults of the farm. `definition`: see `ValidationJob`.
    """

    task_id: str
    family: str
    kind: ValidationKind
    reward: float | None
    steps: int
    setup_s: float
    episode_s: float
    cause: str | None
    repeat: int = 0
    attempts: int = 1
    definition: str = ""
    image_digest: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the evaluator judged as it must."""
        return self.reward == self.kind.expected_reward and self.cause is None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"passed": self.passed, "expected_reward": self.kind.expected_reward}


async def run_script(env: AsyncDesktopEnv, task: Task, script: str) -> tuple[StepResult, int]:
    """Play a script on an env that was reset to `task`, and say DONE where it does not.

    The last result and the steps taken.
    """
    steps = 0
    while True:
        if env.lease is None:
            raise DartEnvError("The desktop was lost while a script was played.")
        plays = await task.resolve_script(env.lease, script=script, step=steps)
        action = plays[0].action if plays else Action(ActionType.DONE)
        result = await env.step(action)
        steps += 1
        if result.terminated or result.truncated:
            return result, steps


def validation_kinds(task: Task) -> list[ValidationKind]:
    """The plays that validate_job a task. The oracle and the near miss are always among them: a task without one is not proved."""
    always = {ValidationKind.ORACLE, ValidationKind.NOOP, ValidationKind.NEAR_MISS}
    return [kind for kind in ValidationKind if kind in always or kind.value in task.scripts]


def make_jobs(tasks: Iterable[Task], *, repeats: int = 1, scorer: str | None = None) -> list[ValidationJob]:
    """Every play that proves the tasks, task by task."""
    return [
        ValidationJob(task, kind, repeat, scorer)
        for task in tasks
        for kind in validation_kinds(task)
        for repeat in range(repeats)
    ]


class SharedSetups:
    """What is known of the setups of tasks, for plays that run at the same time."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._prepared: set[str] = set()
        self._failed: dict[str, SetupError] = {}

    @asynccontextmanager
    async def prepare(self, task_id: str) -> AsyncIterator[None]:
        """Run a setup in the context: one play at a time until it has succeeded once.

        Raises the SetupError of an earlier play in place of running a step again that missed its success condition.
        """
        if task_id in self._prepared:
            yield
            return
        async with self._locks[task_id]:
            if task_id in self._failed:
                raise self._failed[task_id]
            try:
                yield
            except SetupError as error:
                if error.failed_step is not None:
                    self._failed[task_id] = error
                raise
            self._prepared.add(task_id)


async def validate_job(
    env: AsyncDesktopEnv, job: ValidationJob, *, setups: SharedSetups | None = None, clock: Clock = SYSTEM_CLOCK
) -> ValidationResult:
    """Play once, and again after a fault of the farm.

    A failure of the task, the desktop or the evaluator does not raise: the validation says it.
    setups: what the plays of the same check know of setups; None: nothing is known.

    Raises FarmError when the farm gives no desktop, because then no further validation would get one.
    """
    for attempt in range(1, ATTEMPTS + 1):
        validation, end = await _validate_once(env, job, setups or SharedSetups(), clock)
        if end is not EndReason.FARM_FAULT or attempt == ATTEMPTS:
            return replace(validation, attempts=attempt)
    raise AssertionError("the last attempt returns")


async def _validate_once(
    env: AsyncDesktopEnv, job: ValidationJob, setups: SharedSetups, clock: Clock
) -> tuple[ValidationResult, EndReason | None]:
    task, kind = job.task, job.kind
    steps, reward, end, image_digest = 0, None, None, None
    started_s: float | None = None
    ready_s: float | None = None
    try:
        async with setups.prepare(task.id):
            started_s = clock.monotonic()
            await env.reset(task)
        image_digest = None if env.lease is None else env.lease.image_digest
        ready_s = clock.monotonic()
        if kind is ValidationKind.NOOP:
            result = await env.step(Action(ActionType.DONE))
        else:
            result, steps = await run_script(env, task, kind.value)
        cause, end = _cause(result, kind), result.end
        if end is not None and not end.masked:
            reward = result.reward
    except FarmError:
        raise
    except DartEnvError as error:
        cause = f"{type(error).__name__}: {error}"
    ended_s = clock.monotonic()
    setup_end_s = ended_s if ready_s is None else ready_s
    validation = ValidationResult(
        task_id=task.id,
        family=task.family,
        kind=kind,
        reward=reward,
        steps=steps,
        setup_s=0.0 if started_s is None else round(setup_end_s - started_s, 3),
        episode_s=round(ended_s - setup_end_s, 3),
        cause=cause,
        repeat=job.repeat,
        definition=job.definition,
        image_digest=image_digest,
    )
    return validation, end


def _cause(result: StepResult, kind: ValidationKind) -> str | None:
    if result.info.get("cause"):
        return str(result.info["cause"])
    if result.reward != kind.expected_reward:
        return f"scored {result.reward:g}: {result.info.get('outcome')}"
    return None


async def validate_all(
    farm: FarmLike, jobs: Sequence[ValidationJob], *, shape: DesktopShape, parallel: int, clock: Clock = SYSTEM_CLOCK
) -> AsyncGenerator[ValidationResult, None]:
    """Do every job, on `parallel` desktops at a time; validations come in the order they end. All jobs have one scorer."""
    (scorer,) = {job.scorer for job in jobs} or {None}
    setups = SharedSetups()

    @asynccontextmanager
    async def open_worker() -> AsyncIterator[Callable[[ValidationJob], Awaitable[ValidationResult]]]:
        async with AsyncDesktopEnv(
            farm, shape=shape, labels={"purpose": "validation"}, clock=clock, scorer=scorer
        ) as env:
            yield partial(validate_job, env, setups=setups, clock=clock)

    async with aclosing(run_jobs(jobs, open_worker, parallel=parallel)) as results:
        async for result in results:
            yield result
