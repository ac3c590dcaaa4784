"""From an inference worker's key-value cache to the admission of rollouts: worker, pool, rollout worker, data manager."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from data_manager_harness import DataManagerHarness

from dart_agent.data_client.wire import TaskSelection
from dart_agent.inference.addresses import WorkerAddress, write_addresses
from dart_agent.inference.engine.server import build_app
from dart_agent.inference.engine.worker_engine import EngineLoad, WorkerEngine
from dart_agent.inference.settings import KEY_NAME, SOCKET_NAME
from dart_agent.rollouts.worker import run_worker
from dart_agent.rollouts.worker_config import WorkerConfig
from dart_envs.farm.client import AsyncFarmClient
from dart_train.data_manager.app import create_app
from dart_train.data_manager.catalog import SuiteCatalog
from dart_train.data_manager.service import DataManager
from dart_train.scheduling.entities import Worker
from tests.unit.dart_agent.fakes import ScriptedEnv
from tests.unit.dart_agent.test_worker_engine import FakeBackend


class FakeFullBackend(FakeBackend):
    """`usage` of its key-value cache is in use."""

    usage = 0.99

    def load_now(self) -> EngineLoad:
        return EngineLoad(kv_cache_usage=self.usage)


class FakeEmptyFarm:
    """A farm on which nobody holds a desktop."""

    async def leases(self) -> list[Any]:
        return []


class HangingEnv(ScriptedEnv):
    """An environment whose episodes begin and never get on."""

    async def reset(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def served(app: Any, socket: Path) -> AsyncIterator[None]:
    """The application on a Unix socket."""
    server = uvicorn.Server(uvicorn.Config(app, uds=str(socket), log_config=None, timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve())
    try:
        await reached(lambda: server.started)
        yield
    finally:
        server.should_exit = server.force_exit = True
        await running


async def reached(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.02)


async def test_a_full_key_value_cache_holds_rollouts_back_until_there_is_room(
    harness: DataManagerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = harness.root
    backend = FakeFullBackend()
    engine = WorkerEngine(backend)
    (root / KEY_NAME).write_text("key-of-the-worker")
    write_addresses(root / "addresses.json", [WorkerAddress("policy-0", root)])
    monkeypatch.setattr("dart_train.scheduling.entities.KV_MEMORY_S", 1e-3)
    monkeypatch.setattr("dart_envs.envs.core.AsyncDesktopEnv", lambda *_, **__: HangingEnv())
    monkeypatch.setattr(
        AsyncFarmClient,
        "connect",
        classmethod(lambda cls, *_, **__: _connected(contextlib.nullcontext(FakeEmptyFarm()))),
    )
    catalog = SuiteCatalog()
    harness.store.close()
    harness.store = type(harness.store).open(harness.config.database, catalog.split_of)
    harness.manager = DataManager(harness.store, harness.images, catalog, harness.config)
    harness.phase(select=TaskSelection(suite="basics", families=["press_button"], split="train", count=2))
    config = WorkerConfig(
        name="w",
        policy="vllm",
        desktops=2,
        socket=harness.config.socket,
        images=root / "images",
        addresses=root / "addresses.json",
        heartbeat_s=0.05,
    )

    def rollout_worker() -> Worker:
        with harness.store.begin() as session:
            return harness.manager._scheduler.state(session).workers.get("w") or Worker("w")

    async with (
        served(build_app(engine, "key-of-the-worker"), root / SOCKET_NAME),
        served(create_app(harness.manager), harness.config.socket),
    ):
        playing = asyncio.create_task(run_worker(config))
        try:
            await reached(lambda: len(rollout_worker().running) == 1)
            await reached(lambda: rollout_worker().kv_cache_usage == 0.99)
            assert len(rollout_worker().running) == 1, "the second desktop waits"
            backend.usage = 0.5
            await engine.pause()
            await engine.resume()
            await reached(lambda: len(rollout_worker().running) == 2)
            assert rollout_worker().kv_cache_usage == 0.5
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)


async def _connected(farm: Any) -> Any:
    return farm
