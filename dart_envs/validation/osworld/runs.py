"""Plays OSWorld's offline tasks on live desktops under the osworld scorer.

Role: which plays prove a task, and playing one. Rule: each run has a desktop of its own, set up anew; a target that is not on the screen
yet is waited for; faults of farm, setup and scorer are the run's cause, never a pass. Non-goals: the record and the table
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
from dart_envs.tasks.script import ActionTemplate, resolve_actions
from dart_envs.tasks.suite import OSWORLD_RESOLUTION
from dart_envs.types import Action, ActionType, DecodedAction, StepResult
from dart_envs.validation.osworld.actions import Oracle
from dart_envs.validation.osworld.offline import OFFLINE_TASK_IDS
from dart_envs.validation.osworld.oracles import ORACLES, exclusion_reason
from dart_server.wire import Clock, DesktopShape

TARGET_TIMEOUT_S = 60.0
MAX_STEPS = 100
OSWORLD_SHAPE = DesktopShape(image=OSWORLD_IMAGE, resolution=OSWORLD_RESOLUTION)
"""What OSWorld's coordinates assume."""
EXAMPLES, TASKS_LIST = "examples", "zero_download.txt"
"""In a folder of OSWorld's data: the task files by domain, and, where somebody chose other tasks, domain/id at the start of each line."""


class ValidationRun(StrEnum):
    """What is played."""

    NOOP = "noop"
    ORACLE = "oracle"
    FAIL = "fail"
    DONE = "done"

    @property
    def expected_reward(self) -> float:
        """The reward that it must get."""
        return 1.0 if self in (ValidationRun.ORACLE, ValidationRun.FAIL) else 0.0


@dataclass(frozen=True, slots=True)
class OsworldCase:
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
    def runs(self) -> tuple[ValidationRun, ...]:
        if self.infeasible:
            return (ValidationRun.FAIL, ValidationRun.DONE)
        return (ValidationRun.NOOP, ValidationRun.ORACLE) if self.solution else (ValidationRun.NOOP,)

    def definition(self, run: ValidationRun) -> str:
        """What a result belongs to: the task's content, who judges and, for the oracle, its moves."""
        moves = [move.model_dump(mode="json") for move in self.solution.moves] if self.solution else []
        content = [self.task.content_hash, moves if run is ValidationRun.ORACLE else []]
        content += [self.scorer] if self.scorer is not Scorer.OSWORLD else []
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class OsworldResult:
    """One run. `reward` is None where there is no verdict. Times in seconds; `setup_done` says whether the setup came through."""

    domain: str
    task_id: str
    run: ValidationRun
    definition: str
    image_digest: str
    setup_done: bool
    reward: float | None
    setup_s: float
    episode_s: float
    cause: str | None

    @property
    def passed(self) -> bool:
        return self.setup_done and self.reward == self.run.expected_reward


def load_cases(folder: Path, only: Sequence[str] = (), scorer: Scorer = Scorer.OSWORLD) -> list[OsworldCase]:
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
        return [(domain, task_id) for domain, ids in OFFLINE_TASK_IDS.items() for task_id in ids]
    entries = [line.split("\t")[0].strip() for line in listed.read_text(encoding="utf-8").splitlines()]
    return [(domain, task_id) for domain, slash, task_id in (entry.partition("/") for entry in entries) if slash]


def _fits(name: str, domain: str, task_id: str) -> bool:
    return name == domain or task_id.startswith(name.removeprefix(f"{domain}/"))


def _case(folder: Path, domain: str, task_id: str, scorer: Scorer) -> OsworldCase:
    task = load_file(folder / EXAMPLES / domain / f"{task_id}.json")
    return OsworldCase(domain, task, ORACLES.get(task.id), exclusion_reason(domain, task.id), scorer)


async def perform(env: AsyncDesktopEnv, moves: Sequence[ActionTemplate], clock: Clock) -> None:
    """Play moves one by one. Raises TaskError where a target does not appear, or where code fails."""
    for number, move in enumerate(moves):
        result = await env.step(await _resolve_action(env, move, number, clock))
        if result.end is not None:
            raise TaskError(f"the episode ended at move {number} ({result.end}): {result.info.get('cause')}")
        code = result.info.get("code")
        if code and (code["returncode"] or code["timed_out"]):
            raise TaskError(f"move {number} failed: {code['stderr'].strip()[-300:] or 'it took too long'}")


async def _resolve_action(
    env: AsyncDesktopEnv, move: ActionTemplate, number: int, clock: Clock
) -> Action | DecodedAction:
    assert env.lease is not None
    try:
        return (await resolve_actions(env.lease, [move], timeout_s=TARGET_TIMEOUT_S, clock=clock))[0].action
    except LookupError as error:
        raise TaskError(f"stuck at move {number}: {error}") from error


async def validate_case(
    env: AsyncDesktopEnv, case: OsworldCase, run: ValidationRun, *, clock: Clock = SYSTEM_CLOCK
) -> OsworldResult:
    """Play one case once, on a desktop that is set up for it. Raises FarmError when the farm gives no desktop."""
    started_s = ready_s = clock.monotonic()
    setup_done, reward, cause, digest = False, None, None, ""
    try:
        await env.reset(case.task, share_setup=False)
        ready_s, setup_done = clock.monotonic(), True
        digest = env.lease.image_digest if env.lease is not None else ""
        if run is ValidationRun.ORACLE:
            assert case.solution is not None
            await perform(env, case.solution.moves, clock)
        last = await env.step(Action(ActionType.FAIL if run is ValidationRun.FAIL else ActionType.DONE))
        reward, cause = _verdict(last, run)
    except FarmError:
        raise
    except DartEnvError as error:
        cause = f"{type(error).__name__}: {error}"
    ended_s = clock.monotonic()
    return OsworldResult(
        domain=case.domain,
        task_id=case.task.id,
        run=run,
        definition=case.definition(run),
        image_digest=digest,
        setup_done=setup_done,
        reward=reward,
        setup_s=round((ready_s if setup_done else ended_s) - started_s, 2),
        episode_s=round(ended_s - ready_s, 2) if setup_done else 0.0,
        cause=cause,
    )


def _verdict(last: StepResult, run: ValidationRun) -> tuple[float | None, str | None]:
    if last.end is None or last.end.masked:
        return None, str(last.info.get("cause"))
    if last.reward == run.expected_reward:
        return last.reward, None
    return last.reward, f"scored {last.reward:g}: {json.dumps(last.info.get('outcome'), default=str)[:500]}"
