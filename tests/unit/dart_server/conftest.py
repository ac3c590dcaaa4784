"""Fixtures: a farm over the fake provider on a clock that tests move by hand, and an HTTP client of its application."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock

from dart_server.database.write_queue import Database
from dart_server.farm import Farm
from dart_server.http.app import create_app
from dart_server.settings import FarmSettings


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that is migrated already, to be copied."""
    path = tmp_path_factory.mktemp("database") / "farm.db"

    async def make() -> None:
        database = Database(f"sqlite:///{path}")
        await database.start()
        await database.aclose()

    asyncio.run(make())
    return path


@pytest.fixture
async def make_api(
    tmp_path: Path, migrated: Path, clock: ManualClock, provider: FakeProvider
) -> AsyncIterator[MakeApi]:
    farms: list[Farm] = []
    clients: list[httpx.AsyncClient] = []

    async def make(**settings: Any) -> Api:
        host = settings.pop("host", None)
        chosen = {
            "warm_desktops": 0,
            "max_desktops": 2,
            **dict.fromkeys(("runtime_dir", "state_dir", "home"), tmp_path),
            **settings,
        }
        if not (tmp_path / "farm.db").exists():
            shutil.copy(migrated, tmp_path / "farm.db")
        farm = Farm(FarmSettings(provider="sim", **chosen), provider, clock, host)
        await farm.start()
        farms.append(farm)
        transport = httpx.ASGITransport(create_app(farm), raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://farm")
        clients.append(client)
        return Api(farm, client, farm.settings.key_path.read_text().strip())

    yield make
    for client in clients:
        await client.aclose()
    for farm in farms:
        await farm.stop()


@pytest.fixture
async def api(make_api: MakeApi) -> Api:
    return await make_api()
