"""Proof that an evaluator tells right from wrong, on real desktops.

Role: run each task once per kind of play: its oracle must score 1, doing nothing, its near miss and its cheats 0. Rule: all go
through the episode core, as a policy would; a fault of farm or evaluator is a failed proof with its cause, never a pass. Non-
goals: choosing tasks (the command line does).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dart_envs.clock import SYSTEM_CLOCK, Clock
from dart_envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError, FarmError
from dart_envs.farm.base import FarmLike
from dart_envs.tasks.model import Task
from dart_envs.types import Action, ActionType, StepResult
from dart_server.wire import DesktopShape


class Kind(StrEnum):
    """What is played."""

    ORACLE = "oracle"
    NOTHING = "nothing"
    NEAR_MISS = "near_miss"
    CHEAT_1 = "cheat_1"
    CHEAT_2 = "cheat_2"

    @property
    def wanted(self) -> float:
        """The reward that it must get."""
        return 1.0 if self is Kind.ORACLE else 0.0


@dataclass(frozen=True, slots=True)
class Proof:
    """One play of one task. `reward` is None where there is no verdict; then `cause` says why."""

    task_id: str
    family: str
    kind: Kind
    reward: float | None
    steps: int
    setup_s: float
    play_s: float
    cause: str | None

    @property
    def holds(self) -> bool:
        """Whether the evaluator judged as it must."""
        return self.reward == self.kind.wanted and self.cause is None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"holds": self.holds, "wanted": self.kind.wanted}


async def play_script(env: AsyncDesktopEnv, task: Task, script: str) -> tuple[StepResult, int]:
    """Play a script on an env that was reset to `task`, and say DONE where it does not; the last result and the steps
    taken.
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


async def prove(env: AsyncDesktopEnv, task: Task, kind: Kind, *, clock: Clock = SYSTEM_CLOCK) -> Proof:
    """Play `task` once. A failure of the task, the desktop or the evaluator does not raise: the proof says it.

    Raises FarmError when the farm gives no desktop, because then no further proof would get one.
    """
    steps, reward = 0, None
    started_s = ready_s = clock.monotonic()
    try:
        await env.reset(task)
        ready_s = clock.monotonic()
        if kind is Kind.NOTHING:
            result = await env.step(Action(ActionType.DONE))
        else:
            result, steps = await play_script(env, task, kind.value)
        cause = _cause(result, kind)
        if result.end is not None and not result.end.masked:
            reward = result.reward
    except FarmError:
        raise
    except DartEnvError as error:
        cause = f"{type(error).__name__}: {error}"
    ended_s = clock.monotonic()
    return Proof(task.id, task.family, kind, reward, steps, ready_s - started_s, ended_s - ready_s, cause)


def _cause(result: StepResult, kind: Kind) -> str | None:
    if result.info.get("cause"):
        return str(result.info["cause"])
    if result.reward != kind.wanted:
        return f"scored {result.reward:g}: {result.info.get('outcome')}"
    return None


async def prove_all(
    farm: FarmLike, tasks: Sequence[Task], *, shape: DesktopShape, parallel: int, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[Proof]:
    """Prove every task in all its ways, on `parallel` desktops at a time; proofs come in the order they end."""
    todo: asyncio.Queue[tuple[Task, Kind]] = asyncio.Queue()
    for task in tasks:
        for kind in kinds_of(task):
            todo.put_nowait((task, kind))
    count = todo.qsize()
    done: asyncio.Queue[Proof | BaseException] = asyncio.Queue()

    async def work() -> None:
        try:
            async with AsyncDesktopEnv(farm, shape=shape, labels={"purpose": "proof"}, clock=clock) as env:
                while not todo.empty():
                    task, kind = todo.get_nowait()
                    done.put_nowait(await prove(env, task, kind, clock=clock))
        except Exception as error:  # noqa: BLE001 - handed to the one who waits for proofs
            done.put_nowait(error)

    workers = [asyncio.create_task(work()) for _ in range(min(parallel, count))]
    try:
        for _ in range(count):
            proof = await done.get()
            if isinstance(proof, BaseException):
                raise proof
            yield proof
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
