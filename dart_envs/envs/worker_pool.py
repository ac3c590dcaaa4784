"""Jobs spread over a fixed number of workers, results in the order in which they end.

Role: `run_jobs`, the one pool behind evaluation and validation: each worker usually holds one desktop. Rule: the first exception of a
worker ends the pool and reaches the caller, but a worker that is only unavailable gives its job back as long as others work. When the
caller stops, every worker is cancelled and awaited, so no desktop stays leased.
Non-goals: what a job is, retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

log = logging.getLogger(__name__)

MAX_REFUSALS = 2
"""Refusals in a row after which the last worker gives up."""
J = TypeVar("J")
R = TypeVar("R")


class WorkerUnavailable(Exception):
    """A worker could not take a job, and nothing was done; its cause is raised where no other worker can."""


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
        Exception: What a worker or a job raised first; the cause of `WorkerUnavailable` where the last worker is unavailable twice.
    """
    waiting = deque(jobs)
    njobs = len(waiting)
    ended: asyncio.Queue[tuple[R] | Exception] = asyncio.Queue()
    nworkers = min(parallel, njobs)

    async def work() -> None:
        nonlocal nworkers
        refusals = 0
        try:
            async with open_worker() as run_job:
                while waiting:
                    job = waiting.popleft()
                    try:
                        ended.put_nowait((await run_job(job),))
                        refusals = 0
                    except WorkerUnavailable as refusal:
                        waiting.appendleft(job)
                        refusals += 1
                        if nworkers > 1:
                            log.warning("One of %d workers gives up, the others go on: %s", nworkers, refusal)
                            nworkers -= 1
                            return
                        if refusals == MAX_REFUSALS:
                            raise refusal.__cause__ or refusal from None
                nworkers -= 1  # from here on this worker takes no job, while giving its desktop back may take long
        except Exception as error:  # noqa: BLE001 - raised again in the generator
            ended.put_nowait(error)

    workers = [asyncio.create_task(work()) for _ in range(nworkers)]
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
