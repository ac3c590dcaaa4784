"""Keeps the inference workers of one machine alive.

Role: start K workers, restart the one that ends, replace the one that hangs, stop them all. Rule: one worker's death never touches
another; a worker that keeps dying while it starts is an error of the run, not a loop. A worker is drained before it is stopped or
replaced. Non-goals: routing (`dart_agent.inference.pool`) and weights (`weight_updater`): a restarted worker begins with the newest
version that another serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from dart_agent.errors import WorkerError, WorkerKilledError
from dart_agent.inference.settings import WorkerSettings
from dart_agent.inference.worker_process import ENGINE_MODULE, WorkerProcess
from dart_envs.clock import SystemClock
from dart_server.wire import Clock

logger = logging.getLogger(__name__)


class SupervisedWorker(Protocol):
    """What is supervised: a `WorkerProcess`, or a fake in tests."""

    name: str

    async def start(self) -> None:
        """Start it."""
        ...

    async def wait_until_ready(self) -> None:
        """Return when it serves; raises WorkerError when it never will."""
        ...

    async def wait(self) -> int:
        """Return when it ended."""
        ...

    async def drain(self) -> None:
        """Let it finish what runs, within its limit."""
        ...

    def kill(self) -> None:
        """End it at once; `wait` returns."""
        ...

    async def stop(self) -> None:
        """End it; idempotent."""
        ...


class Supervisor:
    """Runs a task per worker: start, watch, restart. Use as an async context manager or `start` / `stop`."""

    def __init__(
        self,
        workers: Sequence[SupervisedWorker],
        *,
        clock: Clock | None = None,
        max_failed_starts: int = 3,
        restart_delay_s: float = 1.0,
    ) -> None:
        self.workers = tuple(workers)
        self.restarts = 0
        self._clock = clock or SystemClock()
        self._max_failed_starts = max_failed_starts
        self._restart_delay_s = restart_delay_s
        self._tasks: list[asyncio.Task[None]] = []
        self._replacing: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Start all workers at once; returns when every one serves.

        A worker that is killed while it starts is started again; one that ends by itself does not suit this host or has wrong settings.

        Raises:
            WorkerError: A worker cannot start; all are stopped.
        """
        try:
            await asyncio.gather(*(self._bring_up(worker, WorkerKilledError) for worker in self.workers))
        except BaseException:  # cancelled, too, no worker may stay; raised again
            await self.stop()
            raise
        self._tasks = [asyncio.create_task(self._keep_alive(worker), name=worker.name) for worker in self.workers]

    async def wait_for_failure(self) -> None:
        """Wait until a worker could not be restarted; raises its WorkerError. Cancel it when the run ends."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    def replace(self, name: str, why: str) -> None:
        """Drain a worker and start another in its place; does nothing where that is under way.

        Args:
            name: The worker.
            why: For the log.
        """
        running = self._replacing.get(name)
        if running is not None and not running.done():
            return
        logger.warning("%s is replaced: %s", name, why)
        worker = next(worker for worker in self.workers if worker.name == name)

        async def drain_and_kill() -> None:
            await worker.drain()
            worker.kill()

        self._replacing[name] = asyncio.create_task(drain_and_kill(), name=f"replace-{name}")

    async def stop(self) -> None:
        """Drain and end all workers and leave nothing behind; idempotent."""
        tasks = [*self._tasks, *self._replacing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []
        self._replacing = {}
        await asyncio.gather(*(self._end(worker) for worker in self.workers))

    @staticmethod
    async def _end(worker: SupervisedWorker) -> None:
        try:
            await worker.drain()
        finally:
            await worker.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _keep_alive(self, worker: SupervisedWorker) -> None:
        while True:
            code = await worker.wait()
            logger.warning("%s ended with code %s, starting it again", worker.name, code)
            self.restarts += 1
            await self._bring_up(worker, WorkerError)

    async def _bring_up(self, worker: SupervisedWorker, retried: type[WorkerError]) -> None:
        """Start a worker and wait until it serves, again after the errors in `retried`."""
        for attempt in range(1, self._max_failed_starts + 1):
            try:
                await worker.start()
                await worker.wait_until_ready()
                return
            except retried as error:
                logger.warning("start %d of %s failed: %s", attempt, worker.name, error)
                if attempt == self._max_failed_starts:
                    raise
                await self._clock.sleep(self._restart_delay_s * 2**attempt)


def local_workers(
    settings: Sequence[WorkerSettings],
    *,
    directory: Path,
    log_dir: Path,
    clock: Clock | None = None,
    module: str = ENGINE_MODULE,
) -> list[WorkerProcess]:
    """A worker for each settings, named `policy-0`..., living below `directory`, logging to `log_dir`; `module`: its program."""
    return [
        WorkerProcess(
            f"policy-{index}",
            own,
            directory=directory / str(index),
            log_path=log_dir / f"policy-{index}.log",
            clock=clock,
            module=module,
        )
        for index, own in enumerate(settings)
    ]
