"""`dart-envs tasks check --osworld DIR`: proves OSWorld's offline tasks and makes the table.

Role: arguments' meaning, progress and exit code of that form. Rule: goes on where an earlier run with the same `--out` stopped. Non-goals:
playing (`prove`), the table's words (`records`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from pathlib import Path

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.worker_pool import run_jobs
from dart_envs.evaluators.scorer_choice import Scorer, choose_scorer, parse_scorer
from dart_envs.tasks.requirements import local_image_digest
from dart_envs.validation.osworld.records import (
    OsworldRecords,
    check_page,
    is_accounted_for,
    replace_table,
    to_markdown,
)
from dart_envs.validation.osworld.runs import (
    MAX_STEPS,
    OSWORLD_SHAPE,
    OsworldCase,
    OsworldResult,
    ValidationRun,
    load_cases,
    validate_case,
)

RESULTS_FILE = "osworld.jsonl"


def check(
    folder: Path,
    *,
    only: Sequence[str],
    out: Path | None,
    page: Path | None,
    parallel: int,
    scorer: str | None = None,
) -> bool:
    """Prove what is not proved yet, print the table, put it into `page`, and say whether every task is proved or has a written reason.

    scorer: who judges, OSWorld's own by default.

    Raises TaskError, EvaluatorError, ValueError, OSError for wrong input, before a desktop is leased; FarmError when the farm gives none.
    """
    scorer_choice = parse_scorer(scorer or Scorer.OSWORLD)
    wanted = load_cases(folder, only, scorer_choice)
    if page is not None:
        check_page(page, whole=not only, osworld_scorer=scorer_choice is Scorer.OSWORLD)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    digest = None if os.environ.get("DART_FARM_URL") else local_image_digest(OSWORLD_SHAPE.image)
    records = OsworldRecords(None if out is None else out / RESULTS_FILE, image_digest=digest)
    todo = records.pending(wanted)
    for case in {case.task.id: case for case, _ in todo if not case.infeasible}.values():
        choose_scorer(case.task.evaluator, scorer_choice, osworld_semantics=True)
    print(f"{len(wanted)} tasks, {len(todo)} plays to do.", flush=True)
    try:
        if todo:
            asyncio.run(_validate(records, todo, parallel))
    finally:
        table = to_markdown(records, wanted)
        print(table)
        if page is not None:
            replace_table(page, table)
    return all(is_accounted_for(records, case) for case in wanted)


async def _validate(records: OsworldRecords, todo: Sequence[tuple[OsworldCase, ValidationRun]], parallel: int) -> None:
    from dart_envs.farm import AsyncFarmClient

    async with await AsyncFarmClient.connect() as farm:

        async def validate(job: tuple[OsworldCase, ValidationRun]) -> OsworldResult:
            case, run = job
            async with AsyncDesktopEnv(
                farm,
                shape=OSWORLD_SHAPE,
                max_steps=MAX_STEPS,
                labels={"purpose": "osworld validation"},
                wait_s=300.0,
                scorer=case.scorer,
            ) as env:
                return await validate_case(env, case, run)

        async with aclosing(run_jobs(todo, lambda: nullcontext(validate), parallel=parallel)) as results:
            async for result in results:
                records.add(result)
                print(_line(result), flush=True)


def _line(result: OsworldResult) -> str:
    word = "ok  " if result.passed else "FAIL"
    times = f"setup {result.setup_s:5.1f} s, run {result.episode_s:5.1f} s"
    return f"{word} {result.domain}/{result.task_id[:8]} {result.run:<8} {times} {result.cause or ''}".rstrip()
