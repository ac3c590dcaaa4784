"""The bundled suites proved on live desktops, repeats compared, and evaluations in parallel compared with serial ones.

Role: validations through `dart_envs.validation.suites` with a records that goes on where it stopped (`--out`), then evaluations on forks.
Rule: it asks the farm that `DART_FARM_URL` names, or this user's own, which needs room for the forks (`DART_MAX_DESKTOPS`). Non-goals:
judging tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dart_envs.cli.check import first_variations, format_validation
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError
from dart_envs.farm import AsyncFarmClient
from dart_envs.farm.base import FarmLike, LeaseLike
from dart_envs.tasks import Suite, Task, load_suite
from dart_envs.tasks.loader import BUNDLED_SUITES
from dart_envs.types import ActionType, DecodedAction
from dart_envs.validation.records import ValidationRecords
from dart_envs.validation.suites import make_jobs, validate_all

REPEATED_FAMILIES = 3
"""Of each suite so many families have one variation repeated, unless `--repeat-all`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument(
        "--suites", nargs="+", choices=tuple(BUNDLED_SUITES), default=list(BUNDLED_SUITES), help="default: all"
    )
    parser.add_argument("--variations", type=int, default=5, help="of each family")
    parser.add_argument("--families", type=int, default=None, help="only the first so many of each suite")
    parser.add_argument("--repeats", type=int, default=3, help="plays of what is repeated")
    parser.add_argument("--parallel", type=int, default=2, help="desktops at a time")
    parser.add_argument("--evaluations", type=int, default=16, help="forks that are evaluated at once; 0: none")
    parser.add_argument("--out", type=Path, default=None, help="folder of the validations, to go on from")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """`total_s`, `all_passed`, `repeats_agree`, `parallel_equal_serial`, and the validations' record."""
    return asyncio.run(_measure(args))


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    started_s = time.monotonic()
    records = ValidationRecords(args.out)
    wanted = []
    for name in args.suites:
        chosen = load_suite(name)
        families = list(chosen.families)[: args.families]
        jobs = make_jobs(first_variations(chosen, families, None, args.variations))
        again = make_jobs(first_variations(chosen, families[:REPEATED_FAMILIES], None, 1), repeats=args.repeats)
        wanted += [(job, chosen.shape) for job in [*jobs, *(job for job in again if job.repeat)]]
    async with await AsyncFarmClient.connect() as farm:
        for shape in dict.fromkeys(shape for _, shape in wanted):
            todo = records.pending([job for job, own in wanted if own == shape], shape)
            async for validation in validate_all(farm, todo, shape=shape, parallel=args.parallel):
                records.add(validation, shape)
                print(format_validation(validation), file=sys.stderr, flush=True)
        equal = [await compare(farm, load_suite(name), args.evaluations) for name in args.suites if args.evaluations]
    record = records.summary(wanted)
    return {
        "suites": args.suites,
        "all_passed": record["all_passed"],
        "total_s": record["wall_s"],
        "this_run_s": round(time.monotonic() - started_s, 1),
        "repeats_agree": record["repeats_agree"],
        "parallel_equal_serial": all(one["equal"] for one in equal) if equal else None,
        "evaluations": equal,
        **{
            name: record[name]
            for name in ("families", "tasks", "validations_expected", "passed", "failed", "by_kind", "by_family")
        },
    }


async def compare(farm: FarmLike, chosen: Suite, count: int) -> dict[str, Any]:
    """Verdicts on `count` forks of one prepared desktop and `count` of the same one solved, at once and one after the other."""
    task = chosen.load(chosen.tasks(None, [next(iter(chosen.families))])[0])
    parallel: list[float] = []
    serial: list[float] = []
    times_s = {"parallel_s": 0.0, "serial_s": 0.0}
    async with AsyncDesktopEnv(farm, shape=chosen.shape, max_steps=500, labels={"purpose": "validation"}) as env:
        await env.reset(task)
        for solve in (False, True):
            if solve:
                await solve_it(env, task)
            lease = env.lease
            if lease is None:
                raise DartEnvError("The desktop was lost while it was compared.")
            started_s = time.monotonic()
            parallel += await verdicts(task, (await lease.fork(count)).leases)
            between_s = time.monotonic()
            for _ in range(count):
                serial += await verdicts(task, (await lease.fork(1)).leases)
            times_s["parallel_s"] += between_s - started_s
            times_s["serial_s"] += time.monotonic() - between_s
    told = {name: round(value, 1) for name, value in times_s.items()}
    wanted = [0.0] * count + [1.0] * count
    return {"task": task.id, "forks": count, "equal": parallel == serial == wanted, "rewards": parallel, **told}


async def verdicts(task: Task, leases: Sequence[LeaseLike]) -> list[float]:
    """Rewards of all at once; the leases are given back."""
    try:
        return [one.reward for one in await asyncio.gather(*(task.evaluate(lease) for lease in leases))]
    finally:
        await asyncio.gather(*(lease.release() for lease in leases))


async def solve_it(env: AsyncDesktopEnv, task: Task) -> None:
    """Play the oracle, all but the DONE."""
    step = 0
    while env.lease is not None:
        plays = await task.resolve_script(env.lease, step=step)
        if not plays or (not isinstance(plays[0].action, DecodedAction) and plays[0].action.type is ActionType.DONE):
            return
        await env.step(plays[0].action)
        step += 1
