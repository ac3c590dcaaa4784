"""Plays OSWorld's offline tasks on live desktops under the osworld scorer.

Role: which plays prove a task, and playing one. Rule: each play has a desktop of its own, set up anew; a target that is not on the screen
yet is waited for; faults of farm, setup and scorer are the play's cause, never a pass. Non-goals: the record and the table
(`dart_envs.validation.osworld.records`).

    a task that can be done: nothing must score 0, the oracle 1; one that cannot: saying so (FAIL) 1, DONE 0
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError, FarmError, TaskError
from dart_envs.evaluators.scorer_choice import INFEASIBLE, Scorer
from dart_envs.tasks import Task, load_file
from dart_envs.tasks.loader import OSWORLD_IMAGE
from dart_envs.tasks.script import Move, resolve
from dart_envs.tasks.suite import OSWORLD_SCREEN
from dart_envs.types import Action, ActionType, DecodedAction, StepResult
from dart_envs.validation.osworld.moves import Oracle
from dart_envs.validation.osworld.offline import OFFLINE
from dart_envs.validation.osworld.oracles import ORACLES, reason_of
from dart_server.wire import Clock, DesktopShape

TARGET_TIMEOUT_S = 60.0
MAX_STEPS = 100
SHAPE = DesktopShape(image=OSWORLD_IMAGE, resolution=OSWORLD_SCREEN)
"""What OSWorld's coordinates assume."""
EXAMPLES, TASKS_LIST = "examples", "zero_download.txt"
"""In a folder of OSWorld's data: the task files by domain, and, where somebody chose other tasks, domain/id at the start of each line."""


class ValidationRun(StrEnum):
    """What is played."""

    NOTHING = "nothing"
    ORACLE = "oracle"
    FAIL = "fail"
    DONE = "done"

    @property
    def wanted(self) -> float:
        """The reward that it must get."""
        return 1.0 if self in (ValidationRun.ORACLE, ValidationRun.FAIL) else 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """One task file and the ways in which it is proved."""

    domain: str
    task: Task
    solution: Oracle | None
    reason: str | None
    """Why it cannot be proved on our image, where that was looked into."""
    scorer: Scorer = Scorer.OSWORLD

    @property
    def infeasible(self) -> bool:
        return INFEASIBLE in self.task.evaluator.functions

    @property
    def plays(self) -> tuple[ValidationRun, ...]:
        if self.infeasible:
            return (ValidationRun.FAIL, ValidationRun.DONE)
        return (ValidationRun.NOTHING, ValidationRun.ORACLE) if self.solution else (ValidationRun.NOTHING,)

    def definition(self, play: ValidationRun) -> str:
        """What a result belongs to: the task's content, who judges and, for the oracle, its moves."""
        moves = [move.model_dump(mode="json") for move in self.solution.moves] if self.solution else []
        content = [self.task.content_hash, moves if play is ValidationRun.ORACLE else []]
        content += [self.scorer] if self.scorer is not Scorer.OSWORLD else []
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Result:
    """One play. `reward` is None where there is no verdict. Times in seconds; `set_up` says whether the setup came through."""

    domain: str
    task_id: str
    play: ValidationRun
    definition: str
    image_digest: str
    set_up: bool
    reward: float | None
    setup_s: float
    play_s: float
    cause: str | None

    @property
    def holds(self) -> bool:
        return self.set_up and self.reward == self.play.wanted


def cases(folder: Path, only: Sequence[str] = (), scorer: Scorer = Scorer.OSWORLD) -> list[Case]:
    """The offline tasks of a folder with OSWorld's data. only: domains or beginnings of ids; all by default.

    Raises TaskError for a folder that lacks them, and for a name that fits nothing.
    """
    if not (folder / EXAMPLES).is_dir():
        raise TaskError(f"{folder} has no folder {EXAMPLES!r}: give OSWorld's evaluation_examples, or a copy of it.")
    named = _named(folder / TASKS_LIST)
    chosen = [
        (domain, task_id) for domain, task_id in named if not only or any(_fits(one, domain, task_id) for one in only)
    ]
    for one in only:
        if not any(_fits(one, domain, task_id) for domain, task_id in named):
            raise TaskError(f"{one!r} is no domain and no beginning of an id of OSWorld's {len(named)} offline tasks.")
    return [_case(folder, domain, task_id, scorer) for domain, task_id in chosen]


def _named(listed: Path) -> list[tuple[str, str]]:
    """Domain and id of every offline task: those of the list, where there is one."""
    if not listed.exists():
        return [(domain, task_id) for domain, ids in OFFLINE.items() for task_id in ids]
    entries = [line.split("\t")[0].strip() for line in listed.read_text(encoding="utf-8").splitlines()]
    return [(domain, task_id) for domain, slash, task_id in (entry.partition("/") for entry in entries) if slash]


def _fits(name: str, domain: str, task_id: str) -> bool:
    return name == domain or task_id.startswith(name.removeprefix(f"{domain}/"))


def _case(folder: Path, domain: str, task_id: str, scorer: Scorer) -> Case:
    task = load_file(folder / EXAMPLES / domain / f"{task_id}.json")
    return Case(domain, task, ORACLES.get(task.id), reason_of(domain, task.id), scorer)


async def perform(env: AsyncDesktopEnv, moves: Sequence[Move], clock: Clock) -> None:
    """Play moves one by one. Raises TaskError where a target does not appear, or where code fails."""
    for number, move in enumerate(moves):
        result = await env.step(await _resolved(env, move, number, clock))
        if result.end is not None:
            raise TaskError(f"the episode ended at move {number} ({result.end}): {result.info.get('cause')}")
        code = result.info.get("code")
        if code and (code["returncode"] or code["timed_out"]):
            raise TaskError(f"move {number} failed: {code['stderr'].strip()[-300:] or 'it took too long'}")


async def _resolved(env: AsyncDesktopEnv, move: Move, number: int, clock: Clock) -> Action | DecodedAction:
    assert env.lease is not None
    try:
        return (await resolve(env.lease, [move], timeout_s=TARGET_TIMEOUT_S, clock=clock))[0].action
    except LookupError as error:
        raise TaskError(f"stuck at move {number}: {error}") from error


async def prove(env: AsyncDesktopEnv, case: Case, play: ValidationRun, *, clock: Clock = SYSTEM_CLOCK) -> Result:
    """Play one case once, on a desktop that is set up for it. Raises FarmError when the farm gives no desktop."""
    started_s = ready_s = clock.monotonic()
    set_up, reward, cause, digest = False, None, None, ""
    try:
        await env.reset(case.task, share_setup=False)
        ready_s, set_up = clock.monotonic(), True
        digest = env.lease.image_digest if env.lease is not None else ""
        if play is ValidationRun.ORACLE:
            assert case.solution is not None
            await perform(env, case.solution.moves, clock)
        last = await env.step(Action(ActionType.FAIL if play is ValidationRun.FAIL else ActionType.DONE))
        reward, cause = _verdict(last, play)
    except FarmError:
        raise
    except DartEnvError as error:
        cause = f"{type(error).__name__}: {error}"
    ended_s = clock.monotonic()
    return Result(
        domain=case.domain,
        task_id=case.task.id,
        play=play,
        definition=case.definition(play),
        image_digest=digest,
        set_up=set_up,
        reward=reward,
        setup_s=round((ready_s if set_up else ended_s) - started_s, 2),
        play_s=round(ended_s - ready_s, 2) if set_up else 0.0,
        cause=cause,
    )


def _verdict(last: StepResult, play: ValidationRun) -> tuple[float | None, str | None]:
    if last.end is None or last.end.masked:
        return None, str(last.info.get("cause"))
    if last.reward == play.wanted:
        return last.reward, None
    return last.reward, f"scored {last.reward:g}: {json.dumps(last.info.get('outcome'), default=str)[:500]}"
