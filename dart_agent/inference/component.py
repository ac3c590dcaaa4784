"""The inference component of a run: workers started, kept alive, and kept at the newest policy version.

Role: ties supervisor, pool, updater, chat API and metrics together for `python -m dart_agent.inference --config FILE`. Rule: it ends with
SIGTERM (exit code 0, everything gone) or when a worker cannot be kept alive or a version cannot be taken (exit code 1, so that its launcher
knows). Non-goals: requests of rollout workers, which speak to the inference workers themselves; other programs use the chat API
(`dart_agent.chat_api`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

from dart_agent.chat_api.server import serve_chat
from dart_agent.data_client.client import DataManagerClient
from dart_agent.errors import WeightUpdateError, WorkerError
from dart_agent.inference.addresses import WorkerAddress, write_addresses
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.config import InferenceConfig
from dart_agent.inference.decisions.worker_activity import activity_line
from dart_agent.inference.metrics_page import MetricsPage, bind_loopback, serve_metrics
from dart_agent.inference.pool import PolicyWorker, VllmPool
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.supervisor import Supervisor, local_workers
from dart_agent.inference.weight_updater import LatestVersion, WeightRollout, WeightUpdater
from dart_agent.inference.weights.leases import WeightLease, hold
from dart_agent.inference.wire import WorkerHealth
from dart_agent.inference.worker_process import ENGINE_MODULE, WorkerProcess
from dart_agent.metrics_file import append_metrics
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

logger = logging.getLogger(__name__)

ACTIVITY_S = 10.0
"""How often a line of kind `workers` says what the workers did."""


async def run_inference(config: InferenceConfig, *, engine_module: str = ENGINE_MODULE) -> None:
    """Run until cancelled; `engine_module` is the program of the workers.

    Raises AgentError when a worker cannot be kept alive or refuses new weights.
    """
    with contextlib.ExitStack() as opened:
        chat = None if config.chat is None else opened.enter_context(config.chat.bind())
        page = None if config.metrics_port is None else opened.enter_context(bind_loopback(config.metrics_port))
        workers = local_workers(
            config.worker_settings(), directory=config.directory, log_dir=config.logs, module=engine_module
        )
        holding = frozenset(worker.name for worker in workers[config.workers - config.holding_workers :])
        write_addresses(
            config.addresses,
            [WorkerAddress(worker.name, worker.directory, worker.name in holding) for worker in workers],
        )
        try:
            if config.data_address is None:
                await _serve(config, workers, holding, None, chat, page)
            else:
                async with DataManagerClient(config.data_address, config.logs, key=config.read_data_key()) as data:
                    await _serve(config, workers, holding, data, chat, page)
        finally:
            with contextlib.suppress(OSError):
                config.directory.rmdir()


async def _serve(
    config: InferenceConfig,
    workers: list[WorkerProcess],
    holding: frozenset[str],
    data: DataManagerClient | None,
    chat: socket.socket | None,
    page: socket.socket | None,
) -> None:
    latest = None if data is None else latest_version_reader(data)
    published, lease = (None, None) if latest is None else await hold_newest(latest)
    # Until the updater holds a later one: a worker that restarts before that begins with it again.
    with contextlib.nullcontext() if lease is None else lease:
        for worker in workers:
            worker.published = published
        async with (
            Supervisor(workers) as supervisor,
            VllmPool([WorkerClient(worker.name, worker.directory) for worker in workers], holding=holding) as pool,
        ):
            logger.info("%d workers serve version %d", len(workers), 0 if published is None else published.version)
            updater = None if data is None else _updater(config, workers, holding, pool, supervisor, data, lease)
            tasks = [asyncio.create_task(supervisor.wait_for_failure(), name="keep-alive")]
            if config.chat is not None and chat is not None:
                serving = serve_chat(pool, config.chat, chat, config.worker.model)
                tasks.append(asyncio.create_task(serving, name="chat-api"))
            if page is not None:
                tasks.append(asyncio.create_task(serve_metrics(MetricsPage(pool, supervisor, updater), page)))
            if updater is not None:
                tasks.append(asyncio.create_task(updater.run(), name="weights"))
            if config.metrics is not None:
                clients = [member.client for member in pool.members]
                tasks.append(asyncio.create_task(record_activity(clients, config.metrics), name="activity"))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def hold_newest(latest: LatestVersion, attempts: int = 3) -> tuple[PublishedWeights | None, WeightLease | None]:
    """Hold the newest version, for workers that are about to start.

    Args:
        latest: Tells the newest version.
        attempts: How often it is asked again where the version was removed between the answer and the lease.

    Returns:
        The version and its lease; None where there is none yet.

    Raises:
        WeightUpdateError: Every version that was told is gone.
    """
    for attempt in range(1, attempts + 1):
        published = await latest()
        if published is None:
            return None, None
        try:
            return published, hold(published.path)
        except WeightUpdateError:
            if attempt == attempts:
                raise
    raise AssertionError("at least one attempt")


def _updater(
    config: InferenceConfig,
    workers: list[WorkerProcess],
    holding: frozenset[str],
    pool: VllmPool,
    supervisor: Supervisor,
    data: DataManagerClient,
    lease: WeightLease | None,
) -> WeightUpdater:
    """lease: of the version that the workers were started with; released when the updater holds a later one."""

    def accepted(published: PublishedWeights) -> None:
        for worker in workers:
            worker.published = published
        if lease is not None:
            lease.release()

    return WeightUpdater(
        pool,
        latest_version_reader(data),
        held=held_version_reader(data) if holding else None,
        holding=holding,
        settings=config.updates.to_settings(),
        poll_s=config.poll_s,
        on_accepted=accepted,
        on_rollout=lambda rollout: _record(config.metrics, rollout),
        on_late=lambda name: supervisor.replace(name, "it did not take new weights in time"),
    )


def latest_version_reader(data: DataManagerClient) -> LatestVersion:
    """Asks the data manager for the newest version. Version 0 is the model that the workers start with."""

    async def latest() -> PublishedWeights | None:
        record = await data.latest_version()
        if record is None or record.version == 0:
            return None
        return PublishedWeights(record.version, Path(record.path), record.digest)

    return latest


def held_version_reader(data: DataManagerClient) -> LatestVersion:
    """Asks the data manager for the version of the evaluation that is being played."""

    async def held() -> PublishedWeights | None:
        record = await data.held_version()
        if record is None or record.version == 0:
            return None
        return PublishedWeights(record.version, Path(record.path), record.digest)

    return held


async def record_activity(workers: Sequence[PolicyWorker], metrics: Path, clock: Clock = SYSTEM_CLOCK) -> None:
    """Append what the workers did to the metrics, again and again until cancelled.

    Args:
        workers: Clients of all workers.
        metrics: The metrics file.
        clock: Measures the windows.
    """
    before, since_s = await _ask(workers), clock.monotonic()
    while True:
        await clock.sleep(ACTIVITY_S)
        now, now_s = await _ask(workers), clock.monotonic()
        answered = {name: health for name, health in before.items() if health is not None}
        line = activity_line(answered, now, now_s - since_s)
        append_metrics(metrics, {"kind": "workers", "time_s": clock.time()} | line)
        before, since_s = now, now_s


async def _ask(workers: Sequence[PolicyWorker]) -> dict[str, WorkerHealth | None]:
    async def ask(worker: PolicyWorker) -> WorkerHealth | None:
        try:
            return await worker.health()
        except WorkerError:
            return None

    found = await asyncio.gather(*(ask(worker) for worker in workers))
    return dict(zip((worker.name for worker in workers), found, strict=True))


def _record(metrics: Path | None, rollout: WeightRollout) -> None:
    if metrics is None:
        return
    line = {
        "kind": "weights",
        "time_s": SYSTEM_CLOCK.time(),
        "version": rollout.weights.number,
        "workers": list(rollout.times),
        "staged_s": [round(rollout.staged_s.get(name, 0.0), 4) for name in rollout.times],
        "paused_s": [round(seconds, 4) for seconds in rollout.paused_s.values()],
        "total_s": round(rollout.total_s, 4),
    }
    append_metrics(metrics, line)
