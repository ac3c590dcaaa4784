"""The inference component of a run: workers started, kept alive, and kept at the newest policy version.

Role: ties supervisor, pool and updater together for `python -m dart_agent.inference --config FILE`. Rule: it ends with SIGTERM
(exit code 0, everything gone) or when a worker cannot be kept alive (exit code 1, so that its launcher knows). Non-goals: requests of
rollout workers, which speak to the inference workers themselves; other programs use the chat API (`dart_agent.chat_api`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from dart_agent.chat_api.server import serve_chat
from dart_agent.data_client.client import DataManagerClient
from dart_agent.inference.addresses import WorkerAddress, write_addresses
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.config import InferenceConfig
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.rolling_update import RollingUpdateReport, follow_versions
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.supervisor import Supervisor, local_workers
from dart_agent.inference.worker_process import WorkerProcess
from dart_agent.metrics_file import append_metrics

logger = logging.getLogger(__name__)
LatestVersion = Callable[[], Awaitable[PublishedWeights | None]]


async def run_inference(config: InferenceConfig) -> None:
    """Run until cancelled. Raises AgentError when a worker cannot be kept alive or refuses new weights."""
    listener = None if config.chat is None else config.chat.bind()
    workers = local_workers(config.worker, config.workers, directory=config.directory, log_dir=config.logs)
    write_addresses(config.addresses, [WorkerAddress(worker.name, worker.directory) for worker in workers])
    try:
        if config.socket is None:
            await _serve(config, workers, None, listener)
        else:
            async with DataManagerClient(config.socket, config.logs) as data:
                await _serve(config, workers, latest_version_reader(data), listener)
    finally:
        if listener is not None:
            listener.close()
        with contextlib.suppress(OSError):
            config.directory.rmdir()


async def _serve(
    config: InferenceConfig,
    workers: list[WorkerProcess],
    latest: LatestVersion | None,
    listener: socket.socket | None,
) -> None:
    published = await latest() if latest is not None else None
    for worker in workers:
        worker.published = published
    async with (
        Supervisor(workers) as supervisor,
        VllmPool([WorkerClient(worker.name, worker.directory) for worker in workers]) as pool,
    ):
        logger.info("%d workers serve version %d", len(workers), 0 if published is None else published.version)
        pool.target = published
        tasks = [asyncio.create_task(supervisor.wait_for_failure(), name="keep-alive")]
        if config.chat is not None and listener is not None:
            tasks.append(
                asyncio.create_task(serve_chat(pool, config.chat, listener, config.worker.model), name="chat-api")
            )
        if latest is not None:

            def rolled(report: RollingUpdateReport) -> None:
                for worker in workers:
                    worker.published = pool.target
                _record(config.metrics, report)

            tasks.append(
                asyncio.create_task(
                    follow_versions(pool, latest, poll_s=config.poll_s, on_update=rolled), name="follow-versions"
                )
            )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def latest_version_reader(data: DataManagerClient) -> LatestVersion:
    """Asks the data manager for the newest version. Version 0 is the model that the workers start with."""

    async def latest() -> PublishedWeights | None:
        record = await data.latest_version()
        return None if record is None or record.version == 0 else PublishedWeights(record.version, Path(record.path))

    return latest


def _record(metrics: Path | None, report: RollingUpdateReport) -> None:
    if metrics is None:
        return
    line = {
        "kind": "weights",
        "time_s": time.time(),
        "version": report.version,
        "workers": list(report.updated),
        "paused_s": [round(seconds, 4) for seconds in report.paused_s],
        "total_s": round(report.total_s, 4),
    }
    append_metrics(metrics, line)
