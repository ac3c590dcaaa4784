"""Proof that an evaluator tells right from wrong, on real desktops.

Role: run each task once per kind of play: its oracle must score 1, doing nothing, its near miss and its exploits 0. Rule: all go
through the episode core, as a policy would; a fault of the farm is tried again, a bounded number of times that the proof tells; one
that stays, or a fault of the evaluator, is a failed proof with its cause, never a pass. Non-goals: choosing tasks (the command line
does), keeping proofs (`proof_book`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError, FarmError
from dart_envs.farm.base import FarmLike
from dart_envs.tasks.model import Task
from dart_envs.types import Action, ActionType, EndReason, StepResult
from dart_server.wire import Clock, DesktopShape

ATTEMPTS = 3
"""Plays of one job before a fault of the farm is its result."""


class Kind(StrEnum):
    """What is played."""

    ORACLE = "oracle"
    NOTHING = "nothing"
    NEAR_MISS = "near_miss"
    CHEAT_1 = "exploit_1"
    CHEAT_2 = "exploit_2"

    @property
    def wanted(self) -> float:
        """The reward that it must get."""
        return 1.0 if self is Kind.ORACLE else 0.0


@dataclass(frozen=True)
class Job:
    """One play that is to be done: `repeat` counts from 0 where the same play is done several times.

    scorer: who judges, as of `AsyncDesktopEnv`; None: who judges the task by default.
    """

    task: Task
    kind: Kind
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
    faults of the farm. `definition`: see `Job`.
    """

    task_id: str
    family: str
    kind: Kind
    reward: float | None
    steps: int
    setup_s: float
    play_s: float
    cause: str | None
    repeat: int = 0
    attempts: int = 1
    definition: str = ""
    image_digest: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the evaluator judged as it must."""
        return self.reward == self.kind.wanted and self.cause is None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"holds": self.holds, "wanted": self.kind.wanted}


async def run_script(env: AsyncDesktopEnv, task: Task, script: str) -> tuple[StepResult, int]:
    """Play a script on an env that was reset to `task`, and say DONE where it does not.

    The last result and the steps taken.
    """
    steps = 0
    while True:
        if env.lease is None:
            raise DartEnvError("The desktop was lost while a script was played.")
        plays = await task.play(env.lease, script=script, step=steps)
        action = plays[0].action if plays else Action(ActionType.DONE)
        result = await env.step(action)
        steps += 1
        if result.terminated or result.truncated:
            return result, steps


def kinds_of(task: Task) -> list[Kind]:
    """The plays that prove a task. The oracle and the near miss are always among them: a task without one is not proved."""
    always = {Kind.ORACLE, Kind.NOTHING, Kind.NEAR_MISS}
    return [kind for kind in Kind if kind in always or kind.value in task.scripts]


def jobs_of(tasks: Iterable[Task], *, repeats: int = 1, scorer: str | None = None) -> list[Job]:
    """Every play that proves the tasks, task by task."""
    return [Job(task, kind, repeat, scorer) for task in tasks for kind in kinds_of(task) for repeat in range(repeats)]


async def prove(env: AsyncDesktopEnv, job: Job, *, clock: Clock = SYSTEM_CLOCK) -> ValidationResult:
    """Play once, and again after a fault of the farm.

    A failure of the task, the desktop or the evaluator does not raise: the proof says it.

    Raises FarmError when the farm gives no desktop, because then no further proof would get one.
    """
    for attempt in range(1, ATTEMPTS + 1):
        proof, end = await _prove_once(env, job, clock)
        if end is not EndReason.FARM_FAULT or attempt == ATTEMPTS:
            return replace(proof, attempts=attempt)
    raise AssertionError("the last attempt returns")


async def _prove_once(env: AsyncDesktopEnv, job: Job, clock: Clock) -> tuple[ValidationResult, EndReason | None]:
    task, kind = job.task, job.kind
    steps, reward, end, image_digest = 0, None, None, None
    started_s = ready_s = clock.monotonic()
    try:
        await env.reset(task)
        image_digest = None if env.lease is None else env.lease.image_digest
        ready_s = clock.monotonic()
        if kind is Kind.NOTHING:
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
    proof = ValidationResult(
        task_id=task.id,
        family=task.family,
        kind=kind,
        reward=reward,
        steps=steps,
        setup_s=round(ready_s - started_s, 3),
        play_s=round(clock.monotonic() - ready_s, 3),
        cause=cause,
        repeat=job.repeat,
        definition=job.definition,
        image_digest=image_digest,
    )
    return proof, end


def _cause(result: StepResult, kind: Kind) -> str | None:
    if result.info.get("cause"):
        return str(result.info["cause"])
    if result.reward != kind.wanted:
        return f"scored {result.reward:g}: {result.info.get('outcome')}"
    return None


async def validate_all(
    farm: FarmLike, jobs: Sequence[Job], *, shape: DesktopShape, parallel: int, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[ValidationResult]:
    """Do every job, on `parallel` desktops at a time; proofs come in the order they end. All jobs have one scorer."""
    (scorer,) = {job.scorer for job in jobs} or {None}
    todo: asyncio.Queue[Job] = asyncio.Queue()
    for job in jobs:
        todo.put_nowait(job)
    done: asyncio.Queue[ValidationResult | BaseException] = asyncio.Queue()

    async def work() -> None:
        try:
            async with AsyncDesktopEnv(
                farm, shape=shape, labels={"purpose": "proof"}, clock=clock, scorer=scorer
            ) as env:
                while not todo.empty():
                    done.put_nowait(await prove(env, todo.get_nowait(), clock=clock))
        except Exception as error:  # noqa: BLE001 - handed to the one who waits for proofs
            done.put_nowait(error)

    workers = [asyncio.create_task(work()) for _ in range(min(parallel, len(jobs)))]
    try:
        for _ in jobs:
            proof = await done.get()
            if isinstance(proof, BaseException):
                raise proof
            yield proof
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
