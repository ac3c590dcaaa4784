"""A desktop's declared time of day through the farm, over snapshots of any age; the simulation on a clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from farm_harness import Api, ManualClock

from dart_server.farm import Farm
from dart_server.http.app import create_app
from dart_server.providers.sim.provider import SimProvider
from dart_server.settings import FarmSettings

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
MONTH_S = 30 * 24 * 3600


@pytest.fixture
async def api(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Api]:
    settings = FarmSettings(provider="sim", warm_desktops=0, max_desktops=2, runtime_dir=tmp_path, home=tmp_path)
    farm = Farm(settings, SimProvider(clock), clock)
    await farm.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(farm)), base_url="http://farm") as client:
        yield Api(farm, client, farm.settings.key_path.read_text().strip())
    await farm.stop()


async def declare(api: Api, lease: dict[str, Any], time: datetime | None) -> httpx.Response:
    body = {"time": None if time is None else time.isoformat()}
    return await api.call("PUT", f"/v1/leases/{lease['lease_id']}/clock", lease=lease, json=body)


async def seen(api: Api, lease: dict[str, Any]) -> datetime:
    """What the desktop's clock says, after a program in it has said the same."""
    path = f"/v1/leases/{lease['lease_id']}"
    view = (await api.call("GET", f"{path}/clock", lease=lease)).json()
    said = (await api.call("POST", f"{path}/execute", lease=lease, json={"argv": ["date", "-u", "+%s"]})).json()
    time = datetime.fromisoformat(view["time"])
    assert int(said["stdout"]) == int(time.timestamp())
    return time


async def test_a_declared_clock_goes_on_and_is_given_back(api: Api, clock: ManualClock) -> None:
    lease = await api.create_lease(ttl_s=3000)
    assert await seen(api, lease) == datetime.fromtimestamp(clock.time(), UTC)
    view = (await declare(api, lease, NOON)).json()
    assert (datetime.fromisoformat(view["time"]), view["declared"]) == (NOON, True)
    clock.now += 600
    assert await seen(api, lease) == NOON + timedelta(minutes=10)
    assert (await declare(api, lease, None)).json()["declared"] is False
    assert await seen(api, lease) == datetime.fromtimestamp(clock.time(), UTC)


@pytest.mark.parametrize("age_s", [1, MONTH_S])
async def test_a_declared_clock_stands_still_in_a_snapshot_of_any_age(api: Api, clock: ManualClock, age_s: int) -> None:
    lease = await api.create_lease(ttl_s=3000)
    await declare(api, lease, NOON)
    clock.now += 60
    await api.call("POST", f"/v1/leases/{lease['lease_id']}/snapshot", lease=lease, json={"name": "minute"})
    clock.now += age_s
    copy = await api.create_lease(snapshot_id="minute", ttl_s=3000)
    assert await seen(api, copy) == NOON + timedelta(minutes=1)
    clock.now += 5
    assert await seen(api, copy) == NOON + timedelta(minutes=1, seconds=5)
    await api.reset(copy)
    assert await seen(api, copy) == datetime.fromtimestamp(clock.time(), UTC), "the booted base has the real time"


@pytest.mark.parametrize("time", ["2024-02-29T12:00:00", "1970-01-01T00:00:00Z", "2200-01-01T00:00:00Z", "noon"])
async def test_a_time_without_a_zone_or_far_away_is_refused(api: Api, time: str) -> None:
    lease = await api.create_lease()
    reply = await api.call("PUT", f"/v1/leases/{lease['lease_id']}/clock", lease=lease, json={"time": time})
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")


async def test_the_clock_is_the_lease_holders(api: Api) -> None:
    lease = await api.create_lease()
    stale = {**lease, "fencing_token": lease["fencing_token"] - 1}
    assert (await declare(api, stale, NOON)).status_code == 409
    reply = await api.call("PUT", f"/v1/leases/{lease['lease_id']}/guest/v1/clock", lease=lease, json={"time_s": 1})
    assert reply.status_code == 404
