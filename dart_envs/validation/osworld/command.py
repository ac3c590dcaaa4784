"""`dart-envs tasks check --osworld DIR`: proves OSWorld's offline tasks and makes the table.

Role: arguments' meaning, progress and exit code of that form. Rule: goes on where an earlier run with the same `--out` stopped. Non-goals:
playing (`prove`), the table's words (`book`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.evaluators.scorer_choice import Scorer, decide, scorer_named
from dart_envs.tasks.requirements import local_digest
from dart_envs.validation.osworld.prove import MAX_STEPS, SHAPE, Case, Result, ValidationRun, cases, prove
from dart_envs.validation.osworld.records import OsworldRecords, accounted, check_page, put_into, to_markdown

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
    judge = scorer_named(scorer or Scorer.OSWORLD)
    wanted = cases(folder, only, judge)
    if page is not None:
        check_page(page, whole=not only, official=judge is Scorer.OSWORLD)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    digest = None if os.environ.get("DART_FARM_URL") else local_digest(SHAPE.image)
    book = OsworldRecords(None if out is None else out / RESULTS_FILE, image_digest=digest)
    todo = book.todo(wanted)
    for case in {case.task.id: case for case, _ in todo if not case.infeasible}.values():
        decide(case.task.evaluator, judge, as_osworld=True)
    print(f"{len(wanted)} tasks, {len(todo)} plays to do.", flush=True)
    try:
        if todo:
            asyncio.run(_prove(book, todo, parallel))
    finally:
        table = to_markdown(book, wanted)
        print(table)
        if page is not None:
            put_into(page, table)
    return all(accounted(book, case) for case in wanted)


async def _prove(book: OsworldRecords, todo: Sequence[tuple[Case, ValidationRun]], parallel: int) -> None:
    from dart_envs.farm import AsyncFarmClient

    left = list(reversed(todo))
    async with await AsyncFarmClient.connect() as farm:

        async def work() -> None:
            while left:
                case, play = left.pop()
                async with AsyncDesktopEnv(
                    farm,
                    shape=SHAPE,
                    max_steps=MAX_STEPS,
                    labels={"purpose": "osworld proof"},
                    wait_s=300.0,
                    scorer=case.scorer,
                ) as env:
                    result = await prove(env, case, play)
                book.add(result)
                print(_line(result), flush=True)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(parallel, len(left))):
                group.create_task(work())


def _line(result: Result) -> str:
    word = "ok  " if result.holds else "FAIL"
    times = f"setup {result.setup_s:5.1f} s, play {result.play_s:5.1f} s"
    return f"{word} {result.domain}/{result.task_id[:8]} {result.play:<8} {times} {result.cause or ''}".rstrip()
