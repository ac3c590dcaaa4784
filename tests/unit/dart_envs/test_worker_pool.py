"""The pool of workers behind evaluation and validation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import pytest

from dart_envs.envs.worker_pool import WorkerUnavailable, run_jobs

Worker = Callable[[str], Awaitable[str]]


def workers_one_of_which_never_closes(refusals: int) -> Callable[[], AbstractAsyncContextManager[Worker]]:
    """Return an opener of two workers.

    One of them runs the short job and does not end until it is cancelled. Meanwhile the other one refuses the long job, `refusals` times.
    """
    closing = asyncio.Event()
    left = refusals

    async def run_job(job: str) -> str:
        nonlocal left
        if job == "short":
            return job
        await closing.wait()
        if left:
            left -= 1
            raise WorkerUnavailable("no desktop") from ValueError("full")
        return job

    @asynccontextmanager
    async def open_worker() -> AsyncIterator[Worker]:
        done: list[str] = []

        async def run(job: str) -> str:
            done.append(job)
            return await run_job(job)

        yield run
        if done == ["short"]:
            closing.set()
            await asyncio.Event().wait()

    return open_worker


async def results(open_worker: Callable[[], AbstractAsyncContextManager[Worker]]) -> list[str]:
    async with asyncio.timeout(10), aclosing(run_jobs(["long", "short"], open_worker, parallel=2)) as ended:
        return [one async for one in ended]


async def test_a_job_that_is_refused_while_the_other_worker_closes_is_run() -> None:
    assert await results(workers_one_of_which_never_closes(1)) == ["short", "long"]


async def test_a_worker_that_refuses_while_the_other_one_closes_is_the_last() -> None:
    with pytest.raises(ValueError, match="full"):
        await results(workers_one_of_which_never_closes(2))
