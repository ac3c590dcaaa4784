"""Jobs spread over a fixed number of workers, results in the order in which they end.

Role: `run_jobs`, the one pool behind evaluation and validation: each worker usually holds one desktop. Rule: the first exception of a
worker ends the pool and reaches the caller; when the caller stops, every worker is cancelled and awaited, so no desktop stays leased.
Non-goals: what a job is, retries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")


async def run_jobs(
    jobs: Iterable[J],
    open_worker: Callable[[], AbstractAsyncContextManager[Callable[[J], Awaitable[R]]]],
    *,
    parallel: int,
) -> AsyncGenerator[R, None]:
    """Run every job once.

    Args:
        jobs: The jobs, started in this order.
        open_worker: Opens one worker: an asynchronous context manager of the function that runs one job. It is entered once per worker.
        parallel: The largest number of workers.

    Yields:
        The result of each job, in the order in which the jobs end.

    Raises:
        Exception: What a worker or a job raised first.
    """
    waiting = deque(jobs)
    njobs = len(waiting)
    ended: asyncio.Queue[tuple[R] | Exception] = asyncio.Queue()

    async def work() -> None:
        try:
            async with open_worker() as run_job:
                while waiting:
                    ended.put_nowait((await run_job(waiting.popleft()),))
        except Exception as error:  # noqa: BLE001 - raised again in the generator
            ended.put_nowait(error)

    workers = [asyncio.create_task(work()) for _ in range(min(parallel, njobs))]
    try:
        for _ in range(njobs):
            end = await ended.get()
            if isinstance(end, Exception):
                raise end
            yield end[0]
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
