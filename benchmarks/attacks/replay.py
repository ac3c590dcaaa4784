"""Replays attacks on live desktops, and keeps what each was rewarded with.

Role: one desktop per family is prepared, every attack gets a fresh copy of it, plays its program as one action of the episode and says
DONE. Rule: the env judges as in training; a fault of the farm is tried again, one that stays is `None`, never a failure of the attack.
Lines are written as results come, so that a run goes on where it stopped. Non-goals: which attacks there are (`book`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.attacks.book import Attack
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.worker_pool import run_jobs
from dart_envs.errors import DartEnvError, FarmError
from dart_envs.farm.base import FarmLike
from dart_envs.tasks import Task
from dart_envs.types import ActionType, DecodedAction, EndReason
from dart_server.wire import DesktopShape

ATTEMPTS = 3
SHOWN_CHARS = 400

MISTAKES = (
    "AttributeError",
    "ImportError",
    "IndexError",
    "KeyError",
    "NameError",
    "StopIteration",
    "SyntaxError",
    "TypeError",
)
"""Exceptions of Python that come from an attack's own program."""


@dataclass(frozen=True, slots=True)
class AttackJob:
    """One task, and the attacks that are to be replayed on it."""

    task: Task
    attacks: tuple[Attack, ...]


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What one attack on one task came to.

    Attributes:
        suite: The task's suite.
        family: The task's family.
        attack: The attack's id.
        sudo: Whether it took root inside the desktop.
        reward: The episode's reward; None where the farm or the evaluator gave no verdict.
        end: How the episode ended.
        reason: What the evaluator found, or why there is no verdict.
        program: Return code of the attack's program, and the end of what it printed as error.
        definition: sha256 of the task and of the attack's program, as they were.
    """

    suite: str
    family: str
    attack: str
    sudo: bool
    reward: float | None
    end: str
    reason: str
    program: str
    definition: str

    @property
    def succeeded(self) -> bool:
        """Whether the attack was rewarded."""
        return self.reward is not None and self.reward > 0.0


def definition(task: Task, attack: Attack) -> str:
    """sha256 (hex) over the task and what the attack runs: what was measured of another definition does not stand."""
    return hashlib.sha256(f"{task.content_hash}\n{attack.code(task)}".encode()).hexdigest()


async def play(env: AsyncDesktopEnv, task: Task, attack: Attack) -> AttackResult:
    """Play one attack as an episode of two actions: its program, then DONE.

    Args:
        env: The env, with or without a desktop.
        task: The task.
        attack: The attack.

    Returns:
        The result.

    Raises:
        FarmError: If the farm gives no desktop.
    """
    program = ""
    try:
        await env.reset(task, share_setup=True, step_limit=50)
        result = await env.step(DecodedAction(code=attack.code(task)))
        code = result.info.get("code", {})
        program = f"{code.get('returncode')} {str(code.get('stderr', '')).strip()[-SHOWN_CHARS:]}".strip()
        if result.end is None:
            result = await env.step(DecodedAction(end=ActionType.DONE))
        end = result.end or EndReason.DONE
        reason = json.dumps(result.info.get("outcome", result.info.get("cause")), default=str)[:SHOWN_CHARS]
        reward = None if end.masked else result.reward
    except FarmError:
        raise
    except DartEnvError as error:
        end, reason, reward = EndReason.FARM_FAULT, f"{type(error).__name__}: {error}"[:SHOWN_CHARS], None
    return AttackResult(
        task.suite,
        task.family,
        attack.attack_id,
        attack.sudo,
        reward,
        end.value,
        reason,
        program,
        definition(task, attack),
    )


async def play_job(env: AsyncDesktopEnv, job: AttackJob) -> list[AttackResult]:
    """Replay the attacks of one job; those without a verdict by a fault of the farm are tried again."""
    results: list[AttackResult] = []
    for attack in job.attacks:
        for _ in range(ATTEMPTS):
            result = await play(env, job.task, attack)
            if result.end != EndReason.FARM_FAULT:
                break
        results.append(result)
    return results


async def replay_all(
    farm: FarmLike, jobs: Sequence[AttackJob], *, shape: DesktopShape, parallel: int
) -> AsyncIterator[list[AttackResult]]:
    """Do every job on `parallel` desktops at a time; results come job by job, in the order they end."""

    @asynccontextmanager
    async def open_worker() -> AsyncIterator[Callable[[AttackJob], Awaitable[list[AttackResult]]]]:
        async with AsyncDesktopEnv(farm, shape=shape, labels={"purpose": "attacks"}) as env:

            async def work(job: AttackJob) -> list[AttackResult]:
                return await play_job(env, job)

            yield work

    async with aclosing(run_jobs(jobs, open_worker, parallel=parallel)) as results:
        async for result in results:
            yield result


class AttackRecords:
    """Results as lines of a file, the newest of each definition; `path` None keeps them in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.results: dict[str, AttackResult] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._keep(AttackResult(**json.loads(line)))

    def _keep(self, result: AttackResult) -> None:
        self.results[result.definition] = result

    def add(self, results: Iterable[AttackResult]) -> None:
        """Write some down."""
        for result in results:
            self._keep(result)
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(result)) + "\n")

    def pending(self, task: Task, attacks: Iterable[Attack]) -> tuple[Attack, ...]:
        """Those attacks on a task that have no verdict yet."""
        return tuple(
            attack
            for attack in attacks
            if (held := self.results.get(definition(task, attack))) is None or held.reward is None
        )


def is_out_of_date(result: AttackResult) -> bool:
    """Whether the program of an attack ended by a mistake of its own, because the task has changed since it was written.

    What the desktop refuses ends in an OSError, or in a program that fails.
    """
    return result.program.strip().rpartition("\n")[2].startswith(MISTAKES)


def summarize(results: Sequence[AttackResult], families: int, reasons: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of the issue.

    Args:
        results: All results.
        families: How many families were attacked.
        reasons: What each attack fakes, by its id.

    Returns:
        Shares of hacked families without and with sudo, and every success with its reason.
    """
    hacked = {
        sudo: {(one.suite, one.family) for one in results if one.succeeded and one.sudo <= sudo}
        for sudo in (False, True)
    }
    return {
        "families": families,
        "attacks": len({one.attack for one in results}),
        "plays": len(results),
        "without_verdict": [asdict(one) for one in results if one.reward is None],
        "programs_failed": sum(not one.program.startswith("0") for one in results),
        "programs_out_of_date": sorted(f"{one.family} {one.attack}" for one in results if is_out_of_date(one)),
        "hacked_share_without_sudo": round(len(hacked[False]) / families, 4) if families else None,
        "hacked_share_with_sudo": round(len(hacked[True]) / families, 4) if families else None,
        "hacked_without_sudo": sorted("/".join(one) for one in hacked[False]),
        "hacked_with_sudo": sorted("/".join(one) for one in hacked[True]),
        "successes": [
            {
                "family": f"{one.suite}/{one.family}",
                "attack": one.attack,
                "sudo": one.sudo,
                "reason": reasons[one.attack],
            }
            for one in results
            if one.succeeded
        ],
    }
